"""The driver's end of a cluster whose nodes outlive the tasks that started them.

Nodes ask it often and end when it does not answer: it is their lease. It tells them what the
driver announces (the end of a feed, the end of the input), deals the partitions of a feed, grants
each to one attempt, and keeps what nodes bring home. Nothing of it grows with the length of a stream.
"""

from __future__ import annotations

import json
from collections import deque
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from typing import Any, ClassVar

from tfos_ml import errors
from tfos_ml.driver.control_server import ControlServer
from tfos_ml.driver.dealing import Dealer
from tfos_ml.protocol.addresses import Endpoint
from tfos_ml.protocol.claims import PENDING, Claims
from tfos_ml.protocol.control_client import CALL_TIMEOUT, ControlClient
from tfos_ml.protocol.failure import Failure
from tfos_ml.protocol.graces import LEASE_SECONDS, LEASE_SETTING
from tfos_ml.protocol.template import ClusterTemplate
from tfos_ml.protocol.transport import Actions

WHY_SECONDS = 4.0  # below the callers' deadline
_CLAIM = {"number": int, "partition": int, "claimant": str}
STOP_SECONDS = 30.0
GRACE_SECONDS = 2 * CALL_TIMEOUT


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
            client.call_reliably("request_stop", STOP_SECONDS)
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
    lease : float, default 60
        Seconds after which a node that has not been heard of counts as lost.

    Attributes
    ----------
    ending : dict or None
        Once the cluster is being shut down; with ``seconds`` and ``source`` if these limit servers and evaluators.
    stop_requested : bool
        Whether somebody with the token has asked the driver to end the feed.
    """

    actions: ClassVar[Actions] = {
        **ControlServer.actions,
        "deal": {"number": int, "partition": int, "host": str},
        "claim": _CLAIM,
        "commit": {**_CLAIM, "rows": int},
        "release": _CLAIM,
        "committed": _CLAIM,
        "why": {"rank": int},
        "request_stop": {},
    }

    def __init__(
        self,
        endpoint: Endpoint | str,
        template: ClusterTemplate,
        is_wanted: Callable[[], bool],
        lease: float = LEASE_SECONDS,
    ):
        super().__init__(endpoint)
        self._template = template
        self._is_wanted = is_wanted
        self._lease = lease
        self._announcements: deque[dict[str, Any]] = deque()
        self._announced = 0
        self._claims = Claims()
        self.ending: dict[str, Any] | None = None
        self._dealer = Dealer()
        self.stop_requested = False

    def _answer(self, action: str, body: dict[str, Any]) -> dict[str, Any]:
        if not self._is_wanted():
            self._stopping = True
        if action in ("claim", "commit", "release", "committed"):
            return self._answer_claim(action, **{name: body[name] for name in self.actions[action]})
        if action == "deal":
            return {"rank": self._dealer.deal(body["number"], body["partition"], body["host"], self._over())}
        if action == "why":
            rank = int(body["rank"])
            self._changed.wait_for(lambda: self._failure or rank in self._results, WHY_SECONDS)
            return {"failure": self._failure, "finished": sorted(self._results)}
        if action == "request_stop":
            self.stop_requested = True
            return {}
        answer = super()._answer(action, body)
        rank = int(body["rank"])
        if action == "progress":
            answer["ending"] = self.ending
            answer["announcements"] = self._news(body["progress"].get("heard"))
        elif action == "gone" and rank not in self._results:
            self._lose(rank, "the supervisor of the node died")
        if self._failure is not None:
            self._stopping = True
        return answer

    def _answer_claim(self, action: str, number: int, partition: int, claimant: str, rows: int = 0) -> dict[str, Any]:
        claims = self._claims
        if action == "claim":

            def is_known() -> bool:
                return claims.claim(number, partition, claimant) != PENDING

            self._changed.wait_for(is_known, WHY_SECONDS)
            return {"state": claims.claim(number, partition, claimant)}
        if action == "commit":
            claims.commit(number, partition, claimant, rows)
            self._dealer.commit(number, partition, rows)
        elif action == "release":
            claims.release(number, partition, claimant)
        else:

            def is_settled() -> bool:
                held = claims.is_held_by(number, partition, claimant)
                return not held or claims.rows_committed_by(number, partition, claimant) is not None

            self._changed.wait_for(lambda: self._failure or is_settled(), WHY_SECONDS)
            committed = claims.rows_committed_by(number, partition, claimant)
            return {"rows": committed, "pending": not is_settled()}
        return {}

    def _lose(self, rank: int, message: str) -> None:
        node = self._template.nodes[rank]
        host = json.loads(self._rounds.get(0, {}).get(rank, "{}")).get("host", "unknown host")
        failure = Failure(errors.NodeLostError, message, node.job_name, node.task_index, host)
        self._failure = self._failure or failure.encode()

    def _keep(self, reports: list[dict[str, Any]]) -> None:
        """Nobody takes them here: they come with the nodes' results."""

    # Announcements

    def announce(self, kind: str, **content: Any) -> int:
        """Tell all nodes something; returns its number, from 1."""
        with self._changed:
            self._announced += 1
            self._announcements.append({"kind": kind, "serial": self._announced, **content})
            return self._announced

    def _news(self, heard: int | None) -> list[dict[str, Any]]:
        """What a node has not heard yet; None is one that does not listen. What all have heard is forgotten."""
        if heard is None:
            return []
        news = [announcement for announcement in self._announcements if announcement["serial"] > heard]
        words = [self._progress.get(rank) for rank in self._template.feed_ranks if rank not in self._results]
        all_heard = min((0 if word is None else word.get("heard", 0) for word in words), default=0)
        while self._announcements and self._announcements[0]["serial"] <= all_heard:
            self._announcements.popleft()
        return news

    def have_read(self, ranks: tuple[int, ...], announcement: int, number: int, timeout: float) -> bool:
        """Whether nodes have heard an announcement and read the rows of that feed, within `timeout` seconds."""

        def all_have() -> bool:
            words = [self._progress.get(rank, {}) for rank in ranks if rank not in self._results]
            done = all(w["over"] or (w["heard"] >= announcement and number not in w["pending"]) for w in words if w)
            return bool(self._failure) or (done and all(words))

        with self._changed:
            return self._changed.wait_for(all_have, timeout) and self._failure is None

    # Feeds

    def open_feed(self, number: int, hosts: Mapping[int, str] | None = None) -> None:
        """From now on grant the partitions of this call of ``train``, and deal them to nodes on these hosts."""
        with self._changed:
            self._claims.open(number)
            self._dealer.open(number, hosts or {})

    def close_feed(self, number: int) -> None:
        """Deal and grant no more of them, and forget them."""
        with self._changed:
            self._claims.close(number)
            self._dealer.close(number)
            self._changed.notify_all()

    def _over(self) -> set[int]:
        """Nodes that read no further."""
        return {*self._results, *(rank for rank, word in self._progress.items() if word.get("over"))}

    def committed(self, number: int, timeout: float) -> dict[int, int] | None:
        """Rows by partition that nodes have taken over; None if that is not settled within `timeout` seconds."""
        with self._changed:
            settled = self._changed.wait_for(lambda: self._claims.is_settled(number), timeout)
            return self._claims.committed(number) if settled else None

    # The end

    def are_finished(self, timeout: float) -> bool:
        """Whether all nodes have ended well, or one has failed, within `timeout` seconds."""
        with self._changed:
            return self._changed.wait_for(lambda: self._failure or self._all_finished(), timeout) is True

    def _all_finished(self) -> bool:
        return len(self._results) == self._template.size

    def is_trained(self) -> bool:
        """Whether only servers and evaluators have not ended well."""
        with self._changed:
            left = [node for node in self._template.nodes if node.rank not in self._results]
            return all(node.job_name in ("ps", "evaluator") for node in left)

    def unfinished(self) -> list[str]:
        """Labels of the nodes that have not ended well; where some have returned, of those that have not."""
        with self._changed:
            left = [node for node in self._template.nodes if node.rank not in self._results]
            working = [node for node in left if not self._progress.get(node.rank, {}).get("returned")]
            return [node.label for node in working or left]

    def check_silence(self) -> None:
        """Note as lost a node that has not been heard of for the lease, host and all."""
        silent = self.silent(self._lease + GRACE_SECONDS)
        with self._changed:
            for rank, seconds in silent.items():
                if rank not in self._results:
                    message = f"the node has not been heard of for {seconds:.0f} s ({LEASE_SETTING}={self._lease:g})"
                    self._lose(rank, message)
