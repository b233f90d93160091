"""A description of a model in one line, without reading or computing anything."""

from __future__ import annotations

from typing import TYPE_CHECKING

from tfos_ml.common.redact import redact
from tfos_ml.inference import saved_model

if TYPE_CHECKING:
    from tfos_ml.stages.tf_model import TFModel


def model_repr(model: TFModel) -> str:
    """``TFModel(uid, inputs, outputs, size, where from)``, as far as they are known."""
    parts = [model.uid]
    uri = model._get("exportDir")
    archive = model._archives.get(uri)
    if archive is not None:
        content = archive.member(saved_model.SIGNATURE_FILE)
        signature = content and saved_model.parse_signature(content, model._get("signatureDefKey"))
        if signature:
            parts.append(f"inputs={saved_model.shown_tensors(signature.inputs)}")
            parts.append(f"outputs={saved_model.shown_tensors(signature.outputs)}")
        parts.append(f"{archive.file.size / 1e6:.3g} MB")
    elif uri is None:
        parts.append("no SavedModel")
    if model.hasSummary:
        parts.append(f"fitted on {model.summary.rows:,} rows in {model.summary.seconds:.1f} s")
    if uri is not None:
        parts.append(f"exportDir={redact(uri)!r}")
    return f"{type(model).__name__}({', '.join(parts)})"
