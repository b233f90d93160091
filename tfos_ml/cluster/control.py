"""Driver and nodes while a job runs: progress, metrics, checkpoints, "please stop", "I am gone".

A small Arrow Flight server on the driver; JSON bodies, a random token for each run.
It only carries what is convenient to have early: the same facts come back with the job's
result, so a node that cannot reach the driver trains on without it.

Any answer may be lost, late or doubled, so every call that changes something may come twice, or after
a later one, and then does nothing more: callers repeat it, unchanged, until they have an answer
(:meth:`ControlClient.call_reliably`).
"""

from __future__ import annotations

import json
import logging
import os
import secrets
import shutil
import socket
import tempfile
import threading
import time
import uuid
from collections import deque
from collections.abc import Callable
from dataclasses import dataclass
from itertools import accumulate, islice, takewhile
from pathlib import Path
from typing import Any, ClassVar
from urllib.parse import urlsplit

import pyarrow as pa
import pyarrow.flight as flight

from tfos_ml.cluster.addresses import Endpoint
from tfos_ml.cluster.lives import Lives
from tfos_ml.cluster.transport import Actions, TransportServer, checked_credentials, connect, read_message

logger = logging.getLogger(__name__)
CALL_TIMEOUT = 5.0
PING_SECONDS = 0.5
RETRY_SECONDS = 0.2
REFUSED_SECONDS = 3.0  # after which a driver whose host refuses every connection is gone: a stopped one still accepts
KEPT_REPORTS = 10_000  # that nobody has taken, on the driver, or that could not be sent, on a node
REPORT_BYTES = 1 << 20  # sent with one call, far below what a server takes
RECONNECT = {"grpc.initial_reconnect_backoff_ms": 200, "grpc.max_reconnect_backoff_ms": 1_000}
NO_ANSWER = (
    flight.FlightUnavailableError,
    flight.FlightTimedOutError,
    flight.FlightCancelledError,
    flight.FlightInternalError,
)
"""What a call raises whose answer got lost; it may have taken effect."""
_FILE_SCHEMA = pa.schema([("part", pa.binary())])
_PART_BYTES = 1 << 20


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
        self._deliveries: set[str] = set()
        self._stopping = False
        self._rounds: dict[int, dict[int, str]] = {}
        self._files: tempfile.TemporaryDirectory[str] | None = None
        self._failure: str | None = None
        self._entered: dict[int, int] = {}
        self._lives = Lives()

    def answer(self, action: str, message: dict[str, Any]) -> dict[str, Any]:
        """Answer one call of a node."""
        with self._changed:
            answer = self._answer(action, message)
            self._changed.notify_all()
            return {"stop": self._stopping, **answer}

    def do_put(self, context: Any, descriptor: flight.FlightDescriptor, reader: Any, writer: Any) -> None:
        """Take a file of a node; it lies here until :meth:`close`, and its report says where.

        A delivery that comes again changes nothing, and one that is not whole is refused.
        """
        order = read_message(descriptor.command, {"report": dict, "size": int, "delivery": str})
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
                return {"peers_live": self._lives.all_live(rank, self._present, seconds)}
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
        self._keep(reports[max(0, link.reports - first) :])
        link.reports = max(link.reports, first + len(reports))
        number = int(body.get("number", link.calls + 1))
        if number > link.calls:
            link.calls = number
            self._present.add(rank)
            self._progress[rank] = progress
            self._lives.heard(rank, progress.get("child_silent"))

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

    def silent(self, seconds: float) -> dict[int, float]:
        """Nodes that have not been heard of for longer than `seconds`, and for how long; call it often."""
        with self._changed:
            return self._lives.silent(self._present, seconds)

    def take_reports(self) -> list[dict[str, Any]]:
        """Metrics, and after them files, that came since the last call."""
        with self._changed:
            reports = [*self._reports, *self._received]
            self._reports.clear()
            self._received.clear()
            return reports

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


