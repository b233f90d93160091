"""Trains cases of keras_worker.py in worker processes, and plain Keras on the same rows; compares them."""

from __future__ import annotations

import functools
import json
import os

import numpy as np
from keras_worker import BATCH, EPOCHS, make, named, row_count
from ports import free_ports

from tfos_ml.agent.child_process import child_environment
from tfos_ml.agent.fork_client import ForkServerRef, start_process
from tfos_ml.inference.tensorflow_import import USES_KERAS
from tfos_ml.worker.fork_server import NO_MARKER

WAIT_SECONDS, CASE_SECONDS = 1500.0, 60.0  # that a machine with much other work may need


def train(cases_by_size, out, communication="auto"):
    """Train in worker processes; returns where their weights and logs are."""
    environment = {**child_environment(NO_MARKER, 1, {}), USES_KERAS: "1"}
    environment["TFOS_ML_TEST_COMMUNICATION"] = communication
    fork_server = ForkServerRef(os.getpid(), idle_seconds=300)
    for size, cases in cases_by_size.items():
        ports = free_ports(size)
        workers = []
        for rank in range(size):
            arguments = [str(out), str(rank), ",".join(ports), *cases]
            with open(os.devnull, "rb") as nothing, open(out / f"log-{size}-{rank}", "wb") as log:
                workers.append(start_process("keras_worker", arguments, environment, nothing, log, fork_server))
        try:
            codes = [worker.wait(max(WAIT_SECONDS, CASE_SECONDS * len(cases))) for worker in workers]
        finally:
            for worker in workers:
                worker.kill()
        assert not any(codes), (out / f"log-{size}-{np.argmax(codes)}").read_text()[-3000:]
    return out


def plain_fit(case):
    """Weights and history of plain Keras on the same rows in the same order."""
    model, history = plain_training(case)
    return model.get_weights(), history


def plain_training(case):
    """The same with the model itself."""
    import keras

    data, model = make(case)
    validates = np.zeros(row_count(data), bool) if data["val"] is None else data["val"]
    pads = "lengths" in data
    part = functools.partial(_padded_batches if pads else _rows, data)
    x, y, w = (part(~validates), None, None) if pads else keras.utils.unpack_x_y_sample_weight(part(~validates))
    history = model.fit(
        x,
        y,
        sample_weight=w,
        class_weight=data.get("class_weight"),
        callbacks=data.get("callbacks", list)(),
        validation_data=part(validates) if validates.any() else None,
        epochs=data.get("epochs", EPOCHS),
        batch_size=None if pads else data.get("batch", BATCH),
        shuffle=False,
        verbose=0,
    ).history
    return model, history


def _rows(data, chosen):
    """Inputs, labels and weights of some rows, as ``fit`` takes them."""
    import tensorflow as tf

    def of(values):
        if values.dtype.kind in "OU":
            return tf.constant(values[chosen].tolist())
        return values[chosen]

    parts = []
    for key in "xyw":
        values = named(data[key], "only")
        if values:
            taken = {name: of(column) for name, column in values.items()}
            parts.append(taken if isinstance(data[key], dict) else taken["only"])
    return tuple(parts)


def _padded_batches(data, chosen):
    """The same as a dataset that pads the rows of each batch to the longest of them, as ``padded_batch`` does."""
    import tensorflow as tf

    def batches():
        rows, size = np.flatnonzero(chosen), data.get("batch", BATCH)
        for at in np.split(rows, range(size, len(rows), size)):
            cut = functools.partial(_cut, int(data["lengths"][at].max()))
            yield tf.nest.map_structure(cut, _rows(data, at))

    spec = tf.nest.map_structure(lambda v: tf.TensorSpec([None] * v.ndim, v.dtype), next(batches()))
    steps = -(-int(chosen.sum()) // data.get("batch", BATCH))
    dataset = tf.data.Dataset.from_generator(batches, output_signature=spec)
    return dataset.apply(tf.data.experimental.assert_cardinality(steps))  # without, Keras ends with other weights


def _cut(length, values):
    return values[:, :length] if values.ndim == 2 else values


def check(trained, cases_by_size, case):
    """The weights of all ranks, and the logs of the first, are those of plain Keras."""
    weights, history = plain_fit(case)
    for size in [size for size, cases in cases_by_size.items() if case in cases]:
        for rank in range(size):
            with np.load(trained / f"{case}-{size}-{rank}.npz") as file:
                own = [file[name] for name in file.files]
            worst = max(float(np.abs(a - b).max()) for a, b in zip(own, weights, strict=True))
            limit = 1e-13 if {w.dtype for w in weights} == {np.dtype(np.float64)} else 1e-5
            assert worst < limit, f"{size} workers, rank {rank}: {worst}"
        logs = json.loads((trained / f"{case}-{size}.json").read_text())
        assert set(logs[0]) == set(history)
        for name, values in history.items():
            np.testing.assert_allclose(
                [log[name] for log in logs], values, rtol=1e-5, atol=1e-5, err_msg=f"{size} {name}"
            )
