"""``MultiWorkerMirroredStrategy`` with ``Model.fit`` of Keras 2: one of two workers; prints the seconds of each epoch.

Keras 3 does not train under the strategy (keras-team/keras#20585). Run by the Python of an environment with tf_keras,
in two processes with ``TF_CONFIG``; ``training.py`` does so.

    $(python benchmarks/peers.py tensorflowonspark) benchmarks/mirrored_peer.py MODEL ROWS BATCH EPOCHS
"""

from __future__ import annotations

import json
import os
import sys
import time

os.environ["TF_USE_LEGACY_KERAS"] = "1"
os.environ.setdefault("TF_CPP_MIN_LOG_LEVEL", "3")

import tensorflow as tf
import tf_keras as keras
from workloads import layers_of, random_rows


class Clock(keras.callbacks.Callback):
    """Notes the seconds of each epoch."""

    def __init__(self):
        super().__init__()
        self.seconds: list[float] = []

    def on_epoch_begin(self, epoch, logs=None):
        """An epoch begins."""
        self.began = time.monotonic()

    def on_epoch_end(self, epoch, logs=None):
        """An epoch has ended."""
        self.seconds.append(time.monotonic() - self.began)


def main(name: str, rows: int, batch: int, epochs: int) -> None:
    """Train on this worker's share of the rows and of the batch."""
    strategy = tf.distribute.MultiWorkerMirroredStrategy()  # before anything else uses TensorFlow
    workers = strategy.num_replicas_in_sync
    x, y = random_rows(rows // workers, seed=int(json.loads(os.environ["TF_CONFIG"])["task"]["index"]))

    def own_rows(_: tf.distribute.InputContext) -> tf.data.Dataset:
        return tf.data.Dataset.from_tensor_slices((x, y)).batch(batch // workers, drop_remainder=True).repeat()

    with strategy.scope():
        model = keras.Sequential(layers_of(keras, name))
        model.compile("adam", "sparse_categorical_crossentropy", metrics=["accuracy"])
    clock = Clock()
    data = strategy.distribute_datasets_from_function(own_rows)
    model.fit(data, epochs=epochs, steps_per_epoch=rows // batch, verbose=0, callbacks=[clock])
    print(json.dumps(clock.seconds))


if __name__ == "__main__":
    main(sys.argv[1], *map(int, sys.argv[2:]))
