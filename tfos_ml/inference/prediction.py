"""Interprets the output of a model for Spark ML: as classes, as a number, or just as a tensor.

========================  ==========================================================
Compiled loss             Columns
========================  ==========================================================
categorical crossentropy  rawPrediction and probability (vectors), prediction (double)
binary crossentropy,      the same; one unit ``p`` becomes ``[1 - p, p]``
one unit
anything else             prediction: double for ``(batch,)`` and ``(batch, 1)``,
                          else an array
========================  ==========================================================

With ``from_logits``, the raw prediction is the logits (``[-z, z]`` of one unit ``z``), and the probability is their
softmax (or sigmoid). Without it, the probability is the output of the model, and values that cannot be probabilities
are an error. The raw prediction is then the output, too; of one unit it is the margin, as in Spark ML: ``z`` is the
logit of ``p``.
"""

from __future__ import annotations

import math
from dataclasses import dataclass

import numpy as np

from tfos_ml.data.casting import TensorInfo
from tfos_ml.data.schema import Array, ColumnConstraint, ColumnSpec
from tfos_ml.errors import ModelError, ShapeError

PREDICTION_SPEC_FILE = "tfos_ml_prediction.json"  # beside a SavedModel of KerasEstimator
BINARY, MULTICLASS, PLAIN = "binary", "multiclass", "plain"
_BINARY_LOSSES = {"binarycrossentropy", "binaryfocalcrossentropy"}
_MULTICLASS_LOSSES = {
    "categoricalcrossentropy",
    "sparsecategoricalcrossentropy",
    "categoricalfocalcrossentropy",
    "categoricalgeneralizedcrossentropy",
}
_OTHER_LABELS = {
    "ctc",
    "circle",
    "categoricalgeneralizedcrossentropy",
}  # whose labels have neither the shape of outputs nor that of classes
_ROUNDING = 1e-3  # about the rounding error of a probability in float16
_ONE_HOT_LOSSES = _MULTICLASS_LOSSES - {"sparsecategoricalcrossentropy", "categoricalgeneralizedcrossentropy"}


@dataclass(frozen=True)
class LossInfo:
    """A compiled loss."""

    name: str  # of its class or function
    from_logits: bool = False
    reduction: str | None = "sum_over_batch_size"  # that of keras.losses.Loss
    from_keras: bool = True  # whether it is one of Keras' own
    ignore_class: int | None = None  # the label that stands for no class

    @property
    def key(self) -> str:
        """The name without case and underscores."""
        return self.name.replace("_", "").lower()


@dataclass(frozen=True)
class PredictionSpec:
    """The meaning of the only output of a model."""

    kind: str = PLAIN  # or BINARY, MULTICLASS
    from_logits: bool = False

    @property
    def is_classifier(self) -> bool:
        """Whether the output is probabilities or logits of classes."""
        return self.kind != PLAIN

    def explains(self, output: TensorInfo) -> bool:
        """Whether the output is interpreted as classes or as one number a row, and not just as a tensor."""
        is_number = output.shape is not None and output.dtype != "string" and output.shape[1:] in ((), (1,))
        return self.is_classifier or is_number


def prediction_spec_of(loss: LossInfo | None, output: TensorInfo | None) -> PredictionSpec:
    """The meaning of the output of a model with one output and one loss."""
    if loss is None or not loss.from_keras:
        return PredictionSpec()
    rank = None if output is None or output.shape is None else len(output.shape)
    width = output.shape[-1] if output is not None and output.shape else None
    if loss.key in _MULTICLASS_LOSSES and rank in (None, 2):
        return PredictionSpec(MULTICLASS, loss.from_logits)
    if loss.key in _BINARY_LOSSES and (rank in (None, 1) or (rank == 2 and width == 1)):
        return PredictionSpec(BINARY, loss.from_logits)
    return PredictionSpec()


def label_constraint(label: ColumnSpec, loss: LossInfo | None, name: str, output: TensorInfo) -> ColumnConstraint:
    """The constraint that a loss puts on a column with the labels of an output.

    Raises ``ShapeError`` if no rows with as many levels of arrays fit.
    """
    if loss is None:
        return ColumnConstraint()
    tensor = f"output '{name}' is {output}, trained with {loss.name},"
    shape = _column_shape(label, loss, name, output)
    classes = output.shape[-1] if output.shape and len(output.shape) > 1 else None
    if loss.from_keras and loss.key == "sparsecategoricalcrossentropy" and classes:
        return ColumnConstraint(tensor, shape, classes, loss.ignore_class)
    return ColumnConstraint(tensor, shape, probabilities=loss.from_keras and loss.key in _BINARY_LOSSES)


