"""Settings of a session, for the length of a block."""

import contextlib


@contextlib.contextmanager
def setting(spark, name, value):
    """Set ``spark.tfos_ml.<name>`` for a while."""
    spark.conf.set(f"spark.tfos_ml.{name}", value)
    try:
        yield
    finally:
        spark.conf.unset(f"spark.tfos_ml.{name}")
