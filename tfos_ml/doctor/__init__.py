"""``python -m tfos_ml doctor``: whether this host, this Spark and its executors can train, and what to do if not."""
