"""A fit with a fault in it, and what must be true of every fit: the ledger."""

from __future__ import annotations

import argparse
import contextlib
import os
import signal
import tarfile
import threading
import time
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from itertools import chain
from pathlib import Path
from typing import Any

import ledger_program
import psutil
import pyarrow as pa
from harness import CONSTANTS, PLAIN
from lost_answers import Answers
from spark_of_processes import ConnectSpark, Elements, FetchFailedError, ProcessSpark, Rows, wait_until

from tfos_ml import InputMode, TFCluster, errors
from tfos_ml.common.session_settings import LEASE
from tfos_ml.data.arrow import spec_of
from tfos_ml.data.schema import ROW_COLUMN, FeedSchema
from tfos_ml.driver import fit_job
from tfos_ml.driver.session_facts import SessionFacts
from tfos_ml.protocol.artifacts import Artifact
from tfos_ml.protocol.cluster_template import ClusterTemplate, make_template
from tfos_ml.protocol.node_task import NodeSettings, NodeTask
from tfos_ml.protocol.pickling import pack_program

NODES, EPOCHS = 2, 2
IDS = {0: range(30), 1: range(1000, 1033)}  # of the rows of each node
BATCH_ROWS = 6
SHORT, LONG = 6.0, 40.0  # seconds without a sign of life that are too many, where that is the fault and where not
MODEL_BYTES = 1 << 16
MODEL = bytes(MODEL_BYTES)
CLUSTER_IDS = {0: range(32), 1: range(1000, 1032)}
PARTITIONS = 2 * NODES  # of a TFCluster's rows, all of one size: two go to each node, whichever they are
SCHEMA = pa.schema([("c0", pa.int64()), (ROW_COLUMN, pa.int64())])


