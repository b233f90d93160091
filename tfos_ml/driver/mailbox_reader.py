"""Reports that nodes leave in ``modelDir`` because they do not reach this client of Spark Connect."""

from __future__ import annotations

import logging
import threading

from tfos_ml.common.filesystems import StorageError
from tfos_ml.driver.nodes import Nodes
from tfos_ml.protocol.mailbox import PERIOD_SECONDS, MailboxReader

logger = logging.getLogger(__name__)
CLOSE_SECONDS = 10.0


class Mailbox:
    """Passes on what nodes leave in a folder, from a thread that runs from :meth:`start` to :meth:`close`."""

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
            logger.debug("The folder of live reports is left: %s", error)

    def _take(self) -> bool:
        """Pass on what is new; whether it could be read."""
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
        """Take what is left, delete the folder, and end the thread."""
        self._closed.set()
        self._thread.join(CLOSE_SECONDS)
