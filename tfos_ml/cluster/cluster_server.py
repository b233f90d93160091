"""The driver's end of a cluster whose nodes outlive the tasks that started them.

Nodes ask it often and end when it does not answer: it is their lease. It tells them what the
driver announces (the end of a feed, the end of the input), grants each partition of a feed
once, and keeps what nodes bring home.
"""

from __future__ import annotations

import json
import time
from collections.abc import Callable
from dataclasses import dataclass, field
from typing import Any, ClassVar

import pyarrow.flight as flight

from tfos_ml.cluster import results
from tfos_ml.cluster.addresses import Endpoint
from tfos_ml.cluster.control import ControlClient, ControlServer
from tfos_ml.cluster.failure import Failure
from tfos_ml.cluster.template import ClusterTemplate
from tfos_ml.cluster.transport import Actions, read_message

WHY_SECONDS = 4.0  # below the callers' deadline
SILENCE_SECONDS = 60.0


@dataclass(frozen=True)
class ClusterAddress:
    """Where, and with which token, another process may reach a running cluster's driver.

    Examples
    --------
    >>> ClusterAddress(location, token).request_stop()              # doctest: +SKIP
    """

    location: str
    token: str = field(repr=False)

    def request_stop(self) -> None:
        """Ask the driver to end the stream that it feeds; raises ``pyarrow.lib.ArrowException`` if it is not there."""
        client = ControlClient(self.location, self.token)
        try:
            client.call("request_stop")
        finally:
            client.close()


class ClusterServer(ControlServer):
    """Listens from construction until :meth:`close`.

    Parameters
    ----------
    endpoint : Endpoint or str
        Where it listens, as of :class:`TransportServer`.
    template : ClusterTemplate
        The roles.
    is_wanted : callable
        Whether the program still wants the cluster; else nodes are asked to stop.

    Attributes
    ----------
    stop_requested : bool
        Whether somebody with the token has asked the driver to end the feed.
    """

    actions: ClassVar[Actions] = {
        **ControlServer.actions,
        "claim": {"number": int, "partition": int},
        "why": {"rank": int},
        "request_stop": {},
    }

    def __init__(self, endpoint: Endpoint | str, template: ClusterTemplate, is_wanted: Callable[[], bool]):
        super().__init__(endpoint)
        self._template = template
        self._is_wanted = is_wanted
        self._announcements: list[dict[str, Any]] = []
        self._claimed: set[tuple[int, int]] = set()
        self._results: list[results.ResultRow] = []
        self._finished: set[int] = set()
        self._heard_at: dict[int, float] = {}
        self.stop_requested = False

    def _answer(self, action: str, body: dict[str, Any]) -> dict[str, Any]:
        if not self._is_wanted():
            self._stopping = True
        if action == "claim":
            claim = int(body["number"]), int(body["partition"])
            granted = claim not in self._claimed
            self._claimed.add(claim)
            return {"granted": granted}
        if action == "why":
            rank = int(body["rank"])
            self._changed.wait_for(lambda: self._failure or rank in self._finished, WHY_SECONDS)
            return {"failure": self._failure, "finished": sorted(self._finished)}
        if action == "request_stop":
            self.stop_requested = True
            return {}
        answer = super()._answer(action, body)
        rank = int(body["rank"])
        self._heard_at[rank] = time.monotonic()
        if action == "progress":
            answer["announcements"] = self._announcements[int(body["progress"].get("heard", 0)) :]
        elif action == "gone" and rank not in self._finished:
            self._lose(rank, "the supervisor of the node died")
        if self._failure is not None:
            self._stopping = True
        return answer

    def _lose(self, rank: int, message: str) -> None:
        node = self._template.nodes[rank]
        host = json.loads(self._rounds.get(0, {}).get(rank, "{}")).get("host", "unknown host")
        failure = Failure("NodeLostError", message, node.job_name, node.task_index, host)
        self._failure = self._failure or failure.encode()

    def do_put(self, context: Any, descriptor: flight.FlightDescriptor, reader: Any, writer: Any) -> None:
        """Keep what a node that has ended well brings home."""
        rank = read_message(descriptor.command, {"rank": int})["rank"]
        rows = [row for batch in reader.read_all().to_batches() for row in results.read_rows(batch)]
        with self._changed:
            self._results.extend(rows)
            self._finished.add(rank)
            self._changed.notify_all()

    def announce(self, kind: str, **content: Any) -> int:
        """Tell all nodes something; returns its number, from 1."""
        with self._changed:
            self._announcements.append({"kind": kind, **content})
            return len(self._announcements)

    def have_read(self, ranks: tuple[int, ...], announcement: int, number: int, timeout: float) -> bool:
        """Whether nodes have heard an announcement and read the rows of that feed, within `timeout` seconds."""

        def all_have() -> bool:
            words = [self._progress.get(rank, {}) for rank in ranks if rank not in self._finished]
            done = all(w["over"] or (w["heard"] >= announcement and number not in w["pending"]) for w in words if w)
            return bool(self._failure) or (done and all(words))

        with self._changed:
            return self._changed.wait_for(all_have, timeout) and self._failure is None

    def are_finished(self, timeout: float) -> bool:
        """Whether all nodes have ended well, or one has failed, within `timeout` seconds."""
        with self._changed:
            return self._changed.wait_for(lambda: self._failure or self._all_finished(), timeout) is True

    def _all_finished(self) -> bool:
        return len(self._finished) == self._template.size

    def unfinished(self) -> list[str]:
        """Labels of the nodes that have not ended well."""
        with self._changed:
            return [node.label for node in self._template.nodes if node.rank not in self._finished]

    def check_silence(self) -> None:
        """Note as lost a node that has not been heard of for long, host and all."""
        with self._changed:
            for rank in self._present - self._finished:
                if time.monotonic() - self._heard_at[rank] > SILENCE_SECONDS:
                    self._lose(rank, f"the node has not been heard of for {SILENCE_SECONDS:g} s")

    def results(self) -> list[results.ResultRow]:
        """What the nodes that have ended well brought home."""
        with self._changed:
            return list(self._results)