@dataclass(frozen=True)
class Case:
    """Which fault, when, to whom.

    Attributes
    ----------
    mode : {"barrier", "plain", "connect", "cluster"}
        How the nodes run.
    fault : str
        A key of ``FAULTS``.
    phase : {"start", "feed", "epoch", "export"}
        When: before the first row, while half the rows have come, after the first epoch, after the export.
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

    ids: Mapping[int, Sequence[int]] = IDS
    reach_deadline = 120.0  # seconds for a phase to be reached, on a busy machine

    def __init__(self, case: Case, directory: Path):
        self.case = case
        self.directory = directory
        if case.mode == "cluster":
            self.ids = CLUSTER_IDS
        self.export_dir = directory / "models" / "export"
        self.export_dir.parent.mkdir()
        self.attempts = 0
        self.fetch_failed = False
        self.answers = Answers(case.fault)
        self.injected = False
        self.error: BaseException | None = None
        self.result: Any = None
        self._done = threading.Event()
        self.lease = SHORT if case.fault == "stop supervisor" else LONG
        conf = {LEASE.name: f"{self.lease}", **(PLAIN if case.mode == "plain" else {})}
        self.spark: Any = (ConnectSpark if case.mode == "connect" else ProcessSpark)(conf, CONSTANTS)

    # The fit

    def rows(self, template: ClusterTemplate) -> Rows:
        """The DataFrame of an attempt."""
        attempt, self.attempts = self.attempts, self.attempts + 1

        def source(rank: int) -> Iterator[pa.RecordBatch]:
            ids = self.ids[rank]
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
            wait_until(lambda: self._done.is_set() or self.has_reached("start", rank), self.reach_deadline)
            ledger_program.mark(self.directory, 0, "feed", rank)
        if case.phase == "feed" or fails:
            wait_until(lambda: self._done.is_set() or (self.directory / "go").exists(), self.reach_deadline)
        if fails:
            self.fetch_failed = True
            raise FetchFailedError

    def elements(self, partition: int) -> Iterator[list[int]]:
        """The RDD's rows of a partition, a few at a time: the first half of the ids of a rank, or the second."""
        rank = partition % NODES
        middle = len(self.ids[rank]) // 2
        ids = self.ids[rank][:middle] if partition < NODES else self.ids[rank][middle:]
        for start in range(0, len(ids), BATCH_ROWS):
            if partition < NODES and start == BATCH_ROWS:
                self.halfway(partition)
            yield list(ids[start : start + BATCH_ROWS])

    def fit(self) -> None:
        """Fit, with the fault; afterwards there is a result or an error."""
        injector = threading.Thread(target=self._inject, name="injector", daemon=True)
        injector.start()
        shares = {rank: len(ids) for rank, ids in self.ids.items()}
        args = argparse.Namespace(
            directory=str(self.directory), pause=self.case.phase, shares=shares, model_bytes=MODEL_BYTES
        )
        began = time.monotonic()
        try:
            self.result = self._lead_cluster(args) if self.case.mode == "cluster" else self._launch(args)
        except BaseException as error:
            self.error = error
        finally:
            self._done.set()
            self.seconds = time.monotonic() - began
            injector.join(self.reach_deadline)
            self._let_go_on()

    def _let_go_on(self) -> None:
        """What was stopped, and nobody has killed, wakes up; it then finds that nobody wants it."""
        if self.case.fault.startswith("stop") and self.injected:
            for pid in self.pids():
                with contextlib.suppress(ProcessLookupError):
                    os.kill(pid, signal.SIGCONT)

    def _launch(self, args: argparse.Namespace) -> Any:
        program = pack_program("trainFn", ledger_program.train, (ledger_program.train, args), {})
        task = NodeTask(
            run_id="",
            template=make_template(NODES),
            schema=FeedSchema((spec_of(pa.int64(), "id", "features"),)),
            payload=Artifact("program", program),
            settings=SETTINGS,
            environment={},
            reservation_timeout=30,
            export_dir=str(self.export_dir),
            control=None,
            lease=self.lease,
            heartbeat_timeout=LONG,
        )
        return fit_job.launch(
            self.spark, SessionFacts.of(self.spark), self.rows, task, max_restarts=self.case.restarts, verbose=0
        )

    def _lead_cluster(self, args: argparse.Namespace) -> TFCluster:
        rows = Elements(self.spark, self.elements, PARTITIONS)
        cluster = TFCluster.run(
            self.spark, ledger_program.train, args, NODES, input_mode=InputMode.SPARK, reservation_timeout=30
        )
        with cluster:
            cluster.train(rows, num_epochs=EPOCHS, feed_timeout=30)
        return cluster

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

        if wait_until(all_have, self.reach_deadline) and not self._done.is_set():
            self.injected = True
            try:
                FAULTS[case.fault](self)
            finally:
                (self.directory / "go").touch()
        (self.directory / "go").touch()

    def pids(self) -> tuple[int, int]:
        """Process ids of the victim and of its supervisor."""
        child, supervisor, _ = (self.directory / f"0-pid-{self.case.victim}").read_text().split()
        return int(child), int(supervisor)

    # The ledger

    def check(self) -> None:
        """Every row was trained once in each epoch and the model is whole, or the fit raised and nothing is left."""
        assert self.injected, "the fault was not reached"
        assert self.answers.were_hit(), "no answer came later"
        present = sorted(p.name for p in self.export_dir.parent.iterdir())
        if self.error is not None:
            assert isinstance(self.error, errors.TfosMlError), f"{type(self.error)}: {self.error}"
            assert present == [], "a failed fit has published"
            return
        run_id, model = self._of_cluster() if self.case.mode == "cluster" else self._of_fit()
        trained = {rank: self._trained(run_id, rank) for rank in range(NODES)}
        for epoch in range(EPOCHS):
            shares = {r: sorted(ids[epoch * len(self.ids[r]) :][: len(self.ids[r])]) for r, ids in trained.items()}
            if self.case.mode == "cluster":  # each node has any two partitions
                assert sorted(chain(*shares.values())) == sorted(chain(*self.ids.values())), trained
            else:
                assert shares == {r: list(given) for r, given in self.ids.items()}, f"epoch {epoch}: {trained}"
        assert {r: len(ids) for r, ids in trained.items()} == {r: EPOCHS * len(ids) for r, ids in self.ids.items()}
        assert model == {"saved_model.pb": run_id.encode(), "variables/variables.data-00000-of-00001": MODEL}

    def _trained(self, run_id: str, rank: int) -> list[int]:
        return [int(line) for line in (self.directory / f"trained-{run_id}-{rank}").read_text().split()]

    def _of_fit(self) -> tuple[str, dict[str, bytes]]:
        """Which attempt succeeded, and the files of its model."""
        (run_id,) = {report["run_id"] for report in self.result.reports}
        assert [p.name for p in self.export_dir.parent.iterdir()] == ["export"]
        files = [p for p in self.export_dir.rglob("*") if p.is_file()]
        return run_id, {str(p.relative_to(self.export_dir)): p.read_bytes() for p in files}

    def _of_cluster(self) -> tuple[str, dict[str, bytes]]:
        (run_id,) = {report["run_id"] for report in self.result.summary["nodes"]}
        (archive,) = self.result._results.models.values()
        with tarfile.open(archive.path) as tar:
            return run_id, {m.name: tar.extractfile(m).read() for m in tar if m.isfile()}  # type: ignore[union-attr]


SETTINGS = NodeSettings(
    epochs=EPOCHS, batch_size=10, shuffle=False, working_dir=os.getcwd(), user="driver", home="/", feed_timeout=30.0
)


def _kill_all(run: Run) -> None:
    """What the out-of-memory killer may do: guardian, process and supervisor, in this order."""
    child, supervisor = run.pids()
    for process in psutil.process_iter():
        with contextlib.suppress(psutil.Error):  # others come and go
            if process.ppid() == supervisor and "guardian" in " ".join(process.cmdline()):
                process.kill()
    os.kill(child, signal.SIGKILL)
    os.kill(supervisor, signal.SIGKILL)


def _kill_feeder(run: Run) -> None:
    """The task that feeds the victim."""
    (feed,) = run.spark.stages
    for task in feed._tasks:
        if task.rank == run.case.victim:
            task.process.kill()


FAULTS: dict[str, Callable[[Run], None]] = {
    "none": lambda run: None,
    "kill child": lambda run: os.kill(run.pids()[0], signal.SIGKILL),
    "kill supervisor": lambda run: os.kill(run.pids()[1], signal.SIGKILL),
    "stop supervisor": lambda run: os.kill(run.pids()[1], signal.SIGSTOP),
    "fetch failure": lambda run: None,  # raised by the rows
    "kill all": _kill_all,
    "kill feeder": _kill_feeder,
    "lost answers": lambda run: run.answers.arm(),
    "late answers": lambda run: run.answers.arm(),
    "doubled calls": lambda run: run.answers.arm(),
}
