"""Judges a run by what was promised. It knows the ledger, the result and /proc, and nothing of the code."""

from __future__ import annotations

import json
from collections import Counter
from collections.abc import Callable
from pathlib import Path
from typing import Any

import conftest
import numpy as np
from conftest import wait_until
from drawn_runs import ACTIONS, CLOCK, DAEMON, EXECUTOR, IDLE, LINK, NAT, STORE, SUPERVISOR, Run
from faults import Injection
from places import LEASE, Place

CLEAN_SECONDS = 10.0
ENDS = 10.0  # seconds from what ends a process to the error
STANDS = 6.0  # that a process may give no sign of life
CUT = 45.0  # from what cuts a host off, or has a store refuse: leases, graces and Spark's own time-out add up
FATAL = ("kill child", "stop child", "kill supervisor", "stop supervisor", "term supervisor", "kill all", *ACTIONS)
"""After these a node cannot go on. One that is told to end may come to its end before."""
RECOVERABLE = (*FATAL, "term child", "kill executor", "stop executor", "cut link", "slow link", *IDLE, *CLOCK)
FITS = ("fit", "dataset", "keras")
SPARKS_OWN = ("score", "score stream", "records", "infer")
"""Programs whose job is Spark's: if it loses a worker or an executor, or is canceled, the error is Spark's, too."""
CANCELED = {"cancel": "FitCancelledError", "interrupt": "KeyboardInterrupt"}


def limit(injections: list[Injection]) -> float:
    """Seconds from the last fault to the end of a run that fails."""
    names = {one.fault.what for one in injections}
    if names & {*LINK, *STORE, "full disk", "stop executor"}:  # a full disk is noticed when something is written
        return CUT
    return ENDS + (max(STANDS, LEASE) + ENDS if any(name.startswith("stop") for name in names) else 0.0)


def is_fatal(what: str) -> bool:
    """Whether a node cannot go on after it."""
    return what in FATAL


class Before:
    """What there was before a run."""

    def __init__(self, place: Place):
        self.ports = place.driver.ports()
        self.threads = Counter(place.driver.look()["threads"])
        self.files = conftest.our_files()
        self.processes = {process.pid for process in place.all_processes()}


def judge(run: Run, directory: Path, outcome: dict[str, Any], injections: list[Injection]) -> list[str]:
    """What is wrong with how a run ended."""
    happened = [one for one in injections if one.time is not None]
    if "error" in outcome:
        return [*_judge_error(run, outcome, happened), *_judge_published(directory)]
    found = RESULTS[run.program](run, directory, outcome["result"])
    fatal = [one for one in happened if is_fatal(one.fault.what) and one.fault.held and one.fault.phase != "input"]
    if fatal and not run.restarts and "elastic" not in run.options:
        found.append(f"false success: {fatal[0].fault.what} has ended a node, and nothing was repeated")
    return found


def _judge_error(run: Run, outcome: dict[str, Any], happened: list[Injection]) -> list[str]:
    found = []
    expected = {CANCELED[one.fault.what] for one in happened if one.fault.what in CANCELED}
    if not happened:
        return [f"failed without a fault: {outcome['error']}: {outcome['message'][:2000]}"]
    own = run.program in SPARKS_OWN and (
        "ExecutorLostFailure" in outcome["message"]
        or any(one.fault.phase == "input" or one.fault.what in (*DAEMON, "cancel") for one in happened)
    )
    own |= any(one.fault.what == "raise" for one in happened) and "the user's own mistake" in outcome["message"]
    own |= "KeyboardInterrupt" in expected and "to send cancel cmd" in outcome["message"]  # Py4J closes a call twice
    if not outcome["typed"] and outcome["error"] not in expected and not own:
        found.append(f"untyped: {outcome['error']}: {outcome['message'][:2000]}")
    recoverable = all(one.fault.what in RECOVERABLE and one.fault.phase != "input" for one in happened)
    if recoverable and run.restarts >= sum(one.fault.what not in DAEMON for one in happened) and run.program in FITS:
        found.append(
            f"failed though {run.restarts} restarts were left: {outcome['error']}: {outcome['message'][:2000]}"
        )
    victims = {f"worker:{one.fault.rank}" for one in happened if one.fault.what in (*FATAL, "term child")}
    is_known = not expected and not any(one.fault.what in (*EXECUTOR, *LINK) for one in happened)  # which hit others
    if victims and is_known and outcome["node"] and outcome["node"] not in victims:
        found.append(f"blames {outcome['node']} instead of {victims}: {outcome['error']}: {outcome['message'][:1000]}")
    seconds = outcome["ended"] - max(one.time or 0.0 for one in happened)
    if seconds > limit(happened):
        found.append(f"the error came {seconds:.1f} s after the fault, the limit is {limit(happened):g} s")
    return found


