"""Adapts preprocessing layers (TextVectorization, StringLookup, Normalization...) to training rows."""

from __future__ import annotations

import functools
import io
import json
import zipfile
from collections.abc import Callable, Mapping, Sequence
from pathlib import Path
from typing import Any

import keras
import numpy as np
import pyarrow as pa
import tensorflow as tf

from tfos_ml.data.arrow import to_numpy, to_storage
from tfos_ml.data.schema import FeedSchema
from tfos_ml.errors import ModelError
from tfos_ml.keras import privates
from tfos_ml.worker.model_tensors import arrange_inputs, fit_inputs, input_specs

_BATCH = 8192


def adapt_layers(model: keras.Model, names: Sequence[str], inputs: Mapping[str, Any]) -> None:
    """Adapt the named layers of a functional or sequential model, in the order in which data flows through them.

    `inputs` are the rows (arrays) of all inputs by name, in the model's order.
    """
    wanted = [layer for layer in model.layers if layer.name in names]
    if len(wanted) < len(set(names)):
        missing = sorted(set(names) - {layer.name for layer in wanted})
        raise ModelError(f"adaptLayers can adapt layers of the model itself, but {missing} lie inside other layers.")
    if not isinstance(model, keras.Sequential) and not model.inputs:
        raise ModelError(
            "adaptLayers needs a functional or sequential model, where the inputs of each layer are known. Adapt the "
            "layers of a subclassed model yourself."
        )
    for layer in wanted:
        layer.adapt(_input_of(layer, inputs, model))


def _input_of(layer: Any, inputs: Mapping[str, Any], model: keras.Model) -> Any:
    """The input of a layer, for all rows."""
    before = _before(layer, model)
    rows = len(next(iter(inputs.values())))
    outputs = []
    for start in range(0, rows, _BATCH):
        part = {name: tf.constant(values[start : start + _BATCH]) for name, values in inputs.items()}
        outputs.append(before(arrange_inputs(model, part)))
    return tf.concat(outputs, 0)


def _before(layer: Any, model: keras.Model) -> Callable[[Any], Any]:
    """The part of a model that computes the input of a layer."""
    if not isinstance(model, keras.Sequential):
        return keras.Model(model.input, layer.input)
    earlier = model.layers[: model.layers.index(layer)]
    return lambda values: functools.reduce(lambda inner, one: one(inner), earlier, values)


def read_inputs(path: Path, schema: FeedSchema, model: keras.Model) -> dict[str, Any]:
    """Rows (at least one) of an Arrow file as the model's inputs; its columns are the feature columns, in order."""
    with pa.OSFile(str(path)) as file:
        table = pa.ipc.open_file(file).read_all().combine_chunks()
    features = [schema.columns[i] for i in schema.of("feature")]
    values = {c.name: to_numpy(to_storage(table.column(i).chunk(0), c), c) for i, c in enumerate(features)}
    return fit_inputs(input_specs(model, schema, None), schema, values)


def pack_state(model: keras.Model, names: Sequence[str]) -> bytes:
    """The state of adapted layers, as bytes for :func:`load_assets` and :func:`load_variables`."""
    packed = io.BytesIO()
    with zipfile.ZipFile(packed, "w") as archive:
        for name in names:
            layer = model.get_layer(name)
            if hasattr(layer, "get_vocabulary"):  # not as Keras saves it, in lines: entries may have line ends
                archive.writestr(f"{name}/vocabulary", json.dumps(privates.vocabulary_of(layer)))
            store: dict[str, Any] = {}
            layer.save_own_variables(store)
            file = io.BytesIO()
            named: dict[str, Any] = {key: np.asarray(value) for key, value in store.items()}
            np.savez(file, **named)
            archive.writestr(f"{name}/variables.npz", file.getvalue())
            if isinstance(layer, keras.layers.Discretization):
                boundaries = np.asarray(layer.bin_boundaries, dtype=np.float64)
                archive.writestr(f"{name}/boundaries", boundaries.tobytes())
    return packed.getvalue()


def load_assets(model: keras.Model, state: bytes) -> None:
    """Give layers their vocabularies and boundaries; before the model is built."""
    with zipfile.ZipFile(io.BytesIO(state)) as archive:
        for entry in archive.namelist():
            name, _, part = entry.partition("/")
            layer = model.get_layer(name)
            if part == "vocabulary":
                vocabulary = json.loads(archive.read(entry))
                weights = [np.ones(len(vocabulary))] if layer.get_config()["output_mode"] == "tf_idf" else []
                layer.set_vocabulary(vocabulary, *weights)  # load_variables has the weights themselves
            elif part == "boundaries":
                layer.bin_boundaries = np.frombuffer(archive.read(entry), np.float64).tolist()


def load_variables(model: keras.Model, state: bytes) -> None:
    """Give layers their statistics; once the model is built."""
    with zipfile.ZipFile(io.BytesIO(state)) as archive:
        for entry in archive.namelist():
            if not entry.endswith("/variables.npz"):
                continue
            layer = model.get_layer(entry.split("/")[0])
            if isinstance(layer, keras.layers.Discretization):
                continue
            with np.load(io.BytesIO(archive.read(entry)), allow_pickle=False) as arrays:
                store = {key: arrays[key] for key in arrays.files}
            if store:
                layer.load_own_variables(store)
                if hasattr(layer, "finalize_state"):
                    layer.finalize_state()
