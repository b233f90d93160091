"""Driver and nodes while a job runs: progress, metrics, checkpoints, "please stop", "I am gone".

A small Arrow Flight server on the driver; JSON bodies, a random token for each run.
It only carries what is convenient to have early: the same facts come back with the job's
result, so a node that cannot reach the driver trains on without it.
"""

from __future__ import annotations

import json
import logging
import os
import queue
import secrets
import tempfile
import threading
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any, ClassVar

import pyarrow as pa
import pyarrow.flight as flight

from tfos_ml.cluster.addresses import Endpoint
from tfos_ml.cluster.lives import Lives
from tfos_ml.cluster.transport import Actions, TransportServer, close_server, connect, read_message

logger = logging.getLogger(__name__)
CALL_TIMEOUT = 5.0
PING_SECONDS = 0.5
_FILE_SCHEMA = pa.schema([("part", pa.binary())])
_PART_BYTES = 1 << 20


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
        self._reports: list[dict[str, Any]] = []
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
        """Take a file of a node; it lies here until :meth:`close`, and its report says where."""
        report = read_message(descriptor.command, {"name": str})
        with self._changed:
            self._files = self._files or tempfile.TemporaryDirectory(prefix="tfos_ml-")
            path = os.path.join(self._files.name, os.path.basename(report["name"]))
        with open(f"{path}.partial", "wb") as file:
            for chunk in reader:
                file.write(chunk.data.column(0)[0].as_buffer())
        os.replace(f"{path}.partial", path)
        with self._changed:
            self._reports.append({**report, "path": path})

    def _answer(self, action: str, body: dict[str, Any]) -> dict[str, Any]:
        """What a node hears beside "stop"; called with the lock held."""
        rank = int(body["rank"])
        if action == "progress":
            progress, reports = body["progress"], list(body["reports"])
            self._present.add(rank)
            self._progress[rank] = progress
            self._reports.extend(reports)
            self._lives.heard(rank, progress.get("child_silent"))
            if "broken_for" in progress:
                return {"peers_live": self._lives.all_live(rank, self._present, float(progress["broken_for"]))}
        elif action == "gone":
            self._present.discard(rank)
        elif action == "enter":
            return {"first": self._entered.setdefault(rank, int(body["task"])) == int(body["task"])}
        elif action == "gather":
            return {"messages": self._gather(rank, body)}
        elif action == "failed":
            self._failure = self._failure or str(body["error"])
        return {}

    def _gather(self, rank: int, body: dict[str, Any]) -> list[str] | None:
        """Take a node's message of a round; those of all nodes once they are there."""
        messages = self._rounds.setdefault(int(body["round"]), {})
        if "message" in body:
            messages[rank] = str(body["message"])
        return [messages[r] for r in sorted(messages)] if len(messages) == int(body["size"]) else None

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
        """Metrics that came since the last call."""
        with self._changed:
            reports, self._reports = self._reports, []
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
        close_server(self)
        if self._files is not None:
            self._files.cleanup()


class ControlClient:
    """A node's end of the control channel."""

    def __init__(self, location: str, token: str):
        self._client = connect(location, token)
        self._options = flight.FlightCallOptions(timeout=CALL_TIMEOUT)

    def call(self, action: str, **body: Any) -> dict[str, Any]:
        """Make one call; raises ``pyarrow.lib.ArrowException`` if the driver cannot be reached."""
        results = self._client.do_action(flight.Action(action, json.dumps(body).encode()), self._options)
        answer: dict[str, Any] = json.loads(next(iter(results)).body.to_pybytes())
        return answer

    def send_file(self, path: str | Path, report: dict[str, Any], timeout: float) -> None:
        """Send a file and the report that goes with it, in `timeout` seconds; raises as :meth:`call`."""
        descriptor = flight.FlightDescriptor.for_command(json.dumps(report).encode())
        options = flight.FlightCallOptions(timeout=timeout)
        writer, _ = self._client.do_put(descriptor, _FILE_SCHEMA, options)
        with writer, open(path, "rb") as file:
            while part := file.read(_PART_BYTES):
                writer.write_batch(pa.record_batch([pa.array([part], pa.binary())], schema=_FILE_SCHEMA))
            writer.done_writing()
            writer.close()  # returns once the driver has it

    def close(self) -> None:
        """Close the connection."""
        self._client.close()


class ProgressLink:
    """Reports a node's progress to the driver from a thread, as long as the driver answers.

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
        self.heard_at = time.monotonic()
        self.has_answered = False
        self._has_warned = False
        self._reports: queue.SimpleQueue[dict[str, Any]] = queue.SimpleQueue()
        self._closed = threading.Event()
        self.stop_asked = False
        self._thread = threading.Thread(target=self._run, name="progress", daemon=True)
        self._thread.start()

    def report(self, report: dict[str, Any]) -> None:
        """Pass metrics on with the next call."""
        self._reports.put(report)

    def _run(self) -> None:
        while not self._closed.wait(self._period if self._ping() else 2 * self._period):
            pass
        self._ping()

    def _ping(self) -> bool:
        reports = []
        while not self._reports.empty():
            reports.append(self._reports.get())
        called_at = time.monotonic()
        try:
            answer = self._client.call("progress", rank=self._rank, progress=self._progress(), reports=reports)
        except Exception as error:  # whatever it is, training must not depend on it
            if not self._has_warned:
                self._has_warned = True
                logger.warning("Driver not reachable, so it gets no live progress: %s", error)
            return False
        self.heard_at, self.has_answered = called_at, True
        self.stop_asked = bool(answer["stop"])
        if self._hear is not None:
            self._hear(answer)
        return True

    def close(self) -> None:
        """Send what is left and end the thread."""
        self._closed.set()
        self._thread.join(2 * CALL_TIMEOUT)

    def say_gone(self) -> None:
        """Tell the driver that nothing of the node is left."""
        try:
            self._client.call("gone", rank=self._rank)
        except Exception as error:
            logger.debug("Driver not reachable at the end: %s", error)
        self._client.close()


def period_for(cluster_size: int) -> float:
    """Seconds between reports, so that the driver gets at most a few hundred a second."""
    return max(PING_SECONDS, cluster_size / 200)