def _judge_published(directory: Path) -> list[str]:
    published = sorted(path.name for path in (directory / "published").iterdir())
    return [f"a failed fit has published {published}"] if published else []


def _fit(run: Run, directory: Path, result: dict[str, Any]) -> list[str]:
    """Each row once an epoch, on one node, in the attempt that counts."""
    found = [] if result["rows"] == run.rows else [f"the summary has {result['rows']} of {run.rows} rows"]
    if len(result["run_ids"]) != 1:
        return [f"reports of several attempts: {result['run_ids']}"]
    (run_id,) = result["run_ids"]
    return [
        *found,
        *exact(read_rows(directory, f"rows-*-{run_id}-*"), dict.fromkeys(range(run.rows), run.epochs)),
        *_published(directory, {"saved_model.pb": run_id}),
    ]


def read_rows(directory: Path, pattern: str) -> list[Counter[int]]:
    """The rows that each process has noted."""
    return [Counter(map(int, file.read_text().split())) for file in sorted(directory.glob(pattern))]


def exact(noted: list[Counter[int]], expected: dict[int, int]) -> list[str]:
    """Whether all rows are there as often as expected, and each in one process."""
    total: Counter[int] = sum(noted, Counter())
    lost = {number: count - total[number] for number, count in expected.items() if total[number] < count}
    more = {
        number: count - expected.get(number, 0) for number, count in total.items() if count > expected.get(number, 0)
    }
    spread = [number for number in expected if sum(number in one for one in noted) > 1]
    found = [f"rows lost: {lost}"] if lost else []
    found += [f"rows doubled: {more}"] if more else []
    return found + ([f"rows on several nodes: {spread}"] if spread else [])


def _published(directory: Path, content: dict[str, str]) -> list[str]:
    published = sorted(path.name for path in (directory / "published").iterdir())
    if published != ["model"]:
        return [f"published is {published}, not ['model']"]
    for name, text in content.items():
        if (directory / "published" / "model" / name).read_text() != text:
            return [f"{name} of the model is of another attempt"]
    return []


class Keras:
    """What plain Keras makes of the rows; computed once."""

    expected: Any = None

    @classmethod
    def judge(cls, run: Run, directory: Path, result: dict[str, Any]) -> list[str]:
        """Each step's rows, the history and the weights."""
        from resumed_model import BATCH, EPOCHS, ROWS
        from trained_rows import check_rows

        expected = cls.get()
        found = [] if result["rows"] == ROWS else [f"the summary has {result['rows']} of {ROWS} rows"]
        try:
            check_rows(directory, expected.trained, BATCH, EPOCHS)
        except AssertionError as error:
            found.append(f"rows: {error}")
        found += _resumed(run, directory)
        for name, values in expected.history.items():
            if not np.allclose(result["history"].get(name, np.nan), values, rtol=1e-5, atol=1e-5):
                found.append(f"history of {name}: {result['history'].get(name)} instead of {values}")
        try:
            expected.check_weights(directory / "published" / "model" / "assets.extra" / "model.weights.h5")
        except (AssertionError, OSError) as error:
            found.append(f"weights: {error}")
        return [*found, *_published(directory, {})]

    @classmethod
    def get(cls) -> Any:
        """The rows, and plain Keras's history and weights."""
        if cls.expected is None:
            from resumed_model import Expected

            cls.expected = Expected()
        return cls.expected


