"""The rows of a worker in the form that Keras expects: inputs, labels and weights of each global-batch step."""

from __future__ import annotations

import functools
import re
from collections.abc import Mapping, Sequence
from dataclasses import replace
from typing import TYPE_CHECKING, Any

import keras
import numpy as np
import tensorflow as tf

from tfos_ml.data.arrow import pad_rows
from tfos_ml.data.casting import TensorInfo
from tfos_ml.data.row_order import Int64s
from tfos_ml.data.schema import Array
from tfos_ml.errors import EmptyDataError, LabelRangeError, ModelError
from tfos_ml.keras.collectives.group import WorkerGroup
from tfos_ml.keras.model.column_checks import check_class_weight, shapes_for_losses
from tfos_ml.keras.model.inspection import ModelDescription
from tfos_ml.worker.global_batches import GlobalBatches, dense_places, make_global_dataset, mark_rows
from tfos_ml.worker.model_tensors import (
    arrange_inputs,
    by_path,
    declared_inputs,
    fit_inputs,
    from_paths,
    functional_tensors,
    input_specs,
    is_nested,
    tensor_spec,
)
from tfos_ml.worker.node_rows import no_rows
from tfos_ml.worker.row_store import RowStore
from tfos_ml.worker.rows import Rows

if TYPE_CHECKING:
    from tfos_ml.worker.node_context import NodeContext

STREAMS = ("train", "validation")
_VALUES, _LENGTHS = "tfos_ml_values", "tfos_ml_lengths"


