"""What other estimators call what Params of a stage do: those of Keras, Horovod, Elephas and Spark, and TFEstimator."""

from __future__ import annotations

import difflib
from collections.abc import Sequence

_SAME = {
    "num_workers": "clusterSize",
    "num_proc": "clusterSize",
    "nprocs": "clusterSize",
    "num_processes": "clusterSize",
    "custom_objects": "customObjects",
    "inputCol": "featuresCol",
    "inputCols": "inputMapping",
    "featuresCols": "inputMapping",
    "labelCols": "labelMapping",
    "outputCol": "predictionCol",
    "feature_cols": "featuresCol",
    "label_cols": "labelCol",
    "sample_weight_col": "weightCol",
    "random_seed": "seed",
    "use_gpu": "nodeGpus",
    "checkpoint_dir": "modelDir",
    "max_iter": "epochs",
    "maxIter": "epochs",
}
_OF_COMPILE = ("optimizer", "loss", "metrics", "loss_weights", "weighted_metrics", "run_eagerly", "jit_compile")
_NO_SERVERS = (
    "Keras 3 does not support ParameterServerStrategy: leave it out to train synchronously; or train a tf_keras "
    "(Keras 2) model, or plain TensorFlow variables, with TFEstimator and nodeEnv={'TF_USE_LEGACY_KERAS': '1'}"
)
_ALL_ROWS = "an epoch has all rows, in steps of batchSize; leave it out"
_ADVICE = {
    **{name: f"pass it to model.compile({name}=...)" for name in _OF_COMPILE},
    "steps_per_epoch": _ALL_ROWS,
    "train_steps_per_epoch": _ALL_ROWS,
    "validation_steps": _ALL_ROWS,
    "validation_steps_per_epoch": _ALL_ROWS,
    "validation": "set validationSplit or validationIndicatorCol",
    "validation_data": "mark its rows in the DataFrame, and set validationIndicatorCol",
    "store": "Spark feeds the rows, so none is needed; checkpoints are kept in modelDir, the model in exportDir",
    "backend": "nodes run on Spark's executors; leave it out",
    "numPS": _NO_SERVERS,
    "driverPSNodes": _NO_SERVERS,
    "evalNode": "all workers evaluate, each row once: leave it out, and set validationSplit or validationIndicatorCol",
    "inputMode": "Spark feeds the rows; leave it out",
}


def hint(name: str, known: Sequence[str]) -> str:
    """What to write in place of a keyword that a stage does not have; empty if nothing comes to mind."""
    if name in _ADVICE and "model" in known:
        return f" ({_ADVICE[name]})"
    same = [_SAME[name]] if _SAME.get(name) in known else difflib.get_close_matches(name, known, 3, 0.5)
    return f" (did you mean {' or '.join(same)}?)" if same else ""