def _resumed(run: Run, directory: Path) -> list[str]:
    """Whether the training never begins again after its second epoch, if there is a ``modelDir``."""
    steps: dict[str, list[int]] = {}
    for line in (line for file in directory.glob("rows-*") for line in file.read_text().splitlines()):
        if line.startswith("{"):
            note = json.loads(line)
            steps.setdefault(note["attempt"], []).append(note["step"])
    has_checkpoint = any(directory.glob("at-0-epoch-*")) or any(directory.glob("at-0-end-*"))
    if "modelDir" not in run.options or not has_checkpoint:
        return []
    again = [attempt for attempt, taken in steps.items() if min(taken) == 0]
    return ["an attempt begins with step 0 again, though there is a checkpoint"] if len(again) > 1 else []


def _fed(run: Run, directory: Path, result: dict[str, Any]) -> list[str]:
    """Each row once an epoch, on one node."""
    epochs = 1 if run.program == "stream" else run.epochs
    found = [] if result["rows"] == run.rows else [f"the summary has {result['rows']} of {run.rows} rows"]
    (run_id,) = result["run_ids"]
    return found + exact(read_rows(directory, f"rows-*-{run_id}-*"), dict.fromkeys(range(run.rows), epochs))


def _answers(expected: Callable[[Run], Any]) -> Callable[[Run, Path, dict[str, Any]], list[str]]:
    """Whether a program returned what it should."""

    def judge_answers(run: Run, directory: Path, result: dict[str, Any]) -> list[str]:
        wanted = expected(run)
        return [] if result["answers"] == wanted else [f"answers are {result['answers']} instead of {wanted}"]

    return judge_answers


RESULTS: dict[str, Callable[[Run, Path, dict[str, Any]], list[str]]] = {
    "fit": _fit,
    "dataset": _fit,
    "keras": Keras.judge,
    "feed": _fed,
    "stream": _fed,
    "infer": _answers(lambda run: [2 * number for number in range(run.rows)]),
    "parallel": _answers(lambda run: list(range(run.nodes))),
    "score": _answers(lambda run: [[number, 2.0 * number] for number in range(run.rows)]),
    "score stream": _answers(lambda run: [[number, 2.0 * number] for number in range(run.rows)]),
    "records": _answers(lambda run: list(range(run.rows))),
}


def left_over(place: Place, before: Before, injections: list[Injection], program: str) -> list[str]:
    """What a run has left, once it had time to clean up.

    Who has lost its guardian with itself cannot: its files are there until the next fit. A job of Spark's own that is
    interrupted by Ctrl-C runs to its end, as that of ``mapInPandas(...).collect()`` does in PySpark 4.3.
    """
    names = {one.fault.what for one in injections if one.time is not None}
    alone = "kill all" in names or ("kill reaper" in names and not names.isdisjoint((*SUPERVISOR, *EXECUTOR, *LINK)))

    runs_on = program in SPARKS_OWN and "interrupt" in names

    def left() -> dict[str, Any]:
        now = place.driver.look()
        all_of_it = {
            "processes": {**conftest.our_processes(), **place.strangers(before.processes)},
            "files": set() if alone else conftest.our_files() - before.files,
            "ports": place.driver.ports() - before.ports,
            "threads": list((Counter(now["threads"]) - before.threads).elements()),
            "jobs": [] if runs_on else now["jobs"],
        }
        return {kind: what for kind, what in all_of_it.items() if what}

    # Behind NAT, a supervisor that was stopped meanwhile cannot tell a closed server from a silent driver.
    cut_off = any(one.fault.what in LINK for one in injections) or (place.master == NAT and "stop supervisor" in names)
    return [] if wait_until(lambda: not left(), CUT if cut_off else CLEAN_SECONDS) else [f"left over: {left()}"]


def next_step(directory: Path, injections: list[Injection]) -> float | None:
    """Seconds from the last fault to the first moment of a later attempt, if there was one."""
    happened = [one for one in injections if one.time is not None]
    if not happened:
        return None
    last = max(one.time or 0.0 for one in happened)
    attempt = max(one.fault.attempt for one in happened)
    marks = [
        json.loads(path.read_text())["time"]
        for path in directory.glob("at-*")
        if int(path.name.split("-")[1]) > attempt and "-input-" not in path.name
    ]
    return min((mark - last for mark in marks if mark > last), default=None)
