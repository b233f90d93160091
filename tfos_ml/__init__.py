"""TensorFlow and Keras training and inference as stages of a Spark ML pipeline.

How the package is laid out; imports point downwards:

=====================  ===============================================================
``estimator, model``   the public stages, ``params`` what can be set on them, ``keywords`` how
``keras_estimator``    the other estimator; ``base`` is what the two share
``cluster/``           one barrier job: template, launcher (driver), node (executor),
                       process, guardian, rendezvous, control;
                       ``tfcluster``, ``tfparallel``: programs that lead their nodes themselves
``feed/``              Spark rows -> spool -> ``tf.data``; ``steps``: who trains what when
``training/``          inside a node's TensorFlow process: main, context, export
``inference/``         SavedModel -> Arrow UDF
``schema, arrays``     which column becomes which tensor, and how; ``artifacts``: bytes to executors
``mlflow/``            runs and models; ``fit_listener``: how it hears of fits;
                       ``run_context``: tags of runs
``compat/``            TensorFlowOnSpark's modules, names and arguments over these
``persistence``        stages to files and back; ``pickling``: functions
``casting, heads``     column -> input of a model; output -> columns of Spark ML; ``output_checks``:
                       whether outputs are what the loss takes them for
``fit_outcome``        what a fit that ended well is warned of; ``user_warnings``: at the user's line
``storage, redact``    filesystems by URI, within a deadline; texts without passwords
``directories, pids``  what is ours on a host, told apart for certain; ``interpreter``: fresh Python processes
``errors``             every error, on one page
=====================  ===============================================================

Public names are loaded on first use, so that a node's TensorFlow process, which needs few of
them, starts fast. ``import tfos_ml`` does not import TensorFlow.
"""

from __future__ import annotations

import importlib
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from tfos_ml.stages.estimator import TFEstimator
    from tfos_ml.stages.input_mode import InputMode
    from tfos_ml.stages.keras_estimator import KerasEstimator
    from tfos_ml.stages.model import TFModel
    from tfos_ml.tfcluster.tfcluster import TFCluster
    from tfos_ml.tfcluster.tfparallel import TFParallel
    from tfos_ml.worker.context import NodeContext
    from tfos_ml.worker.datafeed import DataFeed
    from tfos_ml.worker.resolver import SparkClusterResolver

__version__ = "0.1.0"
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
    "DataFeed": "tfos_ml.worker.datafeed",
    "InputMode": "tfos_ml.stages.input_mode",
    "KerasEstimator": "tfos_ml.stages.keras_estimator",
    "NodeContext": "tfos_ml.worker.context",
    "SparkClusterResolver": "tfos_ml.worker.resolver",
    "TFCluster": "tfos_ml.tfcluster.tfcluster",
    "TFEstimator": "tfos_ml.stages.estimator",
    "TFModel": "tfos_ml.stages.model",
    "TFParallel": "tfos_ml.tfcluster.tfparallel",
}


__path__.append(f"{__path__[0]}/stages/former")  # what pipelines saved by earlier versions import


def __getattr__(name: str) -> Any:
    if name not in _HOMES:
        raise AttributeError(f"module 'tfos_ml' has no attribute {name!r}")
    return getattr(importlib.import_module(_HOMES[name]), name)


def __dir__() -> list[str]:
    return sorted([*globals(), *__all__])
