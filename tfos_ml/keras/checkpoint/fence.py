"""Lets only the latest attempt write to a ``modelDir``.

A node that is cut off may continue to train after its fit has been repeated elsewhere. So each attempt writes a file
to the directory, with a number above those that it finds, and stops writing when it finds a higher number than its own.
A newer attempt may still appear between that check and a write. Such a write does not count: the file of the newest
attempt names the earlier checkpoints that it continues from, and readers count only these and its own.
"""

from __future__ import annotations

import contextlib
import json

from pyarrow import fs

from tfos_ml.errors import SupersededError

_PREFIX = "attempt-"


class Fence:
    """One attempt's claim to a directory, on a filesystem that lists what has been written.

    :meth:`take` creates the directory.
    """

    def __init__(self, filesystem: fs.FileSystem, root: str, run_id: str):
        self._fs = filesystem
        self._root = root
        self._run_id = run_id
        self._name: str | None = None

    def take(self, accepted: list[str]) -> None:
        """Become the newest attempt, which continues from the checkpoints `accepted`."""
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
                f"({self._name}) writes no more. Give each of several simultaneous fits its own modelDir."
            )

    def counts(self, checkpoint: str) -> bool:
        """Whether a checkpoint counts; its name ends with the run id of its attempt."""
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
