"""Finds out what the driver must know about a Keras model before any job starts.

Runs on the driver: in the user's process if the user passes a plain model, else in a fresh process
(``python -m tfos_ml.keras.model.inspection <directory>``), which reveals models that only the user's process can
rebuild.
"""

from __future__ import annotations

import json
import os
import sys
import traceback
from collections.abc import Mapping, Sequence
from dataclasses import asdict, dataclass, field
from pathlib import Path
from typing import Any

from tfos_ml.common.interpreter import add_working_directory
from tfos_ml.data.casting import TensorInfo
from tfos_ml.errors import ModelError, TfosMlError
from tfos_ml.excerpt import message_excerpt, traceback_excerpt
from tfos_ml.inference.prediction import LossInfo, PredictionSpec, prediction_spec_of
from tfos_ml.inference.tensorflow_import import import_tensorflow, without_collections
from tfos_ml.keras import privates
from tfos_ml.keras.model.overview import ModelOverview, overview

REQUEST, ROWS, RESPONSE, ADAPTED = "request.pkl", "rows.arrow", "response.json", "adapted.zip"


@dataclass(frozen=True)
class ModelDescription:
    """The description of a compiled model."""

    inputs: dict[str, TensorInfo] | None  # by name, in the model's order; None if the model is not built
    outputs: dict[str, TensorInfo] | None
    losses: dict[str, LossInfo]  # by output name; a loss for all outputs under ""
    adaptable: list[str] = field(default_factory=list)  # preprocessing layers that have ``adapt``
    not_adapted: list[str] = field(default_factory=list)  # those of them that still need it
    activations: dict[str, str] = field(default_factory=dict)  # by output name, if the layer of that name is a Dense
    overview: ModelOverview = field(default_factory=ModelOverview)
    has_call: bool = True  # whether the model defines ``call``
    has_predict_step: bool = False  # whether it defines one, whose results are exported, and may not be `outputs`
    idle_scalers: list[str] = field(default_factory=list)  # Normalization layers that change nothing: not adapted?
    has_own_loss: bool = False  # whether it defines ``train_step`` or ``compute_loss``, which may not use `losses`

    @property
    def can_be_served(self) -> bool:
        """Whether the model defines what ``predict`` computes."""
        return self.has_call or self.has_predict_step

    @property
    def prediction_spec(self) -> PredictionSpec:
        """What the only output means, as far as the loss says it."""
        if self.has_predict_step:  # it returns what the user wants
            return PredictionSpec()
        if len(self.outputs or ()) > 1 or len(self.losses) != 1:
            return PredictionSpec()
        (loss,) = self.losses.values()
        return prediction_spec_of(loss, next(iter(self.outputs.values())) if self.outputs else None)

    def loss_of(self, output: str) -> LossInfo | None:
        """The loss that an output and its labels have to fit; None if the model computes its loss itself."""
        return None if self.has_own_loss else self.losses.get(output, self.losses.get(""))

    def check_adapted(self, names: Sequence[str]) -> None:
        """Raise ``ModelError`` unless `layers` exist and include all that must be adapted."""
        unknown = [name for name in names if name not in self.adaptable]
        if unknown:
            raise ModelError(f"adaptLayers names {unknown}, but the model's preprocessing layers are {self.adaptable}.")
        missing = [name for name in self.not_adapted if name not in names]
        if missing:
            raise ModelError(
                f"Preprocessing layers {missing} have not been adapted. Set adaptLayers={missing} to adapt them on the "
                "training rows, or adapt them (or give them their vocabulary or statistics) yourself."
            )


def describe(model: Any) -> ModelDescription:
    """Describe a model; raises ``ModelError`` if it is not a compiled Keras 3 model that KerasEstimator can train."""
    from tfos_ml.worker.export import has_call, has_predict_step
    from tfos_ml.worker.model_tensors import declared_inputs, declared_outputs
    from tfos_ml.worker.prediction_spec import compiled_losses

    _check_kind(model)
    _check_compiled(model)
    layers, losses = _layers(model), compiled_losses(model)
    _check_batch_size(declared_inputs(model) or {}, layers)
    return ModelDescription(
        declared_inputs(model),
        declared_outputs(model),
        losses,
        [layer.name for layer in layers if hasattr(layer, "adapt")],
        [layer.name for layer in layers if _needs_adapt(layer)],
        _activations(model),
        overview(model, {output: loss.name for output, loss in losses.items()}),
        has_call(model),
        has_predict_step(model),
        [layer.name for layer in layers if _is_idle_scaler(layer)],
        _has_own_loss(model),
    )


def _check_kind(model: Any) -> None:
    import keras

    if any(c.__module__.startswith("tf_keras") for c in type(model).__mro__):
        raise ModelError(
            "The model is one of tf_keras (Keras 2). KerasEstimator trains Keras 3 models; train this one with "
            "TFEstimator, where tf.distribute strategies work with tf_keras (nodeEnv={'TF_USE_LEGACY_KERAS': '1'})."
        )
    if not isinstance(model, keras.Model):
        raise ModelError(f"model must be, or return, a compiled keras.Model. Received: {type(model)!r}")
    if not model.compiled or model.optimizer is None:
        raise ModelError(
            f"The model {model.name!r} is not compiled. Call model.compile(optimizer=..., loss=...) before you pass "
            "it, or in the function that returns it."
        )


