"""Driver and nodes while a job runs: progress, metrics, checkpoints, "please stop", "I am gone".

A small Arrow Flight server on the driver; JSON bodies, a random token for each run.
It only carries what is convenient to have early: the same facts come back with the job's
result, so a node that cannot reach the driver trains on without it.

Any answer may be lost, late or doubled, so every call that changes something may come twice, or after
a later one, and then does nothing more: callers repeat it, unchanged, until they have an answer
(``control_client.py``; ``progress_link.py`` is what nodes report with).
"""

from __future__ import annotations

import os
import secrets
import shutil
import tempfile
import threading
from collections import deque
from collections.abc import Iterable
from dataclasses import dataclass
from typing import Any, ClassVar

import pyarrow as pa
import pyarrow.flight as flight

from tfos_ml.agent.progress_link import KEPT_REPORTS
from tfos_ml.driver.liveness import Liveness
from tfos_ml.protocol import results
from tfos_ml.protocol.addresses import Endpoint
from tfos_ml.protocol.transport import Actions, TransportServer, read_message


@dataclass
class _Link:
    """What the driver knows of one node's progress link."""

    name: str | None
    calls: int = 0  # number of the latest call
    reports: int = 0  # how many have been taken


class ControlServer(TransportServer):
    """The driver's end: listens from construction until :meth:`close`.

    Parameters
    ----------
    endpoint : Endpoint or str
        Where it listens, as of :class:`TransportServer`.
    """

    actions: ClassVar[Actions] = {
        "progress": {"rank": int, "progress": dict, "reports": list},
        "gone": {"rank": int},
        "enter": {"rank": int, "task": int},
        "gather": {"rank": int, "round": int, "size": int},
        "failed": {"rank": int, "error": str},
    }

    def __init__(self, endpoint: Endpoint | str):
        token = secrets.token_urlsafe(32)
        super().__init__(endpoint, token)
        self.address = {"location": self.location, "token": token}
        self._changed = threading.Condition()
        self._present: set[int] = set()
        self._progress: dict[int, dict[str, Any]] = {}
        self._links: dict[int, _Link] = {}
        self._ended_links: set[str] = set()
        self._reports: deque[dict[str, Any]] = deque(maxlen=KEPT_REPORTS)
        self._received: list[dict[str, Any]] = []  # reports of files
        self._lines: deque[str] = deque(maxlen=KEPT_REPORTS)
        self._deliveries: set[str] = set()
        self._stopping = False
        self._rounds: dict[int, dict[int, str]] = {}
        self._files: tempfile.TemporaryDirectory[str] | None = None
        self._results: dict[int, list[results.ResultRow]] = {}
        self._failure: str | None = None
        self._entered: dict[int, int] = {}
        self._liveness = Liveness()

    def answer(self, action: str, message: dict[str, Any]) -> dict[str, Any]:
        """Answer one call of a node."""
        with self._changed:
            answer = self._answer(action, message)
            self._changed.notify_all()
            return {"stop": self._stopping, **answer}

    def do_put(self, context: Any, descriptor: flight.FlightDescriptor, reader: Any, writer: Any) -> None:
        """Take a file of a node, or the results of one that is no task of Spark's.

        A file lies here until :meth:`close`, and its report says where. What comes again changes nothing, and what is
        not whole is refused.
        """
        if "delivery" in read_message(descriptor.command, {}):
            self._take_file(read_message(descriptor.command, {"report": dict, "size": int, "delivery": str}), reader)
        else:
            self._take_results(read_message(descriptor.command, {"rank": int})["rank"], reader)

    def _take_results(self, rank: int, reader: Any) -> None:
        rows = [row for batch in reader.read_all().to_batches() for row in results.read_rows(batch)]
        if not rows or rows.pop().kind != results.END:
            raise pa.ArrowInvalid(f"the results of rank {rank} ended early, after {len(rows)} rows")
        with self._changed:
            self._results[rank] = rows
            self._changed.notify_all()

    def _take_file(self, order: dict[str, Any], reader: Any) -> None:
        report, size, delivery = order["report"], order["size"], order["delivery"]
        with self._changed:
            self._files = self._files or tempfile.TemporaryDirectory(prefix="tfos_ml-")
            directory = tempfile.mkdtemp(prefix="tfos_ml-", dir=self._files.name)
        path = os.path.join(directory, os.path.basename(report["name"]))
        is_taken = False
        try:
            with open(path, "wb") as file:
                for chunk in reader:
                    file.write(chunk.data.column(0)[0].as_buffer())
            found = os.path.getsize(path)
            if found != size:
                raise pa.ArrowInvalid(f"the file ended after {found} of {size} bytes")
            with self._changed:
                is_taken = delivery not in self._deliveries
                if is_taken:
                    self._deliveries.add(delivery)
                    self._received.append({**report, "path": path})
        finally:
            if not is_taken:
                shutil.rmtree(directory, ignore_errors=True)

    def _answer(self, action: str, body: dict[str, Any]) -> dict[str, Any]:
        """What a node hears beside "stop"; called with the lock held."""
        rank = int(body["rank"])
        if action == "progress":
            self._take_progress(rank, body)
            if "broken_for" in body["progress"]:
                seconds = float(body["progress"]["broken_for"])
                return {"peers_live": self._liveness.all_live(rank, self._present, seconds)}
        elif action == "gone":
            self._present.discard(rank)
            self._end_link(rank)
        elif action == "enter":
            return {"first": self._entered.setdefault(rank, int(body["task"])) == int(body["task"])}
        elif action == "gather":
            return {"messages": self._gather(rank, body)}
        elif action == "failed":
            self._failure = self._failure or str(body["error"])
        return {}

    def _take_progress(self, rank: int, body: dict[str, Any]) -> None:
        """Take what is new in a call of a node's link, which numbers its calls and its reports."""
        progress, reports = body["progress"], list(body["reports"])
        name = body.get("link")
        link = self._links.get(rank)
        if name in self._ended_links:
            return
        if link is None or link.name != name:
            self._end_link(rank)
            link = self._links[rank] = _Link(name)
        first = int(body.get("first_report", link.reports))
        new = reports[max(0, link.reports - first) :]
        self._lines.extend(str(report["line"]) for report in new if "line" in report)
        self._keep([report for report in new if "line" not in report])
        link.reports = max(link.reports, first + len(reports))
        number = int(body.get("number", link.calls + 1))
        if number > link.calls:
            link.calls = number
            self._present.add(rank)
            self._progress[rank] = progress
            self._liveness.heard(rank, progress.get("child_silent"))

    def _end_link(self, rank: int) -> None:
        link = self._links.pop(rank, None)
        if link is not None and link.name is not None:
            self._ended_links.add(link.name)

    def _keep(self, reports: list[dict[str, Any]]) -> None:
        """Keep reports until they are taken; the oldest go if nobody does: they also come with the result."""
        self._reports.extend(reports)

    def _gather(self, rank: int, body: dict[str, Any]) -> list[str] | None:
        """Take a node's message of a round; those of all nodes once they are there."""
        number, size = int(body["round"]), int(body["size"])
        if number not in self._rounds and number < max(self._rounds, default=0):
            return None  # a late copy of what all have had
        messages = self._rounds.setdefault(number, {})
        if "message" in body:
            messages[rank] = str(body["message"])
        if len(messages) < size:
            return None
        for past in [n for n in self._rounds if 0 < n < number]:  # who is in this round has had the answers of those
            del self._rounds[past]
        return [messages[r] for r in sorted(messages)]

    def met(self) -> dict[int, str]:
        """What each node that has come to meet the others said of itself, by rank."""
        with self._changed:
            return dict(self._rounds.get(0, {}))

    def failure(self) -> str | None:
        """What the first node that failed said; of plain jobs, whose tasks Spark would try again."""
        with self._changed:
            return self._failure

    def have_results(self, ranks: Iterable[int], timeout: float) -> bool:
        """Whether nodes have brought their results here, or one has failed, within `timeout` seconds."""
        with self._changed:
            return self._changed.wait_for(lambda: self._failure or self._results.keys() >= set(ranks), timeout) is True

    def results(self) -> list[results.ResultRow]:
        """What nodes that have ended well brought home here."""
        with self._changed:
            return [row for rank in sorted(self._results) for row in self._results[rank]]

    def silent(self, seconds: float) -> dict[int, float]:
        """Nodes that have not been heard of for longer than `seconds`, and for how long; call it often."""
        with self._changed:
            return self._liveness.silent(self._present, seconds)

    def take_reports(self) -> list[dict[str, Any]]:
        """Metrics, and after them files, that came since the last call."""
        with self._changed:
            reports = [*self._reports, *self._received]
            self._reports.clear()
            self._received.clear()
            return reports

    def take_lines(self, timeout: float = 0) -> list[str]:
        """Lines of the nodes' output that came since the last call; waits for some, at most `timeout` seconds."""
        with self._changed:
            self._changed.wait_for(lambda: self._lines, timeout)
            lines = list(self._lines)
            self._lines.clear()
            return lines

    def progress(self) -> dict[int, dict[str, Any]]:
        """The latest word of each node that has reported, by rank."""
        with self._changed:
            return dict(self._progress)

    def stop_nodes(self) -> None:
        """Answer the nodes' next calls with a request to stop."""
        with self._changed:
            self._stopping = True

    def wait_gone(self, timeout: float) -> bool:
        """Whether all nodes that were ever heard of are gone, within `timeout` seconds."""
        with self._changed:
            return self._changed.wait_for(lambda: not self._present, timeout)

    def close(self) -> None:
        """Stop listening, and delete the nodes' files."""
        super().close()
        if self._files is not None:
            self._files.cleanup()
