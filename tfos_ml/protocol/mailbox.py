"""Passes nodes' reports through files in ``modelDir``, if they cannot reach a client of Spark Connect, behind NAT say.

Metrics and progress arrive a few seconds late this way. Nothing depends on them, since the job's result repeats them. A
file holds one ``ReportProgress``, and is written atomically.
"""

from __future__ import annotations

import posixpath

from pyarrow import fs

from tfos_ml.common.filesystems import request
from tfos_ml.protocol.codec import MessageError, decode, encode
from tfos_ml.protocol.control_messages import Done, ProgressAnswer, ReportGone, ReportProgress

PERIOD_SECONDS = 2.0  # between two files of a node, and between two readings by the driver
_FOLDER = ".tfos_ml-live"
_ENDING = ".report"


def mailbox_of(model_dir: str, run_id: str) -> str:
    """Path or URI of a run's folder; `model_dir` is absolute."""
    return f"{model_dir.rstrip('/')}/{_FOLDER}-{run_id}"


class MailboxWriter:
    """The node's side, which a ``ProgressLink`` calls in place of the control server."""

    def __init__(self, uri: str):
        self._uri = uri

    def call(self, call: ReportProgress) -> ProgressAnswer:
        """Leave a report; raises ``StorageError`` if that fails."""
        name = f"{call.rank}-{call.number:06}{_ENDING}"
        request(self._uri, lambda filesystem, path: _write(filesystem, path, name, encode(call)))
        return ProgressAnswer(stop=False)

    def call_reliably(self, call: ReportGone, patience: float) -> Done:
        """Nothing: the driver learns of a node's end from Spark."""
        return Done()

    is_refused = False

    def refusals(self) -> MailboxWriter:
        """A folder refuses nobody."""
        return self

    def are_final(self) -> bool:
        """See :meth:`refusals`."""
        return False

    def forget(self) -> None:
        """See :meth:`refusals`."""

    def close(self) -> None:
        """Nothing: each call opens what it needs."""


class MailboxReader:
    """The driver's side; reads each file once."""

    def __init__(self, uri: str):
        self._uri = uri
        self._seen: set[str] = set()

    def take(self) -> list[ReportProgress]:
        """New reports, in the order of each node.

        Raises ``StorageError`` if the folder or one of its files cannot be read; the next call then returns all.
        """
        calls = request(self._uri, self._read_new)
        self._seen.update(calls)
        return [call for call in calls.values() if call is not None]

    def _read_new(self, filesystem: fs.FileSystem, path: str) -> dict[str, ReportProgress | None]:
        listed = filesystem.get_file_info(fs.FileSelector(path, allow_not_found=True))
        names = sorted(info.base_name for info in listed if info.base_name.endswith(_ENDING))
        calls = {}
        for name in names:
            if name not in self._seen:
                with filesystem.open_input_stream(posixpath.join(path, name)) as stream:
                    calls[name] = _read(stream.read())
        return calls

    def delete(self) -> None:
        """Delete the folder; raises ``StorageError`` if that fails."""
        request(self._uri, _delete)


def _read(content: bytes) -> ReportProgress | None:
    try:
        return decode(ReportProgress, content)
    except MessageError:  # a stranger's file
        return None


def _write(filesystem: fs.FileSystem, path: str, name: str, content: bytes) -> None:
    filesystem.create_dir(path, recursive=True)
    partial = posixpath.join(path, f"{name}.partial")
    with filesystem.open_output_stream(partial) as stream:
        stream.write(content)
    filesystem.move(partial, posixpath.join(path, name))


def _delete(filesystem: fs.FileSystem, path: str) -> None:
    if filesystem.get_file_info(path).type == fs.FileType.Directory:
        filesystem.delete_dir(path)
