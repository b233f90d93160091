"""What the programs run on nodes: functions of users, which write down in a directory what they do, for the checker."""

from __future__ import annotations

import contextlib
import itertools
import json
import os
import signal
import socket
import struct
import sys
import time
from collections.abc import Callable, Iterable, Iterator
from pathlib import Path
from typing import Any

import planted
from supervisors import supervisor_of

HOLD_SECONDS = 100.0


class Ledger:
    """What one process writes down of one attempt; others only append beside it."""

    def __init__(self, args: Any, attempt: int, rank: int, supervisor: int = 0, run_id: str = ""):
        self._directory, self._holds = Path(args["directory"]), args["holds"]
        self._attempt, self._rank, self._supervisor = attempt, rank, supervisor
        name = f"rows-{attempt}-{run_id or os.getpid()}-{rank}"
        self._rows = os.open(self._directory / name, os.O_WRONLY | os.O_APPEND | os.O_CREAT, 0o600)

    @classmethod
    def of_node(cls, args: Any, ctx: Any) -> Ledger:
        """That of a train function."""
        if args["planted"]:
            planted.plant(args["planted"], ctx)
        return cls(args, ctx.restart_count, ctx.executor_id, supervisor_of(ctx), ctx.run_id)

    def add(self, ids: Iterable[int]) -> None:
        os.write(self._rows, "".join(f"{int(number)}\n" for number in ids).encode())

    def moment(self, phase: str) -> None:
        """Mark that the phase is reached; wait there for the fault, if there is to be one."""
        name = f"{self._attempt}-{phase}-{self._rank}"
        mark = self._directory / f"at-{name}"
        if mark.exists():
            return
        facts = {"pid": os.getpid(), "supervisor": self._supervisor, "time": time.monotonic()}
        partial = mark.with_name(f"part-{os.getpid()}-{name}")
        partial.write_text(json.dumps(facts))
        partial.rename(mark)
        if name in self._holds:
            act(wait_for(self._directory / f"go-{name}"))


def wait_for(file: Path) -> str:
    """The content of a file, once it is there; it appears whole."""
    deadline = time.monotonic() + HOLD_SECONDS
    while not file.exists():
        if time.monotonic() > deadline:
            raise TimeoutError(f"nobody has made {file}")
        time.sleep(0.005)
    return file.read_text()


def act(what: str) -> None:
    """Do what the program of a user may do at any time."""
    if what == "raise":
        raise ArithmeticError("the user's own mistake")
    if what.startswith("exit"):
        os._exit(int(what.split()[1]))
    if what.startswith("sys.exit"):
        sys.exit(int(what.split()[1]))
    if what in ("segfault", "abort"):
        signal.signal(signal.SIGABRT, signal.SIG_DFL)
        os.kill(os.getpid(), signal.SIGSEGV if what == "segfault" else signal.SIGABRT)


def export(ctx: Any) -> None:
    """Export the id of the run in place of a SavedModel, for which TensorFlow would have to be loaded."""
    from tfos_ml.protocol.messages import Exported

    directory = Path(ctx._directory) / "saved_model"
    (directory / "variables").mkdir(parents=True)
    (directory / "saved_model.pb").write_text(ctx.run_id)
    ctx._channel.send(Exported(str(directory)))


def read_feed(args: Any, ctx: Any) -> None:
    ledger, read = Ledger.of_node(args, ctx), 0
    ctx.summarize({"run_id": ctx.run_id})
    ledger.moment("start")
    feed = ctx.get_data_feed()
    while not feed.should_stop():
        rows = feed.next_batch(7)
        ledger.add(row[0] if isinstance(row, tuple | list) else row for row in rows)
        read += len(rows)
        ledger.moment("feed" if read < 20 else "epoch")
    if ctx.is_chief and args.get("exports", True):
        export(ctx)
    ledger.moment("export")


def answer(args: Any, ctx: Any) -> None:
    ledger, feed = Ledger.of_node(args, ctx), ctx.get_data_feed(train_mode=False)
    ledger.moment("start")
    while not feed.should_stop():
        rows = feed.next_batch(7)
        ledger.add(rows)
        if rows:
            ledger.moment("feed")
        feed.batch_results([2 * row for row in rows])


