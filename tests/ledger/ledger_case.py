"""A fit with a fault in it, and what must be true of every fit: the ledger."""

from __future__ import annotations

import argparse
import os
import signal
import threading
import time
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import ledger_program
import psutil
import pyarrow as pa
from spark_of_processes import ConnectSpark, FetchFailedError, ProcessSpark, Rows, wait_until

from tfos_ml import errors
from tfos_ml.arrays import spec_of
from tfos_ml.artifacts import Artifact
from tfos_ml.cluster import launcher
from tfos_ml.cluster.node_task import NodeTask
from tfos_ml.cluster.template import make_template
from tfos_ml.pickling import pack_program
from tfos_ml.schema import ROW_COLUMN, FeedSchema

NODES, EPOCHS = 2, 2
SHARES = {0: 30, 1: 33}  # rows of each node
BATCH_ROWS = 6
SILENCE = 2.5  # seconds without a sign of life that are too many
REACH_DEADLINE = 15.0
FIT_DEADLINE = 60.0
MODEL_BYTES = 1 << 16
CONSTANTS = {"tfos_ml.cluster.control.CALL_TIMEOUT": 1.0}  # on the nodes
SCHEMA = pa.schema([("c0", pa.int64()), (ROW_COLUMN, pa.int64())])


@dataclass(frozen=True)
class Case:
    """Which fault, when, to whom.

    Attributes
    ----------
    mode : {"barrier", "plain", "connect"}
        How the nodes run.
    fault : str
        A key of ``FAULTS``.
    phase : {"feed", "epoch", "export"}
        When: while half the rows have come, after the first epoch, after the export.
    victim : int
        Rank of the node.
    restarts : int
        ``maxRestarts``; with 1 the fit must succeed.
    """

    mode: str
    fault: str
    phase: str
    victim: int
    restarts: int

    def __str__(self) -> str:
        return f"{self.mode}-{self.fault}-{self.phase}-{self.victim}-{self.restarts}"


