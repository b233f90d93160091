"""Exports models of a train function, and passes them to the supervisor."""

from __future__ import annotations

import os
import time
from collections.abc import Mapping
from typing import Any

from tfos_ml.data.schema import FeedSchema
from tfos_ml.data.spool import room_for
from tfos_ml.protocol import messages
from tfos_ml.protocol.channel import Channel
from tfos_ml.worker.node_rows import NodeRows


class ModelExports:
    """The model that one node exports; `schema` has the columns of the inputs."""

    def __init__(self, start: messages.Start, schema: FeedSchema, rows: NodeRows, channel: Channel):
        self._is_chief = start.is_chief
        self._settings = start.settings
        self._directory = start.directory
        self._schema = schema
        self._rows = rows
        self._channel = channel
        self._prepared: tuple[Any, Any] = (None, None)  # a model, and a Serving or Unserved

    def prepare(self, model: Any, inputs: Mapping[str, Any]) -> str:
        """The reason why the chief cannot export a model with these inputs; empty if it can."""
        from tfos_ml.worker.export import prepare

        if self._is_chief:
            self._prepared = model, prepare(model, inputs, self._settings.signature_def_key)
        return str(getattr(self._prepared[1], "reason", ""))

    def export(self, model: Any, signatures: Any = None) -> str | None:
        """Export the final model; returns its directory on the chief, else None."""
        from tfos_ml.worker.export import is_distributed

        if not self._is_chief and not is_distributed(model):
            return None
        path = self._write(model, signatures)
        if not self._is_chief:
            return None
        self._channel.send(messages.Exported(path))
        return path

    def _write(self, model: Any, signatures: Any) -> str:
        from tfos_ml.worker.compiled_losses import write_prediction_spec
        from tfos_ml.worker.export import export_saved_model

        path = os.path.join(self._directory, "saved_model")
        shapes = self._rows.store("train").shapes if self._rows.are_held else None
        began = time.monotonic()
        with room_for("the model", self._directory):
            if signatures is None and self._prepared[0] is model:
                self._prepared[1].write(path)
            else:
                export_saved_model(model, path, self._schema, shapes, signatures, self._settings.signature_def_key)
                write_prediction_spec(path, model, self._settings.signature_def_key, signatures is not None)
        self._channel.send(messages.Summary({"export_seconds": round(time.monotonic() - began, 3)}))
        return path
