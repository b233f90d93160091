"""TensorFlow and Keras training and inference as stages of a Spark ML pipeline.

Folders are the places where code runs; imports point downwards only (``make lint`` holds that):

==============  ======================================================================
``doctor/``     ``python -m tfos_ml doctor``: checks a set-up
``pack/``       ``python -m tfos_ml pack``: an archive of the packages for executors
``mlflow/``     runs and models in MLflow
``tuning/``     ``OptunaSearch``: searches whose trials are fits, pruned while they run
``compat/``     TensorFlowOnSpark's modules, names and arguments over the rest
``tfcluster/``  ``TFCluster``, ``TFParallel``: clusters that a program leads itself
``stages/``     what users put into a Pipeline: estimators, models, Params, persistence
``keras/``      Keras training, in the worker, and the driver's look at a Keras model
``driver/``     one run, on the driver: started, watched, canceled, closed
``agent/``      one node, seen from its Spark task: the supervisor of its process
``worker/``     inside the TensorFlow process of a node
``inference/``  SavedModel -> archive -> executor -> Arrow UDF -> columns
``protocol/``   what the places say to each other
``tfrecord/``   TFRecords as a data source of Spark, and as plain functions
``data/``       columns, Arrow, NumPy, the order of rows, the spool
``common/``     what all stand on: host, processes, filesystems, texts
``errors.py``   every error, on one page
==============  ======================================================================

Public names are loaded on first use, so that a node's TensorFlow process, which needs few of
them, starts fast. ``import tfos_ml`` does not import TensorFlow.
"""

from __future__ import annotations

import importlib
from typing import TYPE_CHECKING, Any

from tfos_ml.common.version import __version__ as __version__

if TYPE_CHECKING:
    from tfos_ml.stages.input_mode import InputMode
    from tfos_ml.stages.keras_estimator import KerasEstimator
    from tfos_ml.stages.tf_estimator import TFEstimator
    from tfos_ml.stages.tf_model import TFModel
    from tfos_ml.tfcluster.tfcluster import TFCluster
    from tfos_ml.tfcluster.tfparallel import TFParallel
    from tfos_ml.worker.cluster_resolver import SparkClusterResolver
    from tfos_ml.worker.data_feed import DataFeed
    from tfos_ml.worker.node_context import NodeContext

__all__ = [
    "DataFeed",
    "InputMode",
    "KerasEstimator",
    "NodeContext",
    "SparkClusterResolver",
    "TFCluster",
    "TFEstimator",
    "TFModel",
    "TFParallel",
]

_HOMES = {
    "DataFeed": "tfos_ml.worker.data_feed",
    "InputMode": "tfos_ml.stages.input_mode",
    "KerasEstimator": "tfos_ml.stages.keras_estimator",
    "NodeContext": "tfos_ml.worker.node_context",
    "SparkClusterResolver": "tfos_ml.worker.cluster_resolver",
    "TFCluster": "tfos_ml.tfcluster.tfcluster",
    "TFEstimator": "tfos_ml.stages.tf_estimator",
    "TFModel": "tfos_ml.stages.tf_model",
    "TFParallel": "tfos_ml.tfcluster.tfparallel",
}


def __getattr__(name: str) -> Any:
    if name not in _HOMES:
        raise AttributeError(f"module 'tfos_ml' has no attribute {name!r}")
    from tfos_ml.common.optional_packages import needed_by

    with needed_by(f"tfos_ml.{name}"):
        return getattr(importlib.import_module(_HOMES[name]), name)


def __dir__() -> list[str]:
    return sorted([*globals(), *__all__])
