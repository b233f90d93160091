"""Which lists a callback has filled."""

from typing import ClassVar

import keras
import numpy as np

from tfos_ml.keras.filled_lists import FilledLists

by_epoch = []


class History(keras.callbacks.Callback):
    """After keras.io's guide, with a list that it has from the driver."""

    of_all: ClassVar = {}

    def __init__(self):
        super().__init__()
        self.seen, self._own, self.classes = [], [], ["a", "b"]

    def on_train_begin(self, logs=None):
        self.losses = []

    def on_epoch_end(self, epoch, logs=None):
        for values in (self.seen, self._own, self.losses, by_epoch):
            values.append(logs["loss"])
        self.of_all[epoch] = logs
        self.count = len(self.classes)


def fit(callback):
    model = keras.Sequential([keras.Input((1,)), keras.layers.Dense(1)])
    model.compile("sgd", "mse")
    filled = FilledLists([callback])
    model.fit(np.ones((1, 1)), np.ones((1, 1)), epochs=2, callbacks=[callback], verbose=0)
    return filled.names()


def test_of_a_class_and_of_its_functions():
    assert fit(History()) == ["History.losses", "History.of_all", "History.seen", "by_epoch"]


def test_in_a_lambda():
    losses, by_name = [], {"loss": []}
    append = keras.callbacks.LambdaCallback(on_epoch_end=lambda epoch, logs: losses.append(logs["loss"]))
    assert fit(append) == ["losses"]
    within = keras.callbacks.LambdaCallback(on_epoch_end=lambda epoch, logs: by_name["loss"].append(logs["loss"]))
    assert fit(within) == ["by_name"]


def test_not_those_of_keras():
    class Own(keras.callbacks.EarlyStopping):
        pass

    assert fit(Own("loss", restore_best_weights=True)) == []
