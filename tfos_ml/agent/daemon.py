"""``spark.python.daemon.module=tfos_ml.agent.daemon``: a pyspark daemon that has imported what its workers need.

Spark forks Python workers from a daemon that has imported little. Each new worker then imports Arrow, pandas and
tfos_ml itself, which takes 1 to 2 s of processor time. Workers of this daemon inherit these modules. tfos_ml must be
installed on the executors when they start: files that are sent with a job arrive too late.
"""

from __future__ import annotations

import contextlib
import gc
import importlib
import sys

from tfos_ml.common.interpreter import search_path

MODULES = (
    *("numpy.random", "pandas", "pyarrow.compute", "pyarrow.flight", "scipy.sparse"),
    *("pyspark.daemon", "pyspark.worker", "pyspark.ml.linalg", "pyspark.sql.pandas.serializers"),
    *(
        "tfos_ml.agent.standalone_supervisor",
        "tfos_ml.agent.feed_task",
        "tfos_ml.agent.scorer",
        "tfos_ml.agent.task_input",
    ),
)


def preload() -> None:
    """Import what workers need. An installed pyspark is preferred to the one in Spark's archive."""
    sys.path[:] = search_path()
    sys.path_importer_cache.clear()  # each worker would read the archives' directories again
    gc.disable()
    for name in MODULES:
        with contextlib.suppress(ImportError):  # a worker that needs it will say so
            importlib.import_module(name)
    gc.enable()
    gc.freeze()  # what the workers share is not written to


if __name__ == "__main__":
    preload()
    importlib.import_module("pyspark.daemon").manager()