class TrainingData:
    """Training and validation rows of one worker.

    ``train`` and ``validation`` know which rows are in which step. ``current_epoch`` determines the order of rows. The
    epoch begins with ``first_step``, 0 unless a training resumes within it. `class_weight` has the weights of rows by
    the class of their label; empty for none. ``inputs`` are the model's, by name.

    Rows of different lengths are padded to the longest of the rows that all workers have in a step.
    """

    def __init__(
        self,
        ctx: NodeContext,
        group: WorkerGroup,
        model: Any,
        description: ModelDescription,
        class_weight: Mapping[int, float],
    ):
        self._ctx, self._group = ctx, group
        self._model = model
        self._description = description
        self.class_weight = class_weight
        self._schema = ctx._node.schema
        self._pad_value = ctx._node.settings.pad_value
        self.current_epoch = self.first_step = 0
        self._names_inputs = False
        self.stores: dict[str, RowStore] = {name: ctx._node.rows.store(name) for name in STREAMS}
        self._shapes = self.stores["train"].shapes
        self.inputs = input_specs(model, self._schema, self._shapes)
        self._given = shapes_for_losses(self._schema, self._shapes, description)  # to the model
        if class_weight:
            for i in self._schema.of("label"):
                check_class_weight(self._schema.columns[i], self._given[i], description)
        totals = {"train": ctx.row_count, "validation": ctx.validation_row_count}  # rows of all workers
        self._check_rows(totals)
        places = self._places(totals["train"], group)
        blocks = {"train": self.stores["train"].shuffle_block, "validation": None}
        self.train, self.validation = (
            GlobalBatches(places[name], totals[name], ctx.batch_size, blocks[name]) for name in STREAMS
        )
        ragged = [i for i in range(len(self._shapes)) if self.stores["train"].is_ragged(i)]
        self._lengths = {name: {i: self.stores[name].lengths(i) for i in ragged} for name in STREAMS}  # by column
        self._padded = {name: self._all_longest(name) for name in STREAMS}  # lengths by column and step
        typical = self._typical()
        self.inputs = {name: self._input(name, tensor, typical) for name, tensor in self.inputs.items()}

    def all_begin_epoch(self, epoch: int, first_step: int) -> None:
        """Set the order of rows in an epoch of the training; all workers do so together, before its first step."""
        is_another = epoch != self.current_epoch
        self.current_epoch, self.first_step = epoch, first_step
        if is_another:
            self._padded["train"] = self._all_longest("train")

    def _all_longest(self, stream: str) -> dict[int, Array]:
        """The lengths of the longest rows of all workers in each step, ``(steps, levels)``, by ragged column."""
        if not self._lengths[stream] or not self._batches(stream).steps:
            return {}
        plan = self._batches(stream).plan(self.seed(stream), self.current_epoch)
        columns, lengths = zip(*self._lengths[stream].items(), strict=True)
        ends = np.cumsum([part.shape[1] for part in lengths])[:-1]
        # All workers: they have the same columns and epochs, and no other exchange meanwhile.
        longest = self._group.all_max(plan.longest(np.concatenate(lengths, axis=1)))
        return dict(zip(columns, np.split(longest, ends, axis=1), strict=True))

    def _batches(self, stream: str) -> GlobalBatches:
        return self.train if stream == "train" else self.validation

    def _column_of(self, name: str) -> int:
        """The column of an input."""
        features = self._schema.of("feature")
        return {self._schema.columns[i].name: i for i in features}.get(name, features[0])

    def _typical(self) -> dict[int, tuple[int, ...]]:
        """The lengths, by ragged column, of the middle one of all steps, sorted by length; its rows fit into them."""
        padded = self._padded["train"]
        if not padded:
            return {}
        sizes = np.sum([lengths.sum(axis=1) for lengths in padded.values()], axis=0)
        middle = np.argsort(sizes, kind="stable")[len(sizes) // 2]
        return {column: tuple(lengths[middle].tolist()) for column, lengths in padded.items()}

    def _input(self, name: str, tensor: TensorInfo, typical: Mapping[int, tuple[int, ...]]) -> TensorInfo:
        """An input as it is fed, with the lengths to which ``transform`` pads shorter rows.

        If the model does not declare it, floats become floatx, as Keras does with arrays: a ``train_step`` may compute
        with inputs and outputs.
        """
        floats = ("float32", "float64")
        if declared_inputs(self._model) is None and tensor.dtype in floats and _floatx().name in floats:
            tensor = replace(tensor, dtype=_floatx().name)
        column = self._column_of(name)
        return replace(tensor, padded=typical[column]) if column in typical and not tensor.ragged else tensor

    def _places(self, total: int, group: WorkerGroup) -> dict[str, Int64s]:
        """The place of each row among the rows of its own stream, in the order of the DataFrame.

        Row ids have gaps where rows are for validation, or were skipped.
        """
        ids = self.stores["train"].total
        if total == ids:
            return {name: store.indices for name, store in self.stores.items()}
        places = {}
        for name, store in self.stores.items():
            (bitmap,) = group.all_sum([mark_rows(store.indices, ids)])  # all workers, which know the same counts
            places[name] = dense_places(store.indices, bitmap)
        return places

    def _check_rows(self, rows: Mapping[str, int]) -> None:
        if not rows["train"]:
            raise EmptyDataError(
                "no row is left to train on; all are validation rows"
                if rows["validation"]
                else no_rows(self.stores["train"].total)
            )
        if self._ctx._node.settings.validates and not rows["validation"]:
            raise EmptyDataError(
                f"no row of {rows['train']} is for validation. Raise validationSplit, mark rows in "
                "validationIndicatorCol, or unset them"
            )

    def range_error(self, error: Exception) -> LabelRangeError | ModelError | None:
        """The error for numbers that TensorFlow rejects as classes or indices; None if its message is about another.

        For a model that is built only when it sees rows, only TensorFlow knows the outputs; and for any model, only
        TensorFlow knows what becomes the index of an embedding.
        """
        match = re.search(r"indices\[[\d,]*\] = (-?\d+) is not in \[0, (\d+)\)", str(error))
        if match is not None:
            integers = [i for i in self._schema.of("feature") if "int" in self._schema.columns[i].dtype]
            return ModelError(
                f"A layer, such as an Embedding, looks up index {match[1]} in a table of {match[2]} entries, from 0 to "
                f"{int(match[2]) - 1}. Found: {self._shown_bounds('feature', integers) or 'no column of integers'}. "
                "Give the layer one entry for each value (input_dim), or number the values from 0, for example with "
                "pyspark.ml.feature.StringIndexer or keras.layers.IntegerLookup."
            )
        match = re.search(r"label value of (\S+) which is outside the valid range of \[(\d+), (\d+)\)", str(error))
        if match is None:
            return None
        ranges = self._shown_bounds("label", self._schema.of("label"))
        return LabelRangeError(
            f"A label is {match[1]}, but the model has {match[3]} classes and takes class indices from "
            f"{match[2]} to {int(match[3]) - 1}. Found: {ranges or 'no label'}. Number the classes from 0, "
            "for example with pyspark.ml.feature.StringIndexer, or give the last layer one unit per class."
        )

    def _shown_bounds(self, role: str, columns: Sequence[int]) -> str:
        bounds = {self._schema.columns[i].column: self.stores["train"].bounds(i) for i in columns}
        return ", ".join(f"{role} column '{name}' from {low:g} to {high:g}" for name, (low, high) in bounds.items())

    def element_spec(self, train: bool = True) -> Any:
        """Structure, shapes and dtypes of a batch for training, or for validation."""
        shapes = self._given
        inputs = {name: tensor_spec(tensor) for name, tensor in self.inputs.items()}
        labels = {}
        for i in self._schema.of("label"):
            spec = self._schema.columns[i]
            dtype = tf.as_dtype(spec.dtype)
            labels[spec.name] = tf.TensorSpec((None, *shapes[i]), _floatx() if dtype.is_floating else dtype)
        kept = {self._schema.columns[i].name: shapes[i] for i in self._schema.of("weight")}
        weights = {name: tf.TensorSpec((None, *kept.get(name, ())), tf.float32) for name in self._weight_names(train)}
        return self._element(inputs, labels, weights)

    def _weight_names(self, train: bool) -> list[str]:
        names = [self._schema.columns[i].name for i in self._schema.of("weight")]
        return names or (["weight"] if self.class_weight and train else [])

    def dataset(self, stream: str, has_cardinality: bool = True) -> tf.data.Dataset:
        """One pass over the rows of a stream, in the order of ``current_epoch``: batches, each with its ``Step``."""
        train = stream == "train"
        shuffled = train and self._ctx._node.settings.shuffle
        if shuffled:
            self.stores[stream].check_room()
        spec = self.element_spec(train)
        dataset = make_global_dataset(
            self.stores[stream],
            self._batches(stream),
            self.seed(stream),
            lambda: self.current_epoch,
            functools.partial(self._gather_step, stream),
            _padded_spec(spec),
            lambda: self.first_step if train else 0,
            has_cardinality,
        )
        if not any(tensor.ragged for tensor in self.inputs.values()):
            return dataset
        return dataset.map(lambda element, step: (_with_ragged(element), step))

    def names_inputs(self) -> bool:
        """Pass the only input by name from now on, for subclassed models; returns whether that is possible."""
        self._names_inputs = declared_inputs(self._model) is None and self._schema.named_features
        return self._names_inputs

    def spread(self) -> Any:
        """Training rows from everywhere, at most a thousand, as one batch of arrays.

        All are padded to the lengths of the middle step, the same on all workers; longer rows are left out.
        """
        store = self.stores["train"]
        rows, at = store.spread(min(store.block_rows(), 1000))
        lengths = self._typical()
        for column, most in lengths.items():
            at = at[(self._lengths["train"][column][at] <= most).all(axis=1)]
        return self._gather(rows, at, lengths)

    def stand_in(self, train: bool) -> Any:
        """A row to compute on in steps without rows of this worker: its first row, or zeros if it has none at all."""
        values = self._gather(*self.stores["train"].first(1), {}, train)
        if not len(tf.nest.flatten(values)[0]):
            values = tf.nest.map_structure(_row_of_zeros, values)
        with tf.init_scope():  # not in the graph of one step alone
            return as_tensors(values)

    def seed(self, stream: str) -> int | None:
        """The seed for the order of a stream's rows; None: the order of the DataFrame."""
        return self._ctx._node.settings.seed if stream == "train" and self._ctx._node.settings.shuffle else None

    def _gather_step(self, stream: str, rows: Rows, at: Int64s, step: int) -> Any:
        lengths = {column: tuple(padded[step].tolist()) for column, padded in self._padded[stream].items()}
        return self._gather(rows, at, lengths, stream == "train")

    def _gather(self, rows: Rows, at: Int64s, lengths: Mapping[int, tuple[int, ...]], train: bool = True) -> Any:
        """One dataset element, from rows and positions in them; `lengths` are those to pad to, by ragged column."""
        columns = list(rows.gather(at, self._pad_value))
        for i, shape in lengths.items():
            columns[i] = pad_rows(columns[i], shape, self._schema.columns[i], self._pad_value)
        for i, given in enumerate(self._given):
            if given != self._shapes[i]:
                columns[i] = columns[i].reshape(len(columns[i]), *given)
        features, labels, weights = (
            {self._schema.columns[i].name: columns[i] for i in self._schema.of(role)}
            for role in ("feature", "label", "weight")
        )
        inputs: dict[str, Any] = dict(fit_inputs(self.inputs, self._schema, features))
        for name in (n for n, tensor in self.inputs.items() if tensor.ragged):
            inputs[name] = {_VALUES: inputs[name], _LENGTHS: rows.lengths(self._column_of(name), at)}
        for name, values in labels.items():
            if values.dtype.kind == "f":  # as Keras does with arrays: metrics of the user's own may compare them
                labels[name] = values.astype(_floatx().as_numpy_dtype, copy=False)
        weights = {name: values.astype(np.float32) for name, values in weights.items()}
        if self.class_weight and train:  # not in validation, as in Keras
            by_class = self._weights_by_class(next(iter(labels.values())))
            weights = {name: weights.get(name, np.float32(1)) * by_class for name in self._weight_names(train)}
        return self._element(inputs, labels, weights)

    def _weights_by_class(self, label: Array) -> Array:
        if label.ndim > 1:
            label = label.argmax(axis=-1) if label.shape[-1] > 1 else label[..., 0]
        weights = np.ones(len(label), dtype=np.float32)
        for number, weight in self.class_weight.items():
            weights[label == number] = weight
        return weights

    def _element(self, inputs: dict[str, Any], labels: dict[str, Any], weights: dict[str, Any]) -> Any:
        x = inputs if self._names_inputs else arrange_inputs(self._model, inputs)
        if not labels:  # as Keras packs it: a tensor or a dict stays what it is
            return (tuple(x),) if isinstance(x, (list, tuple)) else x
        x = tuple(x) if isinstance(x, list) else x  # to tf.data a list is one tensor
        y = self._by_output(labels)
        if not weights:
            return x, y
        if self._schema.named_weights:
            return x, y, self._by_output(weights)
        return x, y, next(iter(weights.values()))

    def _by_output(self, values: dict[str, Any]) -> Any:
        """Values by output name in the structure of the model's outputs."""
        outputs = self._description.outputs
        struct = functional_tensors(self._model, "outputs")
        if is_nested(struct) and by_path(struct).keys() == values.keys():
            return from_paths(struct, values)
        if len(values) == 1 and (outputs is None or len(outputs) == 1) and not isinstance(struct, dict):
            return next(iter(values.values()))
        if outputs is None or isinstance(struct, dict):
            return values
        return tuple(values[name] for name in outputs if name in values)


def _floatx() -> tf.DType:
    return tf.as_dtype(keras.config.floatx())


def _row_of_zeros(values: Array) -> Array:
    return np.full((1, *values.shape[1:]), b"" if values.dtype.kind in "OSU" else 0, values.dtype)


def _padded_spec(x: Any) -> Any:
    """The spec of inputs in which each ragged one is given as padded rows and their lengths."""
    if isinstance(x, tf.RaggedTensorSpec):
        return {_VALUES: tf.TensorSpec(x.shape, x.dtype), _LENGTHS: tf.TensorSpec([None], tf.int64)}
    if isinstance(x, dict):
        return {name: _padded_spec(value) for name, value in x.items()}
    return tuple(map(_padded_spec, x)) if isinstance(x, tuple) else x


def as_tensors(element: Any) -> Any:
    """A batch of arrays as the model takes it."""
    return _with_ragged(tf.nest.map_structure(tf.constant, element))


def _with_ragged(x: Any) -> Any:
    """Inputs with ragged tensors in place of padded rows and their lengths."""
    if isinstance(x, dict):
        if set(x) == {_VALUES, _LENGTHS}:
            return tf.RaggedTensor.from_tensor(x[_VALUES], lengths=x[_LENGTHS])
        return {name: _with_ragged(value) for name, value in x.items()}
    return tuple(map(_with_ragged, x)) if isinstance(x, tuple) else x
