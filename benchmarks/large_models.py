"""Large models, and callbacks that note what a process has taken when it trains one; for ``size.py``."""

from __future__ import annotations

import json
import os
import re
import tempfile
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

import keras
import numpy as np
from keras import layers

WIDTH, HEADS, VOCABULARY, TOKENS, RANK = 768, 12, 30_000, 16, 8
PIXELS = (224, 224, 3)
TABLE_WIDTH = 64
ROWS, BATCH, EPOCHS = 32, 8, 2


@keras.saving.register_keras_serializable("size")
class Block(layers.Layer):
    """A block of a transformer, a class of its own."""

    def __init__(self, **options: Any):
        super().__init__(**options)
        self.attention = layers.MultiHeadAttention(HEADS, WIDTH // HEADS)
        self.wide, self.narrow = layers.Dense(4 * WIDTH, activation="gelu"), layers.Dense(WIDTH)
        self.first_norm, self.last_norm = layers.LayerNormalization(), layers.LayerNormalization()

    def build(self, shape: Any) -> None:
        """Build the layers within."""
        self.attention.build(shape, shape)
        for layer in (self.wide, self.first_norm, self.last_norm):
            layer.build(shape)
        self.narrow.build((*shape[:-1], 4 * WIDTH))

    def call(self, x: Any) -> Any:
        """Attention, then two dense layers."""
        x = self.first_norm(x + self.attention(x, x))
        return self.last_norm(x + self.narrow(self.wide(x)))


def transformer(blocks: int) -> keras.Model:
    """Of BERT-base's size with 12 blocks."""
    tokens = layers.Input((TOKENS,), dtype="int32")
    x = layers.Embedding(VOCABULARY, WIDTH)(tokens)
    for _ in range(blocks):
        x = Block()(x)
    return keras.Model(tokens, layers.Dense(2, activation="softmax")(layers.GlobalAveragePooling1D()(x)))


def lora(blocks: int) -> keras.Model:
    """The transformer, frozen, with a LoRA of each dense layer."""
    model = transformer(blocks)
    for layer in model.layers[:-1]:
        if not isinstance(layer, Block):
            layer.trainable = False
            continue
        layer.attention.trainable = layer.first_norm.trainable = layer.last_norm.trainable = False
        layer.wide.enable_lora(RANK)
        layer.narrow.enable_lora(RANK)
    return model


def resnet(_: int) -> keras.Model:
    """ResNet50 with random weights, on rows of pixels."""
    pixels = layers.Input((PIXELS[0] * PIXELS[1] * PIXELS[2],))
    base = keras.applications.ResNet50(weights=None, include_top=False, pooling="avg", input_shape=PIXELS)
    return keras.Model(pixels, layers.Dense(2, activation="softmax")(base(layers.Reshape(PIXELS)(pixels))))


def embedding(rows: int) -> keras.Model:
    """A table of words."""
    tokens = layers.Input((TOKENS,), dtype="int32")
    x = layers.GlobalAveragePooling1D()(layers.Embedding(rows, TABLE_WIDTH)(tokens))
    return keras.Model(tokens, layers.Dense(2, activation="softmax")(x))


def frozen(make: Callable[[int], keras.Model]) -> Callable[[int], keras.Model]:
    """All of a model but its head."""

    def made(size: int) -> keras.Model:
        model = make(size)
        for layer in model.layers[:-1]:
            layer.trainable = False
        return model

    return made


MODELS = {
    "transformer": transformer,
    "frozen": frozen(transformer),
    "lora": lora,
    "resnet": resnet,
    "resnet_frozen": frozen(resnet),
    "embedding": embedding,
}


def build(name: str, size: int, notes: str) -> keras.Model:
    """A compiled model, of so many blocks or rows; from now on this process counts what it sends to other workers."""
    from tfos_ml.keras.collectives.links import Link

    send = Link.send

    def counting(self: Link, message: memoryview) -> None:
        Notes.sent += len(message)
        send(self, message)

    Link.send = counting  # type: ignore[method-assign]
    note(notes, "build")
    keras.utils.set_random_seed(1)
    model = MODELS[name](size)
    model.compile(keras.optimizers.Adam(1e-5), "sparse_categorical_crossentropy")
    return model


def plain_keras(name: str, size: int) -> dict[str, Any]:
    """What a process notes that trains a model with Keras alone, and keeps checkpoints, too."""
    with tempfile.TemporaryDirectory() as notes, tempfile.TemporaryDirectory() as model_dir:
        model = build(name, size, notes)
        random, is_image = np.random.default_rng(0), "resnet" in name
        x = random.integers(0, VOCABULARY, (ROWS, model.input_shape[1])).astype("float32" if is_image else "int32")
        y = random.integers(0, 2, ROWS)
        checkpoints = keras.callbacks.ModelCheckpoint(f"{model_dir}/all.weights.h5", save_weights_only=True)
        callbacks = [Notes(notes), Saves(notes), checkpoints]
        model.fit(x, y, batch_size=BATCH, epochs=EPOCHS, shuffle=False, verbose=0, callbacks=callbacks)
        (process,) = noted(notes)
        return process


def noted(notes: str) -> list[dict[str, Any]]:
    """For each process that has trained, the chief first: its pid, and by kind of event all that it has noted."""
    found = []
    for file in Path(notes).iterdir():
        events: dict[str, Any] = {"pid": int(file.name)}
        for line in file.read_text().splitlines():
            entry = json.loads(line)
            events.setdefault(entry["event"], []).append(entry)
        found += [events] if "end" in events else []
    return sorted(found, key=lambda events: "saved" not in events)


def status(pid: int | str, entry: str) -> int:
    """What ``/proc`` says of a process, in MB."""
    found = re.search(rf"{entry}:\s+(\d+) kB", Path(f"/proc/{pid}/status").read_text())
    return int(found[1]) // 1000 if found else 0


def note(notes: str, event: str, **more: Any) -> None:
    """Append a line to the file of this process."""
    moment = {"at": time.time(), "cpu": time.process_time()}
    line = {"event": event, **moment, "sent": Notes.sent, "peak": status("self", "VmHWM"), **more}
    with open(f"{notes}/{os.getpid()}", "a") as file:
        file.write(json.dumps(line) + "\n")


class Notes(keras.callbacks.Callback):
    """Notes each step and epoch of a process."""

    sent = 0  # bytes, to other workers

    def __init__(self, notes: str):
        super().__init__()
        self._notes = notes

    def on_epoch_begin(self, epoch: int, logs: Any = None) -> None:
        """Note it."""
        note(self._notes, "begin")

    def on_train_batch_end(self, batch: int, logs: Any = None) -> None:
        """Note it."""
        note(self._notes, "step")

    def on_epoch_end(self, epoch: int, logs: Any = None) -> None:
        """Note it."""
        note(self._notes, "end")


class Saves(keras.callbacks.Callback):
    """Saves weights and optimizer after the first epoch, as a checkpoint then does."""

    chief_only = True

    def __init__(self, notes: str):
        super().__init__()
        self._notes = notes

    def on_epoch_end(self, epoch: int, logs: Any = None) -> None:
        """Save them, and note how long that takes."""
        if epoch == 0:
            with tempfile.TemporaryDirectory() as directory:
                began = time.time()
                self.model.save_weights(f"{directory}/all.weights.h5")
                seconds = time.time() - began
            note(self._notes, "saved", seconds=seconds)  # the checkpoint's time begins now
