"""What tfos_ml itself uses of a node, beside what ``NodeContext`` gives to train functions."""

from __future__ import annotations

import os
from collections.abc import Mapping
from typing import Any

from tfos_ml.data.spool import room_for
from tfos_ml.protocol import messages
from tfos_ml.protocol.channel import Channel
from tfos_ml.protocol.pickling import pickle_value
from tfos_ml.protocol.position import Position
from tfos_ml.worker.data_feed import DataFeed
from tfos_ml.worker.inbox import Inbox
from tfos_ml.worker.log_upload import LogUpload
from tfos_ml.worker.model_exports import ModelExports
from tfos_ml.worker.node_rows import NodeRows
from tfos_ml.worker.row_store import RowStore


class NodeInternals:
    """One node of the cluster, as tfos_ml's own train functions see it."""

    def __init__(self, start: messages.Start, channel: Channel, inbox: Inbox):
        self._channel, self._inbox = channel, inbox
        self._directory = start.directory
        self.settings = start.settings
        self.schema = start.schema
        self.program_files = start.files
        self.rows = NodeRows(start, start.schema, inbox, channel)
        self.exports = ModelExports(start, start.schema, self.rows, channel)
        self.feeds: dict[str, DataFeed] = {}  # by queue
        self.log_upload = LogUpload(start.log_dir, start.settings.log_store)  # of event files that are to be copied
        self.worker_addresses = [_address(label, start.cluster_spec) for label in start.feed_labels]  # by rank
        self.secret = bytes.fromhex(start.secret)  # that only the nodes of the run know
        self.reads = ""  # what training rows are read with
        self.coordinates: list[str] = []  # ways to work together that TensorFlow does not know of

    def row_store(self, stream: str) -> RowStore:
        """All rows of this node of one stream, ``"train"`` or ``"validation"``."""
        return self.rows.store(stream)

    def shuffle_notice(self) -> str:
        """A warning if ``shuffle=True`` does not permute all rows."""
        return self.rows.shuffle_notice()

    def should_save(self) -> bool:
        """Whether an executor of the fit leaves, so that a checkpoint should be written."""
        return self._inbox.preempted

    def prepare_export(self, model: Any, inputs: Mapping[str, Any]) -> str:
        """The reason why the chief cannot export a model with these inputs; empty if it can."""
        return self.exports.prepare(model, inputs)

    def note_position(self, position: Position, is_saved: bool) -> None:
        """Report to the driver how far the training, or a complete checkpoint, is; from any thread."""
        self._channel.send(messages.Trained(position, is_saved))

    def close(self, value: Any = None) -> None:
        """Send the results of feeds and, if wanted, the return value of the train function."""
        for feed in self.feeds.values():
            feed.close()
        if self.settings.returns:
            path = os.path.join(self._directory, "returned.pkl")
            with room_for("what the train function returned", self._directory), open(path, "wb") as file:
                file.write(pickle_value(value))
            self._channel.send(messages.Results(path))


def _address(label: str, cluster_spec: dict[str, list[str]]) -> str:
    job_name, _, index = label.partition(":")
    return cluster_spec[job_name][int(index)]