def flat_label_shape(ndim: int, loss: LossInfo | None, output: TensorInfo) -> tuple[int, ...] | None:
    """The shape that flat rows of labels get, such as the pixels of an image; None if rows stay as they are."""
    wanted = _label_shape(loss, output)
    if loss is None or wanted is None or ndim != 1 or len(wanted) < 2 or None in wanted:
        return None
    if loss.key in _ONE_HOT_LOSSES:  # one number for each position is rather its class, and an error
        return None
    if loss.key != "sparsecategoricalcrossentropy" and wanted[1:] == (1,):  # Keras itself adds the last dimension
        return None
    return tuple(d or 0 for d in wanted)


def _label_shape(loss: LossInfo | None, output: TensorInfo) -> tuple[int | None, ...] | None:
    """The shape of a row's labels for an output; None if it is not known."""
    if loss is None or not loss.from_keras or output.shape is None or loss.key in _OTHER_LABELS:
        return None
    return output.shape[1:-1] if loss.key == "sparsecategoricalcrossentropy" else output.shape[1:]


def _column_shape(label: ColumnSpec, loss: LossInfo, name: str, output: TensorInfo) -> tuple[int | None, ...] | None:
    """The shape that rows of a label column must have, in which None is any length; None if it is not known."""
    wanted = _label_shape(loss, output)
    if wanted is None:
        return None
    has_indices = loss.key == "sparsecategoricalcrossentropy"
    if len(wanted) == label.ndim:
        return wanted
    if len(wanted) == label.ndim - 1:
        return (*wanted, 1)
    if not has_indices and wanted[label.ndim :] in ((1,), (None,)):
        return wanted[:-1]
    if (flat := flat_label_shape(label.ndim, loss, output)) is not None:
        return (math.prod(flat),)
    needs = "one class index per prediction" if has_indices else "labels like the output"
    hint = " (for class indices use sparse_categorical_crossentropy)" if loss.key in _ONE_HOT_LOSSES else ""
    raise ShapeError(
        f"Label column '{label.column}' has rows of shape {shown_shape((None,) * label.ndim)}, but output '{name}' is "
        f"{output}: {loss.name} needs {needs}: rows of shape {shown_shape(wanted)}{hint}."
    )


def shown_shape(shape: tuple[int | None, ...]) -> str:
    """Format a shape for messages."""
    return "(" + ", ".join("?" if d is None else str(d) for d in shape) + ")"


def classify(outputs: Array, prediction_spec: PredictionSpec, threshold: float) -> dict[str, Array]:
    """Raw prediction and probability, shape ``(batch, classes)``, and class, shape ``(batch,)``; all float64.

    The outputs have the shape ``(batch, classes)``; for a binary classifier ``(batch,)`` or ``(batch, 1)``. A binary
    classifier predicts class 1 above the threshold. Raises ``ModelError`` if the values must be probabilities but are
    not.
    """
    values = np.asarray(outputs, dtype=np.float64)
    if not prediction_spec.from_logits:
        _check_probabilities(values)
    if prediction_spec.kind == BINARY:
        values = values.reshape(len(values))
        is_logit = prediction_spec.from_logits
        margin, probability = (values, _sigmoid(values)) if is_logit else (_logit(values), values)
        raw = np.stack([-margin, margin], axis=1)
        both = np.stack([1 - probability, probability], axis=1)
        return {"raw": raw, "probability": both, "prediction": (probability > threshold).astype(np.float64)}
    probability = _softmax(values) if prediction_spec.from_logits else values
    return {"raw": values, "probability": probability, "prediction": values.argmax(axis=1).astype(np.float64)}


def _check_probabilities(values: Array) -> None:
    finite = values[np.isfinite(values)]
    if not finite.size:
        return
    low, high = float(finite.min()), float(finite.max())
    if low < -_ROUNDING or high > 1 + _ROUNDING:
        raise ModelError(
            f"The model returned values from {low:.4g} to {high:.4g}, but its loss expects probabilities. End the "
            "model with a softmax or sigmoid, or compile it with from_logits=True, and fit again; or set outputMapping "
            "to get the outputs as they are."
        )


def _sigmoid(values: Array) -> Array:
    small = np.exp(-np.abs(values))
    return np.where(values >= 0, 1 / (1 + small), small / (1 + small))


def _logit(values: Array) -> Array:
    """The inverse of the sigmoid; finite, as 0 and 1 are rounded probabilities."""
    tiny = np.finfo(np.float64).eps
    inside = np.clip(values, tiny, 1 - tiny)
    return np.log(inside) - np.log1p(-inside)


def _softmax(values: Array) -> Array:
    powers = np.exp(values - values.max(axis=1, keepdims=True))
    return powers / powers.sum(axis=1, keepdims=True)
