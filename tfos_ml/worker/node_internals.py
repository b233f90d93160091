"""What tfos_ml itself uses of a node, beside what ``NodeContext`` gives to train functions."""

from __future__ import annotations

import os
import time
from collections.abc import Mapping
from typing import Any

from tfos_ml.data.spool import full_disk_as_error
from tfos_ml.protocol import messages
from tfos_ml.protocol.channel import Channel
from tfos_ml.protocol.pickling import pickle_value
from tfos_ml.protocol.training_position import Position
from tfos_ml.worker.data_feed import DataFeed
from tfos_ml.worker.inbox import Inbox
from tfos_ml.worker.log_upload import LogUpload
from tfos_ml.worker.node_rows import NodeRows


class NodeInternals:
    """One node of the cluster, as tfos_ml's own train functions see it."""

    def __init__(self, start: messages.Start, channel: Channel, inbox: Inbox):
        self._channel, self._inbox = channel, inbox
        self._directory, self._is_chief = start.directory, start.is_chief
        self._prepared: tuple[Any, Any] = (None, None)  # a model, and a Serving or NotServable
        self.settings = start.settings
        self.schema = start.schema
        self.program_files = start.files
        self.rows = NodeRows(start, start.schema, inbox, channel)
        self.feeds: dict[str, DataFeed] = {}  # by queue
        self.log_upload = LogUpload(start.log_dir, start.settings.log_store)  # of event files that are to be copied
        self.worker_addresses = [_address(label, start.cluster_spec) for label in start.feed_labels]  # by rank
        self.secret = bytes.fromhex(start.secret)  # that only the nodes of the run know
        self.reads = ""  # what training rows are read with
        self.coordinates: list[str] = []  # ways to work together that TensorFlow does not know of

    def should_save(self) -> bool:
        """Whether an executor of the fit leaves, so that a checkpoint should be written."""
        return self._inbox.preempted

    def prepare_export(self, model: Any, inputs: Mapping[str, Any]) -> str:
        """The reason why the chief cannot export a model with these inputs; empty if it can."""
        from tfos_ml.worker.export import prepare

        if self._is_chief:
            self._prepared = model, prepare(model, inputs, self.settings.signature_def_key)
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
        from tfos_ml.worker.export import export_saved_model
        from tfos_ml.worker.prediction_spec import write_prediction_spec

        path, key = os.path.join(self._directory, "saved_model"), self.settings.signature_def_key
        shapes = self.rows.store("train").shapes if self.rows.are_held else None
        began = time.monotonic()
        with full_disk_as_error("the model", self._directory):
            if signatures is None and self._prepared[0] is model:
                self._prepared[1].write(path)
            else:
                export_saved_model(model, path, self.schema, shapes, signatures, key)
                write_prediction_spec(path, model, key, signatures is not None)
        self._channel.send(messages.Summary({"export_seconds": round(time.monotonic() - began, 3)}))
        return path

    def note_position(self, position: Position, is_saved: bool) -> None:
        """Report to the driver how far the training, or a complete checkpoint, is; from any thread."""
        self._channel.send(messages.Trained(position, is_saved))

    def close(self, value: Any = None) -> None:
        """Send the results of feeds and, if wanted, the return value of the train function."""
        for feed in self.feeds.values():
            feed.close()
        if self.settings.returns:
            path = os.path.join(self._directory, "returned.pkl")
            with full_disk_as_error("what the train function returned", self._directory), open(path, "wb") as file:
                file.write(pickle_value(value))
            self._channel.send(messages.Results(path))


def _address(label: str, cluster_spec: dict[str, list[str]]) -> str:
    job_name, _, index = label.partition(":")
    return cluster_spec[job_name][int(index)]
