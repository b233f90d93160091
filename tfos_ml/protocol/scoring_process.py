"""The setting that says which process scores rows."""

SCORING_SETTING = "spark.tfos_ml.scoringProcess"
AUTO = "auto"  # one for an executor, but for small models on many cores, and where no process is forked
EXECUTOR = "executor"
WORKER = "worker"
CHOICES = (AUTO, EXECUTOR, WORKER)
