"""The losses of a compiled model, and what they say about the outputs of its SavedModel."""

from __future__ import annotations

import dataclasses
import json
import sys
from pathlib import Path
from typing import Any

from tfos_ml.inference.prediction import PREDICTION_SPEC_FILE, LossInfo, PredictionSpec, prediction_spec_of
from tfos_ml.inference.saved_model import SIGNATURE_FILE, parse_signature
from tfos_ml.worker.export import has_predict_step
from tfos_ml.worker.model_tensors import by_path, declared_outputs

_PACKAGES = ("keras", "tf_keras")


def compiled_losses(model: Any) -> dict[str, LossInfo]:
    """The losses that a model of either Keras was compiled with, by output; a single one for all by ``""``."""
    package = _package_of(model)
    loss = getattr(model, "loss", None)
    if isinstance(loss, dict):
        by_output = by_path(loss)
    elif isinstance(loss, (list, tuple)):
        by_output = dict(zip(declared_outputs(model) or (), loss, strict=False))
    else:
        by_output = {"": loss}
    return {str(name): _loss_info(of_output, package) for name, of_output in by_output.items() if of_output is not None}


def _package_of(model: Any) -> str | None:
    """The package of a model, ``keras`` or ``tf_keras``."""
    for name in _PACKAGES:
        model_class = getattr(sys.modules.get(name), "Model", None)
        if model_class is not None and isinstance(model, model_class):
            return name
    return None


def _loss_info(loss: Any, package: str | None) -> LossInfo:
    losses = sys.modules[package or "keras"].losses
    if isinstance(loss, str):
        loss = losses.get(loss)
    is_object = isinstance(loss, losses.Loss)
    name = type(loss).__name__ if is_object else getattr(loss, "__name__", repr(loss))
    module = type(loss).__module__ if is_object else getattr(loss, "__module__", "")
    options = _config(loss) if is_object else {}
    from_logits = bool(options.get("from_logits", getattr(loss, "from_logits", False)))
    reduction = loss.reduction if is_object else "sum_over_batch_size"
    ignored = options.get("ignore_class", getattr(loss, "ignore_class", None))
    return LossInfo(name, from_logits, reduction, str(module).split(".")[0] in _PACKAGES, ignored)


def _config(loss: Any) -> dict[str, Any]:
    try:
        return dict(loss.get_config())
    except Exception:  # of a class of the user's
        return {}


def write_prediction_spec(path: str, model: Any, key: str, has_own_signatures: bool) -> None:
    """Write the meaning of the only output of an exported model beside its SavedModel.

    The loss of a compiled model of Keras says whether it is classes, unless the model has a ``predict_step`` or
    signatures of its own.
    """
    spec = PredictionSpec()
    if _package_of(model) is not None and not has_own_signatures and not has_predict_step(model):
        losses, outputs = compiled_losses(model), _outputs(path, key)
        if len(losses) == len(outputs) == 1:
            spec = prediction_spec_of(next(iter(losses.values())), outputs[0])
    Path(path, PREDICTION_SPEC_FILE).write_text(json.dumps(dataclasses.asdict(spec)))


def _outputs(path: str, key: str) -> list[Any]:
    file = Path(path, SIGNATURE_FILE)
    signature = parse_signature(file.read_bytes(), key) if file.exists() else None
    return list(signature.outputs.values()) if signature else []
