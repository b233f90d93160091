"""``python -m tfos_ml pack``: an archive of packages, with which executors run that have a Python alone."""
