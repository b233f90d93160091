"""Leads runs: starts what they need, brings the faults about, and has the checker judge them."""

from __future__ import annotations

import json
import shutil
import tempfile
import time
from pathlib import Path
from typing import Any

import checker
import conftest
import elsewhere
from disks import Disk, can_mount
from drawn_runs import DAEMON, DISK, Run
from faults import Injection
from places import Place

DOUBLE = """
import sys
import tensorflow as tf

module = tf.Module()
module.serve = tf.function(lambda x: {"y": 2 * x}, input_signature=[tf.TensorSpec([None], tf.float32, "x")])
tf.saved_model.save(module, sys.argv[1], signatures=module.serve)
"""
HANGS = 150.0  # seconds without an end after the last fault; a scoring process that stands still is given up after 120
FIRST_HANGS = 180.0  # and from the beginning: executors may have to start


class Runner:
    """Runs what the schedule draws, on one place after the other.

    Parameters
    ----------
    directory : Path
        For ledgers and logs.
    """

    def __init__(self, directory: Path):
        self._directory = directory
        self._place: Place | None = None
        self._disk: Disk | None = None

    def place(self, master: str) -> Place:
        """The place of a master; starts it if it is not there."""
        if self._place is not None and self._place.master != master:
            self.leave()
        if self._place is None:
            self._place = Place(master, self._directory)
            self._fit_again(self._place, "warm")
        return self._place

    def leave(self) -> None:
        if self._place is not None:
            self._place.close()
        self._place = None

    def run(self, run: Run, planted: str = "") -> dict[str, Any]:
        """One run, with a fault of the code planted in it if it is a test of this, and the next fit; what happened."""
        place = self.place(run.master)
        directory = self._directory / f"{run.seed}-{run.number}"
        before = checker.Before(place)
        began = time.monotonic()
        outcome, injections = self._lead(place, run, directory, planted)
        seconds = time.monotonic() - began
        violations = []
        to_next = checker.next_step(directory, injections)
        if outcome is None:
            violations.append("hangs" if place.driver.process.poll() is None else "the driver died")
            violations.append(place.driver.stacks()[-4000:])
            (directory / "processes").write_text(place.states())
            self.leave()
        elif any(one.fault.what == "kill driver" and one.time is not None for one in injections):
            violations += self._after_driver()
        else:
            violations += checker.judge(run, directory, outcome, injections)
            violations += checker.left_over(place, before, injections, run.program)
            if "error" in outcome or any(one.fault.what == "kill all" for one in injections):
                last = max((one.time for one in injections if one.time is not None), default=began)
                to_next, again = self._fit_again(place, f"{run.seed}-{run.number}-next", last)
                of_user = [one for one in injections if one.fault.what == "interrupt"]
                violations += again + checker.left_over(place, before, of_user, run.program)
        if any(one.fault.what in DAEMON for one in injections):  # Spark may not have noticed
            self.leave()
        if self._disk is not None:
            self._disk.close()
            self._disk = None
        if violations:
            self._keep(directory)
            if any("left over" in text or "next fit" in text for text in violations):
                self.leave()
        else:
            shutil.rmtree(directory, ignore_errors=True)
        return self._record(run, outcome or {"error": "hangs"}, injections, violations, seconds, to_next)

    def _lead(
        self, place: Place, run: Run, directory: Path, planted: str = ""
    ) -> tuple[dict[str, Any] | None, list[Injection]]:
        """Run a program with its faults; None if it has not ended in time, or its driver has ended."""
        directory.mkdir(parents=True)
        with_disk = any(fault.what in DISK for fault in run.faults) and can_mount()
        disk = Disk(directory / "disk") if with_disk else None
        (directory / "disk" / "published").mkdir(parents=True)
        (directory / "published").symlink_to(directory / "disk" / "published")
        self._disk = disk
        injections = [Injection(fault, place, directory, disk) for fault in run.faults]
        idle = [one for one in injections if one.fault.phase == "idle"]
        waiting = [one for one in injections if one not in idle]
        args = {
            "directory": str(directory),
            "planted": planted,
            "holds": [one.fault.at for one in waiting if one.fault.held],
            **self._needed(run, directory),
        }
        for one in idle:
            one.inject()
        place.driver.tell("run", run=run.facts(), args=args)
        deadline = time.monotonic() + FIRST_HANGS
        while True:
            try:
                outcome = place.driver.answer(0 if not waiting else 0.005) if waiting else place.driver.answer(0.5)
                break
            except TimeoutError:
                if time.monotonic() > deadline:
                    outcome = None
                    break
            for one in [one for one in waiting if one.is_due()]:
                waiting.remove(one)
                one.inject()
                deadline = time.monotonic() + HANGS
        for one in waiting:
            one.missed = "its moment did not come"
            one.let_go()
        for one in injections:
            one.undo()
        if outcome is None and any(one.fault.what == "kill driver" and one.time is not None for one in injections):
            outcome = {"error": "driver killed", "typed": True, "node": None, "message": ""}
        return outcome, injections

    def _needed(self, run: Run, directory: Path) -> dict[str, str]:
        """What a program needs; made before the first fault, whose seconds would count this, too."""
        if run.program == "keras":
            state = f"s3a://bucket/{directory.name}" if "store" in run.options else f"{directory}/disk/state"
            return {"rows": str(self._rows()), "state": state}
        return {"model": str(self._model())} if run.program.startswith("score") else {}

    def _rows(self) -> Path:
        """The rows of Keras's programs, as a file."""
        path = self._directory / "rows.parquet"
        if not path.exists():
            import pyarrow as pa
            import pyarrow.parquet as pq

            expected = checker.Keras.get()
            features = pa.array(expected.x.tolist(), pa.list_(pa.float32()))
            columns = {"features": features, "label": expected.y, "held": expected.held}
            pq.write_table(pa.table(columns), path)
        return path

    def _model(self) -> Path:
        """A model that doubles, made by plain TensorFlow."""
        path = self._directory / "double"
        if not path.exists():
            elsewhere.run_elsewhere(DOUBLE, str(path))
        return path

    def _after_driver(self) -> list[str]:
        """What is left once the driver was killed, and its JVM has noticed."""
        assert self._place is not None
        gone = conftest.wait_until(lambda: not conftest.our_processes() and not conftest.our_files(), 20)
        left = [] if gone else [f"left over by a killed driver: {conftest.our_processes()} {conftest.our_files()}"]
        self.leave()
        return left

    def _fit_again(self, place: Place, name: str, since: float = 0.0) -> tuple[float | None, list[str]]:
        """A small fit in the same session: seconds to its first step, and what is wrong."""
        directory = self._directory / name
        small = Run(0, 0, place.master, "fit", 1, 10, 1, 1, 0, (), ())
        began = time.monotonic()
        outcome, _ = self._lead(place, small, directory)
        if outcome is None:
            return None, ["the next fit hangs", place.driver.stacks()[-4000:]]
        violations = [f"the next fit: {text}" for text in checker.judge(small, directory, outcome, [])]
        mark = directory / "at-0-start-0"
        first = json.loads(mark.read_text())["time"] if mark.exists() else None
        shutil.rmtree(directory)
        return (first - (since or began) if first else None), violations

    def _keep(self, directory: Path) -> None:
        """Keep the ledger of a run that is to be looked at."""
        kept = Path(tempfile.gettempdir(), "chaos-kept")
        kept.mkdir(exist_ok=True)
        shutil.move(str(directory), kept / directory.name)

    def _record(
        self,
        run: Run,
        outcome: dict[str, Any],
        injections: list[Injection],
        violations: list[str],
        seconds: float,
        to_next: float | None,
    ) -> dict[str, Any]:
        times = [one.time for one in injections if one.time is not None]
        to_error = outcome["ended"] - max(times) if times and "error" in outcome and "ended" in outcome else None
        return {
            **run.facts(),
            "run": str(run),
            "injected": [one.fault.what for one in injections if one.time is not None],
            "missed": {one.fault.what: one.missed for one in injections if one.time is None},
            "outcome": outcome.get("error", "success"),
            "message": outcome.get("message", "")[:500],
            "violations": violations,
            "seconds": seconds,
            "to_error": to_error,
            "to_next": to_next,
        }
