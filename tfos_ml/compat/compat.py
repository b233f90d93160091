"""What differs between versions of TensorFlow and Keras, for programs that run on several."""

from __future__ import annotations

import os
import tempfile
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    import tensorflow as tf

WORKER_MODEL = "worker_model"


def export_saved_model(model: Any, export_dir: str, is_chief: bool = False) -> None:
    """Write the chief's model as a SavedModel to a path or a URI; to be called on every node.

    `model` is a ``keras.Model``, ``tf_keras.Model`` or ``tf.Module``, the URI one that ``pyarrow.fs`` understands.
    Models of Keras 3 are saved for serving and ``pipeline.TFModel``, with the names of inputs and outputs that Keras 2
    gives them (``conv2d_input``, ``dense_1``). ``keras.models.load_model`` does not read them.
    """
    from tfos_ml.compat.saved_models import save_model

    with tempfile.TemporaryDirectory(prefix="export-") as directory:
        path = os.path.join(directory, WORKER_MODEL)
        if not is_chief:
            save_model(model, path)  # its variables may need all workers
            return
        local = export_dir.removeprefix("file://")
        if "://" not in local:
            save_model(model, local)
            return
        from tfos_ml.inference.publishing import publish_directory

        save_model(model, path)
        publish_directory(path, export_dir)


def disable_auto_shard(options: tf.data.Options) -> None:
    """Have ``tf.data`` give every worker all elements of a dataset whose files are dealt out already."""
    import tensorflow as tf

    options.experimental_distribute.auto_shard_policy = tf.data.experimental.AutoShardPolicy.OFF


def is_gpu_available() -> bool:
    """Whether TensorFlow sees a GPU."""
    import tensorflow as tf

    return len(tf.config.list_physical_devices("GPU")) > 0
