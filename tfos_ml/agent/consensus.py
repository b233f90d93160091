"""What the nodes agree on once they have met, one exchange after the other.

First every node sends its row counts, from which all agree on the steps. After that a node that trains begins an
exchange when it reaches a barrier or has ended; the others take part. When all that train have ended, so has the
training; workers beside a chief and parameter servers may still work, and one more exchange waits for them. Then the
cluster is done.
"""

from __future__ import annotations

import time
from collections.abc import Callable
from concurrent.futures import Future
from typing import Any

from tfos_ml.agent.identity import NodeIdentity
from tfos_ml.agent.rendezvous import Rendezvous
from tfos_ml.agent.row_source import Send
from tfos_ml.protocol.codec import decode
from tfos_ml.protocol.messages import Agreement, BarrierPassed, ClusterDone, NodeStatus, RowCounts


class Consensus:
    """One node's side of it.

    `send` sends a message to the node's process; `answered` is called in any thread when :meth:`advance` has an
    exchange to take up.
    """

    def __init__(self, rendezvous: Rendezvous, member: NodeIdentity, send: Send, answered: Callable[[], None]):
        self._rendezvous = rendezvous
        self._member = member
        self._labels = [node.label for node in member.template.nodes]
        self._send = send
        self._answered = answered
        self._exchange: Future[list[dict[str, Any]]] | None = None
        self._agreed = False
        self._barrier: str | None = None
        self.trained_since: float | None = None  # ``time.monotonic()`` of when all that train had ended
        self.done_since: float | None = None  # the same of when no worker beside them worked any more, either
        self.total_rows = 0  # that they were fed; known at the end

    def reach_barrier(self, name: str) -> None:
        """Note that the process waits in a barrier."""
        self._barrier = name

    def advance(self, counts: Callable[[], RowCounts | None], rows_at_end: int | None, works: bool) -> None:
        """Take up the result of an exchange, or begin one if there is something to send.

        `counts` returns the row counts of this node, None as long as they are not known; `rows_at_end` are its rows if
        its process has ended, else None; `works` says whether its process may have work of its own to do.
        """
        if self._exchange is not None:
            if self._exchange.done():
                answers, self._exchange = self._exchange.result(), None
                self._take_up(answers)
        elif self.done_since is None:
            mine = self._status(rows_at_end, works) if self._agreed else counts()
            if mine is not None:
                self._exchange = self._rendezvous.exchange(vars(mine))
                self._exchange.add_done_callback(lambda _: self._answered())

    def _status(self, rows_at_end: int | None, works: bool) -> NodeStatus | None:
        if self.trained_since is not None:
            return None if self._member.is_helper and works else NodeStatus()
        if not self._member.is_active:
            return NodeStatus()
        if rows_at_end is not None:
            return NodeStatus(rows=rows_at_end)
        return None if self._barrier is None else NodeStatus(barrier=self._barrier)

    def _take_up(self, answers: list[dict[str, Any]]) -> None:
        if not self._agreed:
            self._agreed = True
            counts = [decode(RowCounts, answer) for answer in answers]
            self._send(Agreement(dict(zip(self._labels, counts, strict=True))))
            return
        if self.trained_since is not None:
            self._be_done()
            return
        active = {self._labels[rank]: decode(NodeStatus, answers[rank]) for rank in self._member.template.feed_ranks}
        rows = [status.rows for status in active.values() if status.rows is not None]
        if len(rows) == len(active):
            self.total_rows = sum(rows)
            self.trained_since = time.monotonic()
            if self._member.is_helper:
                self._send(ClusterDone())
            if not self._member.template.helper_ranks:
                self._be_done()
        elif self._barrier is not None:
            name, self._barrier = self._barrier, None
            elsewhere = {label: status for label, status in active.items() if status.barrier != name}
            self._send(BarrierPassed(name, _barrier_error(name, elsewhere)))

    def _be_done(self) -> None:
        self.done_since = time.monotonic()
        if not self._member.is_helper:
            self._send(ClusterDone())


def _barrier_error(name: str, elsewhere: dict[str, NodeStatus]) -> str | None:
    if not elsewhere:
        return None
    what = {
        label: f"is at barrier {status.barrier!r}" if status.rows is None else "has ended"
        for label, status in elsewhere.items()
    }
    return f"ctx.barrier({name!r}) must be reached by the chief and all workers, but: {what}"
