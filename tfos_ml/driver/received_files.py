"""Files that nodes send to the driver, such as checkpoints."""

from __future__ import annotations

import os
import shutil
import tempfile
import threading
from typing import Any

import pyarrow as pa

from tfos_ml.common.directories import owned_prefix
from tfos_ml.protocol.control_messages import SendFile
from tfos_ml.protocol.transport import Service


class ReceivedFiles:
    """Keeps the files in a temporary directory until :meth:`close`; for several threads."""

    def __init__(self) -> None:
        self._lock = threading.Lock()
        self._directory: tempfile.TemporaryDirectory[str] | None = None
        self._deliveries: set[str] = set()
        self._reports: list[dict[str, Any]] = []

    def service(self) -> Service:
        """The call that uploads a file."""
        return Service(puts={SendFile: self._take})

    def _take(self, call: SendFile, reader: Any, writer: Any) -> None:
        """Take a file; a repeated upload changes nothing, an incomplete one is refused."""
        with self._lock:
            self._directory = self._directory or tempfile.TemporaryDirectory(prefix=owned_prefix("temporary"))
            directory = tempfile.mkdtemp(prefix="tfos_ml-", dir=self._directory.name)
        path = os.path.join(directory, os.path.basename(call.report["name"]))
        is_taken = False
        try:
            with open(path, "wb") as file:
                for chunk in reader:
                    file.write(chunk.data.column(0)[0].as_buffer())
            received = os.path.getsize(path)
            if received != call.size:
                raise pa.ArrowInvalid(f"the file ended after {received} of {call.size} bytes")
            with self._lock:
                is_taken = call.delivery not in self._deliveries
                if is_taken:
                    self._deliveries.add(call.delivery)
                    self._reports.append({**call.report, "path": path})
        finally:
            if not is_taken:
                shutil.rmtree(directory, ignore_errors=True)

    def take_reports(self) -> list[dict[str, Any]]:
        """Reports of the files that have arrived since the last call, each with the ``path`` of its file."""
        with self._lock:
            reports, self._reports = self._reports, []
            return reports

    def close(self) -> None:
        """Delete the files."""
        if self._directory is not None:
            self._directory.cleanup()