def _check_batch_size(inputs: Mapping[str, TensorInfo], layers: list[Any]) -> None:
    """Raise if a model accepts batches of one size only, since the last one of an epoch may be smaller."""
    fixed = [f"input {name!r} has a batch of {t.shape[0]}" for name, t in inputs.items() if t.shape and t.shape[0]]
    stateful = [f"layer {layer.name!r} is stateful" for layer in layers if getattr(layer, "stateful", False) is True]
    if fixed or stateful:
        raise ModelError(
            f"The model takes batches of one size only: {', '.join(fixed + stateful)}. The last step of an epoch has "
            "the rows that are left, and transform scores blocks of any number of rows. Build it with Input(shape=...) "
            "in place of batch_shape=, and stateful=False; or use TFEstimator."
        )


def _check_compiled(model: Any) -> None:
    from tfos_ml.worker.model_tensors import declared_outputs, declared_tensors

    outputs = declared_tensors(model, "outputs")
    if outputs is None:
        return
    try:
        privates.check_compiled(model, outputs[0] if isinstance(outputs, list) and len(outputs) == 1 else outputs)
    except (KeyError, TypeError, ValueError) as error:
        raise ModelError(
            f"Keras refuses the losses or metrics that the model is compiled with: {error}. Its outputs are "
            f"{list(declared_outputs(model) or ())}."
        ) from None


def _layers(model: Any) -> list[Any]:
    """All layers of a model, itself included, but for those that layers with ``adapt`` keep, and adapt themselves."""
    layers = privates.all_layers(model)
    kept = [inner for layer in layers if hasattr(layer, "adapt") for inner in privates.all_layers(layer)[1:]]
    return [layer for layer in layers if all(layer is not inner for inner in kept)]


def _activations(model: Any) -> dict[str, str]:
    """The activations of the Dense layers that outputs are named after."""
    import keras

    from tfos_ml.worker.model_tensors import declared_outputs

    names = declared_outputs(model) or ()
    layers = [layer for layer in getattr(model, "layers", ()) if layer.name in names]
    dense = [layer for layer in layers if type(layer) is keras.layers.Dense]
    return {layer.name: getattr(layer.activation, "__name__", "") for layer in dense}


def _has_own_loss(model: Any) -> bool:
    import keras

    return any(getattr(type(model), name) is not getattr(keras.Model, name) for name in ("train_step", "compute_loss"))


def _needs_adapt(layer: Any) -> bool:
    import keras

    if isinstance(layer, (keras.layers.StringLookup, keras.layers.IntegerLookup, keras.layers.TextVectorization)):
        return not privates.vocabulary_of(layer)
    return isinstance(layer, keras.layers.Discretization) and layer.bin_boundaries is None


def _is_idle_scaler(layer: Any) -> bool:
    """Whether it is a Normalization that changes nothing: never adapted, or adapted to normalized rows."""
    import keras
    import numpy as np

    if not isinstance(layer, keras.layers.Normalization) or layer.input_mean is not None:
        return False
    if not layer.built:
        return True
    mean, variance = np.asarray(layer.adapt_mean), np.asarray(layer.adapt_variance)
    return bool((mean == 0).all() and (variance == 1).all())


def answer(folder: Path) -> dict[str, Any]:
    """Describe the model of the request in `folder`, and adapt its layers."""
    import cloudpickle

    with open(folder / REQUEST, "rb") as file:
        source, adapted, schema = cloudpickle.load(file)
    model = source.build_for_process()
    description = describe(model)
    if adapted:
        from tfos_ml.keras.model import adapt

        description.check_adapted(adapted)
        adapt.adapt_layers(model, adapted, adapt.read_inputs(folder / ROWS, schema, model))
        (folder / ADAPTED).write_bytes(adapt.pack_state(model, adapted))
    return {"description": asdict(description)}


def main(arguments: Sequence[str]) -> int:
    """Write the answer, or the error, into the folder that is the last argument."""
    folder = Path(arguments[-1])
    import_tensorflow()
    with without_collections():
        import keras  # noqa: F401
    add_working_directory()  # for what the model needs
    try:
        response = answer(folder)
    except TfosMlError as error:
        response = {"error": str(error)}
    except Exception as error:
        message = f"The model cannot be made in a fresh process: {type(error).__name__}: {message_excerpt(str(error))}"
        trace = traceback_excerpt("".join(traceback.format_exception(error)), message)
        response = {"error": f"{message}\n\n{trace}".rstrip()}
    (folder / RESPONSE).write_text(json.dumps(response))
    return 0


if __name__ == "__main__":
    main(sys.argv[1:])
    sys.stdout.flush()
    os._exit(0)  # TensorFlow's threads must not crash an exit whose result is known
