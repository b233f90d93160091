"""Notes on every worker which rows each training step has, and checks that each row was trained once an epoch."""

from __future__ import annotations

import json
import os
from collections import Counter, defaultdict
from pathlib import Path
from typing import Any

step: int | None = None
"""The training step of this process, from the first of the fit; None before it trains."""


def note_steps() -> Any:
    """A callback that keeps :data:`step`."""
    import keras

    class NoteSteps(keras.callbacks.Callback):
        def on_train_batch_begin(self, batch, logs=None):
            import trained_rows

            trained_rows.step = int(self.model.optimizer._iterations)

    return NoteSteps()


def note_rows(directory: str) -> Any:
    """A layer that writes the first feature of each row of a training step to a file of this process."""
    import keras
    import tensorflow as tf

    def note(features):
        import trained_rows

        if trained_rows.step is not None:
            about = {"attempt": os.environ["TF_CONFIG"].partition('"task"')[0], "step": trained_rows.step}
            with Path(directory, f"rows-{os.getpid()}").open("a") as file:
                print(json.dumps({**about, "rows": features[:, 0].numpy().tolist()}), file=file)

    class NoteRows(keras.layers.Layer):
        def call(self, features, training=None):
            if training:
                tf.py_function(note, [features], [])
            return features

    return NoteRows()


def check_rows(directory: Path, features: Any, batch: int, epochs: int) -> None:
    """Each step must have had the rows of its global batch in one attempt, and in none a row twice or of another step.

    `features` are those of all training rows, in order.
    """
    found: dict[int, dict[str, Counter[float]]] = defaultdict(lambda: defaultdict(Counter))
    for file in directory.glob("rows-*"):
        for line in file.read_text().splitlines():
            note = json.loads(line)
            found[note["step"]][note["attempt"]].update(note["rows"])
    firsts = features[:, 0].tolist()
    batches = [Counter(firsts[start : start + batch]) for start in range(0, len(firsts), batch)] * epochs
    assert sorted(found) == [*range(len(batches))]
    for number, expected in enumerate(batches):
        for rows in found[number].values():
            assert rows <= expected, f"step {number} had a row twice, or one of another step"
        assert expected in found[number].values(), f"step {number} lacks rows"
