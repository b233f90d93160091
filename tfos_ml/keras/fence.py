"""Which attempt may write to a ``modelDir``: the one that came last.

A node that is cut off may train on for a while after its fit has begun again elsewhere. So each
attempt leaves a file in the directory, numbered one above those it finds, and one that finds a higher
number than its own writes no more. Another may still come between that look and a write. What such a
write leaves does not count: the file of the newest attempt names the checkpoints of earlier ones that it
goes on from. Only these and its own count for a reader.
"""

from __future__ import annotations

import contextlib
import json

from pyarrow import fs

from tfos_ml.errors import SupersededError

_PREFIX = "attempt-"


class Fence:
    """One attempt's claim to a directory, on a filesystem that lists what has been written.

    The directory is there once :meth:`take` is called.
    """

    def __init__(self, filesystem: fs.FileSystem, root: str, run_id: str):
        self._fs = filesystem
        self._root = root
        self._run_id = run_id
        self._name: str | None = None

    def take(self, accepted: list[str]) -> None:
        """Become the newest attempt, which goes on from the checkpoints `accepted`."""
        number = 1 + max((int(name.split("-")[1]) for name in self._names()), default=0)
        self._name = f"{_PREFIX}{number:06d}-{self._run_id}"
        with self._fs.open_output_stream(f"{self._root}/{self._name}") as stream:
            stream.write(json.dumps({"accepted": accepted}).encode())
        names = self._names()  # again: others may have come meanwhile, and each deletes what is older than itself
        for name in names:
            if name < max(names):
                with contextlib.suppress(FileNotFoundError):
                    self._fs.delete_file(f"{self._root}/{name}")
        self.check()

    def check(self) -> None:
        """Raise ``SupersededError`` if a later attempt has come, or this one never did."""
        newest = max(self._names(), default="")
        if self._name is None or newest > self._name:
            raise SupersededError(
                f"modelDir={self._root!r} has been taken over by a later attempt or fit ({newest}), so this one "
                f"({self._name}) writes no more. Give fits that run at the same time a modelDir each."
            )

    def counts(self, checkpoint: str) -> bool:
        """Whether a checkpoint counts, of which the name ends with its attempt's run id."""
        newest = max(self._names(), default="")
        if not newest or checkpoint.rpartition("-")[2] == newest.rpartition("-")[2]:
            return True
        try:
            with self._fs.open_input_stream(f"{self._root}/{newest}") as stream:
                return checkpoint in json.loads(stream.read())["accepted"]
        except FileNotFoundError:  # since a later attempt has come
            return self.counts(checkpoint)

    def _names(self) -> list[str]:
        """The files of attempts, in no order; their names sort as they came."""
        infos = self._fs.get_file_info(fs.FileSelector(self._root, allow_not_found=True))
        return [i.base_name for i in infos if i.type == fs.FileType.File and i.base_name.startswith(_PREFIX)]
