"""Whether columns fit a Keras model, judged by names and types."""

from __future__ import annotations

import dataclasses
from collections.abc import Mapping, Sequence
from typing import TYPE_CHECKING

from tfos_ml import errors
from tfos_ml.data.attributes import check_vector_width, class_count
from tfos_ml.data.casting import TensorInfo, reshapes, row_shape
from tfos_ml.data.schema import ColumnConstraint, ColumnSpec, FeedSchema
from tfos_ml.inference.prediction import flat_label_shape, label_constraint, shown_shape
from tfos_ml.inference.saved_model import shown_tensors

if TYPE_CHECKING:
    from pyspark.sql.types import StructType

    from tfos_ml.keras.model.inspection import ModelDescription


def check_columns(columns: FeedSchema, description: ModelDescription) -> None:
    """Raise if a column can never become its input, label or weight of the model.

    ``SignatureError`` if names do not match, or a column of text is bound to numbers; ``ColumnNotFoundError`` if there
    is no label and the loss needs one; ``ColumnTypeError`` if labels or weights are not numbers.
    """
    _check_features([columns.columns[i] for i in columns.of("feature")], description, columns.named_features)
    labels = [columns.columns[i] for i in columns.of("label")]
    weights = [columns.columns[i] for i in columns.of("weight")]
    if not labels and description.losses and not description.has_own_loss:
        raise errors.ColumnNotFoundError(
            "There is no label column, but the model is compiled with a loss. Set labelCol or labelMapping to columns "
            "that the DataFrame has."
        )
    for spec in labels:
        if spec.is_text:
            raise errors.ColumnTypeError(
                f"Label column '{spec.column}' holds {spec.dtype}; a loss needs numbers. Index it first, for instance "
                "with pyspark.ml.feature.StringIndexer."
            )
    for spec in weights:
        _check_weight(spec, [label for label in labels if label.name == spec.name] or labels)
    if description.outputs is None:
        return
    _check_names("label", labels if columns.named_labels else [], description.outputs)
    _check_names("weight", weights if columns.named_weights else [], description.outputs)
    if len(description.outputs) > 1 and labels and not columns.named_labels:
        raise errors.SignatureError(
            f"The model has several outputs, {shown_tensors(description.outputs)}. Name the label column of each with "
            "labelMapping."
        )


def _check_weight(spec: ColumnSpec, labels: list[ColumnSpec]) -> None:
    """Raise ``ColumnTypeError`` unless the column has a number a row, or one for each position of its labels."""
    levels = min((label.ndim for label in labels), default=0)
    if not spec.is_text and spec.ndim <= levels:
        return
    held = f"arrays of {spec.ndim} level(s)" if spec.ndim else spec.dtype
    wanted = (
        f"one number a row, or an array of at most {levels} level(s), as in the label" if levels else "one number a row"
    )
    raise errors.ColumnTypeError(
        f"Weight column '{spec.column}' holds {held}; a weight is {wanted}. Cast it, or choose another."
    )


def check_class_weight(spec: ColumnSpec, row: tuple[int | None, ...], description: ModelDescription) -> None:
    """Raise ``ParamError`` if label rows of this shape do not have one class each, and so no weight of a class."""
    name = spec.name if spec.name in (description.outputs or {}) else next(iter(description.outputs or {}), spec.name)
    loss, output = description.loss_of(name), (description.outputs or {}).get(name)
    if not row or row == (1,):
        return
    is_one_hot = loss is None or not loss.key.startswith(("binary", "sparse"))
    may_be_one = row[0] is None and (output is None or tuple(output.shape or ())[1:] in ((1,), (None,)))
    if len(row) == 1 and (is_one_hot or may_be_one):
        return
    raise errors.ParamError(
        f"classWeight gives rows the weight of their class, but rows of label column '{spec.column}' have the shape "
        f"{shown_shape(row)}, with a label at each position. Expected one class per row: a number, or one-hot with a "
        "categorical cross-entropy. Set weightCol to a column of weights, and unset classWeight."
    )


def constrain(columns: FeedSchema, description: ModelDescription) -> FeedSchema:
    """The columns with the constraints of the model on their rows; supervisors check them.

    Raises ``ShapeError`` if rows of a label column can never fit.
    """
    constrained = tuple(
        dataclasses.replace(c, constraint=_constraint(c, columns, description)) for c in columns.columns
    )
    return dataclasses.replace(columns, columns=constrained)


def _constraint(spec: ColumnSpec, columns: FeedSchema, description: ModelDescription) -> ColumnConstraint:
    if spec.role == "feature":
        name, tensor = _input_of(spec, description)
        if tensor is None:
            return ColumnConstraint()
        return ColumnConstraint(f"the model's input '{name}' is {tensor}", row_shape(spec.ndim, tensor))
    if spec.role == "label" and description.outputs is not None:
        name = spec.name if columns.named_labels else next(iter(description.outputs))
        return label_constraint(spec, description.loss_of(name), name, description.outputs[name])
    return ColumnConstraint()