class Run:
    """One case, under way."""

    def __init__(self, case: Case, directory: Path):
        self.case = case
        self.directory = directory
        self.export_dir = directory / "models" / "export"
        self.export_dir.parent.mkdir()
        self.attempts = 0
        self.fetch_failed = False
        self.armed = False
        self.injected: str | None = None
        self.error: BaseException | None = None
        self.result: Any = None
        self._done = threading.Event()
        kind = ConnectSpark if case.mode == "connect" else ProcessSpark
        conf = {"spark.tfos_ml.leaseTimeout": f"{SILENCE}"}
        if case.mode == "plain":
            conf["spark.dynamicAllocation.enabled"] = "true"
        self.spark = kind(conf, CONSTANTS)
        if case.mode == "plain":
            self.spark.sparkContext.master = "spark://127.0.0.1:7077"  # a local master allocates nothing

    # The fit

    def rows(self) -> Rows:
        """The DataFrame of an attempt."""
        attempt, self.attempts = self.attempts, self.attempts + 1

        def source(rank: int) -> Iterator[pa.RecordBatch]:
            ids = ids_of(rank)
            for start in range(0, len(ids), BATCH_ROWS):
                if attempt == 0 and start == 3 * BATCH_ROWS:
                    self.halfway(rank)
                part = ids[start : start + BATCH_ROWS]
                numbers = [(rank << 33) + start + i for i in range(len(part))]
                yield pa.record_batch([pa.array(part), pa.array(numbers)], schema=SCHEMA)

        return Rows(self.spark, SCHEMA, source, NODES)

    def halfway(self, rank: int) -> None:
        """A node has had half its rows."""
        case = self.case
        fails = case.fault == "fetch failure" and rank == case.victim and not self.fetch_failed
        if case.phase == "feed" and not self.fetch_failed:
            wait_until(lambda: self._done.is_set() or self.has_reached("start", rank), REACH_DEADLINE)
            ledger_program.mark(self.directory, 0, "feed", rank)
        if case.phase == "feed" or fails:
            wait_until(lambda: self._done.is_set() or (self.directory / "go").exists(), REACH_DEADLINE)
        if fails:
            self.fetch_failed = True
            raise FetchFailedError

    def fit(self) -> None:
        """Fit, with the fault; afterwards there is a result or an error."""
        injector = threading.Thread(target=self._inject, name="injector", daemon=True)
        injector.start()
        args = argparse.Namespace(
            directory=str(self.directory), pause=self.case.phase, shares=SHARES, model_bytes=MODEL_BYTES
        )
        program = pack_program("trainFn", ledger_program.train, (ledger_program.train, args), {})
        task = NodeTask(
            run_id="",
            template=make_template(NODES),
            schema=FeedSchema((spec_of(pa.int64(), "id", "features"),)),
            payload=Artifact("program", program),
            settings=SETTINGS,
            environment={},
            reservation_timeout=30,
            feed_timeout=30,
            export_dir=str(self.export_dir),
            control=None,
            lease=None if self.case.mode == "connect" else SILENCE,
            silence=SILENCE,
        )
        began = time.monotonic()
        try:
            self.result = launcher.launch(self.spark, self.rows, task, max_restarts=self.case.restarts, verbose=0)
        except BaseException as error:
            self.error = error
        finally:
            self._done.set()
            self.seconds = time.monotonic() - began
            injector.join(REACH_DEADLINE)

    # The fault

    def has_reached(self, phase: str, rank: int) -> bool:
        """Whether a node of the first attempt is in a phase."""
        return (self.directory / f"0-{phase}-{rank}").exists()

    def _inject(self) -> None:
        case = self.case
        ranks = [rank for rank in range(NODES) if case.fault != "fetch failure" or rank != case.victim]
        if case.fault == "fetch failure" and case.phase == "feed":
            ranks = list(range(NODES))

        def all_have() -> bool:
            return self._done.is_set() or all(self.has_reached(case.phase, rank) for rank in ranks)

        if wait_until(all_have, REACH_DEADLINE) and not self._done.is_set():
            self.injected = "injected"
            FAULTS[case.fault](self)
        (self.directory / "go").touch()

    def pids(self) -> tuple[int, int]:
        """Process ids of the victim and of its supervisor."""
        child, supervisor, _ = (self.directory / f"0-pid-{self.case.victim}").read_text().split()
        return int(child), int(supervisor)

    # The ledger

    def check(self) -> None:
        """Every row was trained once in each epoch and the model is whole, or the fit raised and nothing is left."""
        assert self.injected, "the fault was not reached"
        present = sorted(p.name for p in self.export_dir.parent.iterdir())
        if self.error is not None:
            assert isinstance(self.error, errors.TfosMlError), f"{type(self.error)}: {self.error}"
            assert present == [], "a failed fit has published"
            return
        assert present == ["export"]
        runs = {report["run_id"] for report in self.result.reports}
        assert len(runs) == 1, "nodes of two attempts"
        (run_id,) = runs
        for rank in range(NODES):
            trained = [int(line) for line in (self.directory / f"trained-{run_id}-{rank}").read_text().split()]
            share = SHARES[rank]
            for epoch in range(EPOCHS):
                assert sorted(trained[epoch * share : (epoch + 1) * share]) == ids_of(rank), (rank, epoch)
            assert len(trained) == EPOCHS * share
        assert (self.export_dir / "saved_model.pb").read_text() == run_id
        variables = self.export_dir / "variables" / "variables.data-00000-of-00001"
        assert variables.stat().st_size == MODEL_BYTES


def ids_of(rank: int) -> list[int]:
    """Ids of the rows of a node."""
    return list(range(rank * 1000, rank * 1000 + SHARES[rank]))


SETTINGS = {
    "epochs": EPOCHS,
    "batch_size": 10,
    "shuffle": False,
    "seed": 0,
    "pad_value": 0,
    "communication": "auto",
    "protocol": "grpc",
    "model_dir": None,
    "log_dir": None,
    "tensorboard": False,
    "signature_def_key": "serving_default",
    "default_fs": "file:///",
    "files": [],
    "feed_timeout": 30.0,
    "restart_count": 0,
}


def _signal_child(number: int) -> Callable[[Run], None]:
    return lambda run: os.kill(run.pids()[0], number)


def _signal_supervisor(number: int) -> Callable[[Run], None]:
    return lambda run: os.kill(run.pids()[1], number)


def _kill_all(run: Run) -> None:
    """What the out-of-memory killer may do: guardian, process and supervisor, in this order."""
    child, supervisor = run.pids()
    for process in psutil.process_iter():
        if "tfos_ml.cluster.guardian" in process.cmdline() and process.ppid() == supervisor:
            process.kill()
    os.kill(child, signal.SIGKILL)
    os.kill(supervisor, signal.SIGKILL)


FAULTS: dict[str, Callable[[Run], None]] = {
    "none": lambda run: None,
    "kill child": _signal_child(signal.SIGKILL),
    "kill supervisor": _signal_supervisor(signal.SIGKILL),
    "stop child": _signal_child(signal.SIGSTOP),
    "stop supervisor": _signal_supervisor(signal.SIGSTOP),
    "fetch failure": lambda run: None,  # raised by the rows
}
