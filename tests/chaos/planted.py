"""Faults of the code itself, planted in the processes of a run: the test of the test has to find each."""

from __future__ import annotations

import os
import subprocess
from collections.abc import Iterator
from typing import Any


def plant(what: str, ctx: Any = None) -> None:
    PLANTS[what](ctx)


def _dropped_chunk(ctx: Any) -> None:
    from tfos_ml.worker import data_feed

    read, dropped = data_feed.read_chunk, []

    def read_chunk(path: str) -> Iterator[Any]:
        dropped.append(path)
        return read(path) if len(dropped) > 1 else iter(())

    data_feed.read_chunk = read_chunk


def _lost_checkpoint(ctx: Any) -> None:
    from tfos_ml.keras.checkpoint.files import Checkpoints

    Checkpoints.load = lambda self: None  # type: ignore[method-assign]


def _leaked_process(ctx: Any) -> None:
    from tfos_ml.worker.fork_server import MARKER, NO_MARKER

    subprocess.Popen(["sleep", "600"], env={**os.environ, MARKER: NO_MARKER}, start_new_session=True)


def _exit_of_0(ctx: Any) -> None:
    from tfos_ml.protocol.messages import Returned
    from tfos_ml.worker.outcome import RETURNED, outcome

    leave = os._exit

    def exit_well(code: int) -> None:
        if not code:
            ctx.summarize({**outcome(ctx, RETURNED), "log_problem": ""})
            ctx._node.close(None)
            ctx._channel.send(Returned())
        leave(code)

    os._exit = exit_well  # type: ignore[assignment]


PLANTS = {
    "dropped chunk": _dropped_chunk,
    "lost checkpoint": _lost_checkpoint,
    "leaked process": _leaked_process,
    "exit of 0": _exit_of_0,
}
