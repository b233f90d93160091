"""The setting that says which process scores rows."""

SCORING_SETTING = "spark.tfos_ml.scoringProcess"
AUTO = "auto"  # one per executor, except for small models on many cores, and if no process is forked
EXECUTOR = "executor"
WORKER = "worker"
CHOICES = (AUTO, EXECUTOR, WORKER)