def shapes_for_losses(
    columns: FeedSchema, shapes: Sequence[tuple[int | None, ...]], description: ModelDescription
) -> list[tuple[int | None, ...]]:
    """The shapes of rows as losses take them: flat labels get that of the output, and flat weights its positions."""
    given, outputs = list(shapes), description.outputs or {}
    for i in columns.of("label"):
        name = columns.columns[i].name if columns.named_labels else next(iter(outputs), "")
        output = outputs.get(name)
        flat = None if output is None else flat_label_shape(len(shapes[i]), description.loss_of(name), output)
        if output is None or flat is None or not reshapes(shapes[i], flat):
            continue
        given[i], positions = flat, (output.shape or ())[1:-1]
        for j in columns.of("weight"):
            is_its_own = not columns.named_weights or columns.columns[j].name == name
            if is_its_own and len(shapes[j]) == 1 and reshapes(shapes[j], positions):
                given[j] = positions
    return given


def _input_of(spec: ColumnSpec, description: ModelDescription) -> tuple[str, TensorInfo | None]:
    """The model's input that a feature column becomes: the one of its name, else the only one."""
    inputs = description.inputs
    if not inputs:
        return spec.name, None
    name = spec.name if spec.name in inputs else next(iter(inputs))
    return name, inputs[name]


def check_attributes(given: StructType, columns: FeedSchema, description: ModelDescription) -> None:
    """Raise if Spark ML's attribute metadata of the columns does not fit the model.

    ``ShapeError`` if vectors have another width than the model's input, ``LabelRangeError`` if there are more classes
    than the model has.
    """
    for spec in columns.columns:
        if spec.role == "feature":
            name, tensor = _input_of(spec, description)
            if tensor is not None:
                check_vector_width(given, dataclasses.replace(spec, name=name), tensor)
        elif spec.role == "label":
            _check_classes(spec, class_count(given, spec.column))


def _check_classes(spec: ColumnSpec, count: int | None) -> None:
    takes = 2 if spec.constraint.probabilities else spec.constraint.classes
    if count is None or takes is None or count <= takes:
        return
    change = (
        f"Give the last layer {count} units and compile 'sparse_categorical_crossentropy'"
        if spec.constraint.probabilities
        else f"Give the last layer {count} units"
    )
    raise errors.LabelRangeError(
        f"Label column '{spec.column}' has {count} classes (from the metadata of StringIndexer), but "
        f"{spec.constraint.tensor} and has {takes} classes. {change}. If you have filtered out rows of other "
        "classes since, index the labels again."
    )


def narrow_vectors(columns: FeedSchema, description: ModelDescription) -> FeedSchema:
    """Feature vectors as float32, unless the model takes float64: half the bytes to send."""
    if "float64" in {t.dtype for t in (description.inputs or {}).values()}:
        return columns
    narrowed = tuple(
        dataclasses.replace(c, dtype="float32") if c.is_vector and c.role == "feature" else c for c in columns.columns
    )
    return dataclasses.replace(columns, columns=narrowed)


def check_is_single_input(description: ModelDescription) -> None:
    """Raise ``SignatureError`` if the model has several inputs, so that each needs a column."""
    inputs = description.inputs
    if inputs is not None and len(inputs) > 1:
        example = {f"column {i}": name for i, name in enumerate(inputs, 1)}
        raise errors.SignatureError(
            f"The model has several inputs, {shown_tensors(inputs)}. Name the column of each with inputMapping, for "
            f"instance inputMapping={example}."
        )


def _check_features(features: list[ColumnSpec], description: ModelDescription, is_mapped: bool) -> None:
    inputs = description.inputs
    if inputs is None:
        return
    if not is_mapped:
        check_is_single_input(description)
    names = [c.name for c in features]
    is_one = len(names) == len(inputs) == 1
    if not is_one and sorted(names) != sorted(inputs):
        raise errors.SignatureError(
            f"inputMapping must name each input of the model once. Inputs: {shown_tensors(inputs)}. "
            f"Mapped: { {c.column: c.name for c in features} }"
        )
    for c in features:
        tensor = next(iter(inputs.values())) if is_one else inputs[c.name]
        if c.is_text != (tensor.dtype == "string"):
            raise errors.SignatureError(
                f"Feature column '{c.column}' holds {c.dtype}, but the model's input expects {tensor}. Bind another "
                "column, or cast it."
            )
        if not tensor.ragged and row_shape(c.ndim, tensor) is None:
            raise errors.ShapeError(
                f"Feature column '{c.column}' has {c.ndim} level(s) of arrays, which cannot become the model's input, "
                f"{tensor}. Bind another column (pyspark.ml.feature.VectorAssembler makes one of several), or reshape "
                "it."
            )


def _check_names(role: str, specs: list[ColumnSpec], outputs: Mapping[str, TensorInfo]) -> None:
    unknown = [s.name for s in specs if s.name not in outputs]
    if unknown:
        raise errors.SignatureError(
            f"{role}Mapping names outputs {unknown}, but the model's are {shown_tensors(outputs)}."
        )
