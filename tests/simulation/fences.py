"""Attempts of a fit that train at the same time, because nobody could end the first, and share a ``modelDir``."""

from __future__ import annotations

import contextlib
import io
import random
from collections.abc import Iterator
from types import SimpleNamespace
from typing import Any

import virtual_time
from played import Violation
from pyarrow import fs
from virtual_time import Process, World

from tfos_ml.errors import SupersededError
from tfos_ml.keras.checkpoint.fence import Fence

STEPS = 5
SECONDS = 500.0


class Store:
    """A filesystem each of whose operations takes a while; it lists what has been written."""

    def __init__(self, seconds: float):
        self.files: dict[str, bytes] = {}
        self._seconds = seconds

    def _wait(self) -> None:
        virtual_time.sleep(self._seconds * virtual_time.now_in.draw.random())

    def get_file_info(self, selector: Any) -> list[Any]:
        self._wait()
        return [SimpleNamespace(type=fs.FileType.File, base_name=name) for name in self.files]

    @contextlib.contextmanager
    def open_output_stream(self, path: str) -> Iterator[io.BytesIO]:
        stream = io.BytesIO()
        yield stream
        self._wait()
        self.files[path.rpartition("/")[2]] = stream.getvalue()

    def open_input_stream(self, path: str) -> io.BytesIO:
        self._wait()
        if path.rpartition("/")[2] not in self.files:
            raise FileNotFoundError(path)
        return io.BytesIO(self.files[path.rpartition("/")[2]])

    def delete_file(self, path: str) -> None:
        self._wait()
        if self.files.pop(path.rpartition("/")[2], None) is None:
            raise FileNotFoundError(path)


class Attempts:
    """Some attempts, which begin when they like; :meth:`play` raises ``Violation``."""

    def __init__(self, seed: int):
        draw = random.Random(seed)
        self.seed = seed
        self.world = World(seed)
        self._store = Store(draw.choice([0.01, 0.5, 3.0]))
        self._starts = [draw.choice([0.1, 3.0, 10.0]) * draw.random() for _ in range(draw.choice([2, 2, 3, 4]))]
        self._parents: dict[str, str | None] = {}  # of checkpoints: which one was gone on from
        self._ended: list[str] = []
        self._finished = 0

    def play(self) -> Attempts:
        """Let all attempts come to their ends."""
        with self.world:
            for number, start in enumerate(self._starts):
                process = Process(f"attempt {number}", f"host{number}")
                self.world.at(start, self.world.start, process, process.name, self._train, f"run{number}")
            self._must(self.world.run(lambda: len(self._ended) == len(self._starts), SECONDS), "not all have ended")
            self._must(not self.world.crashes, f"{self.world.crashes}")
            self._must(self._finished, "all attempts have given way to another")
            self.world.start(Process("reader", "driver"), "reader", self._read)
            self._must(self.world.run(lambda: "read" in self._ended, SECONDS), "not read")
            self._must(not self.world.crashes, f"{self.world.crashes}")
        return self

    def _must(self, holds: object, what: str) -> None:
        if not holds:
            raise Violation(f"seed {self.seed}: {what}")

    def _checkpoints(self, fence: Fence) -> list[str]:
        """Those that count, the oldest first."""
        return [name for name in sorted(self._parents) if fence.counts(name)]

    def _train(self, run_id: str) -> None:
        """As the chief does with ``keras/checkpoint/files.py``."""
        fence = Fence(self._store, "dir", run_id)  # type: ignore[arg-type]
        try:
            fence.take(self._checkpoints(fence))
            latest = (self._checkpoints(fence) or [None])[-1]
            step = int(latest.split("-")[1]) if latest else 0
            while step < STEPS:
                virtual_time.sleep(self.world.draw.random())
                fence.check()
                virtual_time.sleep(self.world.draw.random())
                step += 1
                name = f"epoch-{step:05d}-{run_id}"
                self._parents[name], latest = latest, name
                self.world.note(run_id, "writes", name)
            self._finished += 1
        except SupersededError:
            self.world.note(run_id, "is superseded")
        self._ended.append(run_id)

    def _read(self) -> None:
        """The checkpoints that count in the end are those of one line of training, each gone on from the last."""
        counted = self._checkpoints(Fence(self._store, "dir", "reader"))  # type: ignore[arg-type]
        parents = [self._parents[name] for name in counted]
        self._ended.append("read")
        if parents != [None, *counted][:-1]:
            raise Violation(f"two lines of training: {dict(zip(counted, parents, strict=True))}")
