"""Reads reports from ``modelDir``, where nodes leave them if they cannot reach this client of Spark Connect."""

from __future__ import annotations

import logging
import threading

from tfos_ml.common.filesystems import StorageError
from tfos_ml.driver.nodes import Nodes
from tfos_ml.protocol.mailbox import PERIOD_SECONDS, MailboxReader

logger = logging.getLogger(__name__)
CLOSE_SECONDS = 10.0


class MailboxPoller:
    """Reads reports from a folder and passes them on, in a thread that runs from :meth:`start` to :meth:`close`."""

    def __init__(self, uri: str, nodes: Nodes):
        self._reader = MailboxReader(uri)
        self._nodes = nodes
        self._closed = threading.Event()
        self._has_warned = False
        self._thread = threading.Thread(target=self._run, name="mailbox", daemon=True)

    def start(self) -> None:
        """Start the thread."""
        self._thread.start()

    def _run(self) -> None:
        while not self._closed.wait(PERIOD_SECONDS):
            self._take()
        if not self._take():
            self._take()
        try:
            self._reader.delete()
        except StorageError as error:
            logger.debug("The folder of live reports could not be deleted: %s", error)

    def _take(self) -> bool:
        """Pass on new reports; returns whether the folder could be read."""
        try:
            for call in self._reader.take():
                self._nodes.note(call)
        except StorageError as error:  # the fit does not depend on it
            if not self._has_warned:
                self._has_warned = True
                logger.warning("modelDir cannot be read from here, so metrics come late or at the end: %s", error)
            return False
        return True

    def close(self) -> None:
        """Read the last reports, delete the folder, and end the thread."""
        self._closed.set()
        self._thread.join(CLOSE_SECONDS)