class ControlClient:
    """A node's end of the control channel."""

    def __init__(self, location: str, token: str):
        self._client = connect(location, token, RECONNECT)
        self._location = location
        self._options = flight.FlightCallOptions(timeout=CALL_TIMEOUT)

    @checked_credentials()
    def call(self, action: str, **body: Any) -> dict[str, Any]:
        """Make one call; raises ``pyarrow.lib.ArrowException`` if the driver cannot be reached."""
        results = self._client.do_action(flight.Action(action, json.dumps(body).encode()), self._options)
        result = next(iter(results), None)
        if result is None:
            raise flight.FlightUnavailableError("the call ended without an answer")
        answer: dict[str, Any] = json.loads(result.body.to_pybytes())
        return answer

    def call_reliably(self, action: str, patience: float, /, **body: Any) -> dict[str, Any]:
        """Make a call, and the same again for as long as no answer comes.

        Parameters
        ----------
        action : str
            What to call; one that may come twice.
        patience : float
            Seconds after which it is given up; a call that is under way is waited for.
        **body
            Of the call.

        Raises
        ------
        pyarrow.lib.ArrowException
            If no answer has come, the driver refuses the call, or its process is gone.
        """
        deadline = time.monotonic() + patience
        refusals = Refusals(self._location)
        while True:
            try:
                return self.call(action, **body)
            except NO_ANSWER:
                if time.monotonic() > deadline or refusals.are_final():
                    raise
                time.sleep(RETRY_SECONDS)

    def send_file(self, path: str | Path, report: dict[str, Any], timeout: float) -> None:
        """Send a file and the report that goes with it, in `timeout` seconds; raises as :meth:`call_reliably`."""
        order = {"report": report, "size": os.path.getsize(path), "delivery": uuid.uuid4().hex}
        descriptor = flight.FlightDescriptor.for_command(json.dumps(order).encode())
        deadline = time.monotonic() + timeout
        refusals = Refusals(self._location)
        while True:
            try:
                self._send_file(path, descriptor, max(deadline - time.monotonic(), RETRY_SECONDS))
                return
            except NO_ANSWER:
                if time.monotonic() > deadline or refusals.are_final():
                    raise
                time.sleep(RETRY_SECONDS)

    @checked_credentials()
    def _send_file(self, path: str | Path, descriptor: flight.FlightDescriptor, timeout: float) -> None:
        writer, _ = self._client.do_put(descriptor, _FILE_SCHEMA, flight.FlightCallOptions(timeout=timeout))
        with writer, open(path, "rb") as file:
            while part := file.read(_PART_BYTES):
                writer.write_batch(pa.record_batch([pa.array([part], pa.binary())], schema=_FILE_SCHEMA))
            writer.done_writing()
            writer.close()  # returns once the driver has it

    def refusals(self) -> Refusals:
        """Whether the driver's host refuses connections."""
        return Refusals(self._location)

    def close(self) -> None:
        """Close the connection."""
        self._client.close()


class Refusals:
    """Tells a driver whose process is gone from one that is stopped, slow or cut off.

    The host of a process that is gone refuses connections at once. That of a stopped one accepts them, up to a
    number, and then stays silent; of one that is cut off nothing is heard.

    Parameters
    ----------
    location : str
        Where the driver listens.
    """

    def __init__(self, location: str):
        target = urlsplit(location)
        self._target = target.hostname, target.port or 0
        self._since: float | None = None

    @property
    def is_refused(self) -> bool:
        """Whether the last try was refused."""
        return self._since is not None

    def are_final(self) -> bool:
        """Try to connect; whether that has been refused each time for ``REFUSED_SECONDS``."""
        try:
            socket.create_connection(self._target, CALL_TIMEOUT).close()
        except ConnectionRefusedError:
            now = time.monotonic()
            self._since = self._since or now
            return now - self._since > REFUSED_SECONDS
        except OSError:
            pass
        self._since = None
        return False

    def forget(self) -> None:
        """Begin anew: it has answered."""
        self._since = None