def instance(args: Any, ctx: Any) -> int:
    ledger = Ledger.of_node(args, ctx)
    ledger.moment("start")
    ledger.add([ctx.executor_id])
    ledger.moment("end")
    return int(ctx.executor_id)


def read_dataset(args: Any, ctx: Any) -> None:
    """Read batches of a dataset, an epoch after the other."""
    ledger = Ledger.of_node(args, ctx)
    ctx.summarize({"run_id": ctx.run_id})
    ledger.moment("start")
    dataset = ctx.dataset()
    for _ in range(ctx.epochs):
        for ids in dataset:
            ledger.add(ids.numpy().tolist())
            ledger.moment("epoch")
    if ctx.is_chief:
        export(ctx)
    ledger.moment("export")


def hold_input(args: Any) -> Callable[[Iterator[Any]], Iterator[Any]]:
    """A function of ``mapInArrow`` that passes rows on, and is in phase "input" after the first half of a batch."""

    def pass_on(batches: Iterator[Any]) -> Iterator[Any]:
        ledger = _of_task(args)
        for batch in batches:
            middle = len(batch) // 2
            yield batch.slice(0, middle)
            ledger.moment("input")
            yield batch.slice(middle)

    return pass_on


def hold_elements(args: Any) -> Callable[[Iterator[Any]], Iterator[Any]]:
    """The same for ``RDD.mapPartitions``."""

    def pass_on(elements: Iterator[Any]) -> Iterator[Any]:
        ledger = _of_task(args)
        for number, element in enumerate(elements):
            if number == 3:
                ledger.moment("input")
            yield element

    return pass_on


def _of_task(args: Any) -> Ledger:
    """The ledger of a task of Spark's that computes rows."""
    from pyspark import TaskContext

    task = TaskContext.get()
    attempt = number_of(args, "input", f"{task.stageId()}") + task.attemptNumber()
    return Ledger(args, attempt, task.partitionId(), os.getpid(), f"input{os.getpid()}")


def moments(args: Any) -> Any:
    """A callback that marks the phases of ``KerasEstimator``."""
    import keras

    class Moments(keras.callbacks.Callback):
        def _moment(self, phase: str) -> None:
            import nodes  # whose state is that of the process

            nodes.moment_of_keras(args, phase)

        def on_train_begin(self, logs: Any = None) -> None:
            self._moment("start")

        def on_epoch_begin(self, epoch: int, logs: Any = None) -> None:
            if epoch:
                self._moment("epoch")

        def on_train_batch_end(self, batch: int, logs: Any = None) -> None:
            if batch >= 2:
                self._moment("step")

        def on_train_end(self, logs: Any = None) -> None:
            self._moment("end")

    return Moments()


_ledgers: list[Ledger] = []


def moment_of_keras(args: Any, phase: str) -> None:
    """Mark a phase in a process that has no context."""
    if not _ledgers:
        config = json.loads(os.environ["TF_CONFIG"])
        attempt = number_of(args, "attempt", json.dumps(config["cluster"], sort_keys=True))
        _ledgers.append(Ledger(args, attempt, config["task"]["index"], supervisor_of_this_process()))
    _ledgers[0].moment(phase)


def number_of(args: Any, kind: str, identity: str) -> int:
    """How many others of a kind were before this one; processes say it to each other by files."""
    for number in itertools.count():
        file = Path(args["directory"], f"{kind}-{number}")
        partial = file.with_name(f"part-{file.name}-{os.getpid()}")
        partial.write_text(identity)
        with contextlib.suppress(FileExistsError):
            os.link(partial, file)  # it appears whole
        partial.unlink()
        if file.read_text() == identity:
            return number
    raise AssertionError


def supervisor_of_this_process() -> int:
    """Who is at the other end of a socket of this process, and is no fork server."""
    for name in os.listdir("/proc/self/fd"):
        with contextlib.suppress(OSError), socket.socket(fileno=os.dup(int(name))) as one:
            if one.family == socket.AF_UNIX:
                pid: int = struct.unpack("3i", one.getsockopt(socket.SOL_SOCKET, socket.SO_PEERCRED, 12))[0]
                if pid not in (0, os.getpid()) and b"fork_server" not in Path(f"/proc/{pid}/cmdline").read_bytes():
                    return pid
    return 0