class ProgressLink:
    """Reports a node's progress to the driver from a thread.

    Calls and reports are numbered, and a report is sent with every call until one is answered: the driver takes
    each once.

    Parameters
    ----------
    client : ControlClient
        Connection to the driver.
    rank : int
        The reporting node.
    progress : callable
        Returns the latest word of the node, a JSON-serialisable dict.
    period : float, default 0.5
        Seconds between two reports.
    hear : callable, optional
        Called with each of the driver's answers.

    Attributes
    ----------
    stop_asked : bool
        Whether the driver has asked the node to stop.
    heard_at : float
        ``time.monotonic()`` of the last call that the driver has answered, or of the start.
    has_answered : bool
        Whether the driver has ever answered.
    is_driver_gone : bool
        Whether the driver has answered, and now its host refuses connections for ``REFUSED_SECONDS``.
    """

    def __init__(
        self,
        client: ControlClient,
        rank: int,
        progress: Callable[[], dict[str, Any]],
        period: float = PING_SECONDS,
        hear: Callable[[dict[str, Any]], None] | None = None,
    ):
        self._client = client
        self._rank = rank
        self._progress = progress
        self._period = period
        self._hear = hear
        self._name = uuid.uuid4().hex
        self._calls = 0
        self._reports: deque[tuple[dict[str, Any], int]] = deque()  # with the size of each
        self._first_report = 0
        self._lock = threading.Lock()
        self._refusals = client.refusals()
        self._has_warned = False
        self.heard_at = time.monotonic()
        self.has_answered = False
        self.is_driver_gone = False
        self._closed = threading.Event()
        self.stop_asked = False
        self._thread = threading.Thread(target=self._run, name="progress", daemon=True)
        self._thread.start()

    def report(self, report: dict[str, Any]) -> None:
        """Pass metrics on with the next call; if the driver is silent for long, the oldest are dropped."""
        size = len(json.dumps(report))
        if size > REPORT_BYTES:
            logger.warning("A report of %d bytes is not passed on, expected at most %d", size, REPORT_BYTES)
            return
        with self._lock:
            self._reports.append((report, size))
            if len(self._reports) > KEPT_REPORTS:
                self._drop(1)

    def _drop(self, count: int) -> None:
        for _ in range(count):
            self._reports.popleft()
        self._first_report += count

    def _run(self) -> None:
        while not self._closed.wait(self._period if self._ping() else 2 * self._period):
            pass
        deadline = time.monotonic() + CALL_TIMEOUT
        while time.monotonic() < deadline:
            if self._ping():
                if not self._reports:
                    return
            elif self._refusals.is_refused:
                return
            else:
                time.sleep(RETRY_SECONDS)

    def _ping(self) -> bool:
        called_at = time.monotonic()
        try:
            self._take_up(self._call(), called_at)
        except Exception as error:  # whatever it is, training must not depend on it
            self.is_driver_gone = self._refusals.are_final() and self.has_answered
            if not self._has_warned:
                self._has_warned = True
                logger.warning("Driver not reachable, so it gets no live progress: %s", error)
            return False
        return True

    def _call(self) -> dict[str, Any]:
        self._calls += 1
        with self._lock:
            sizes = accumulate(size for _, size in self._reports)
            fitting = sum(1 for _ in takewhile(lambda size: size <= REPORT_BYTES, sizes))
            first, reports = self._first_report, [report for report, _ in islice(self._reports, fitting)]
        answer = self._client.call(
            "progress",
            rank=self._rank,
            progress=self._progress(),
            link=self._name,
            number=self._calls,
            first_report=first,
            reports=reports,
        )
        with self._lock:
            self._drop(max(0, first + len(reports) - self._first_report))
        return answer

    def _take_up(self, answer: dict[str, Any], called_at: float) -> None:
        self.heard_at, self.has_answered = called_at, True
        self._refusals.forget()
        self.stop_asked = bool(answer["stop"])
        if self._hear is not None:
            self._hear(answer)

    def close(self) -> None:
        """Send what is left and end the thread."""
        self._closed.set()
        self._thread.join(3 * CALL_TIMEOUT)

    def say_gone(self) -> None:
        """Tell the driver that nothing of the node is left."""
        try:
            self._client.call_reliably("gone", CALL_TIMEOUT, rank=self._rank)
        except Exception as error:
            logger.debug("Driver not reachable at the end: %s", error)
        self._client.close()


def period_for(cluster_size: int) -> float:
    """Seconds between reports, so that the driver gets at most a few hundred a second."""
    return max(PING_SECONDS, cluster_size / 200)
