"""What the nodes say to each other once they have met, one exchange after the other.

First every node tells its row counts, from which all agree on the steps. After that a node
that trains speaks when it reaches a barrier or has ended; the others join in without having
anything to say. When all that train have ended, so has the training; workers beside a chief and
parameter servers may still work, and one more exchange waits for them. Then the cluster is done.
"""

from __future__ import annotations

import time
from collections.abc import Callable
from concurrent.futures import Future
from typing import Any

from tfos_ml.agent.rendezvous import Rendezvous
from tfos_ml.protocol.codec import decode
from tfos_ml.protocol.messages import Agreement, BarrierPassed, ClusterDone, Message, RowCounts
from tfos_ml.protocol.template import ClusterTemplate

Word = dict[str, Any]


class Consensus:
    """One node's side of it.

    Parameters
    ----------
    rendezvous : Rendezvous
        Carries the exchanges; each needs all nodes.
    template : ClusterTemplate
        The roles.
    rank : int
        This node.
    send : callable
        Sends a message to the node's process.

    Attributes
    ----------
    trained_since : float or None
        ``time.monotonic()`` of when all nodes that train had ended.
    done_since : float or None
        The same of when no worker beside them worked any more, either.
    total_rows : int
        Rows they were fed, known at the end.
    """

    def __init__(self, rendezvous: Rendezvous, template: ClusterTemplate, rank: int, send: Callable[[Message], None]):
        self._rendezvous = rendezvous
        self._labels = [node.label for node in template.nodes]
        self._active_ranks = template.feed_ranks
        self._is_active = rank in template.feed_ranks
        self._has_helpers = bool(template.helper_ranks)
        self._is_helper = rank in template.helper_ranks
        self._send = send
        self._exchange: Future[list[Word]] | None = None
        self._agreed = False
        self._barrier: str | None = None
        self.trained_since: float | None = None
        self.done_since: float | None = None
        self.total_rows = 0

    def reach_barrier(self, name: str) -> None:
        """Note that the process waits in a barrier."""
        self._barrier = name

    def advance(self, counts: Callable[[], RowCounts | None], rows_at_end: int | None, works: bool) -> None:
        """Take up the answers to an exchange, or begin one if there is something to say.

        Parameters
        ----------
        counts : callable
            Row counts of this node, None as long as they are not known.
        rows_at_end : int or None
            Rows of this node if its process has ended, else None.
        works : bool
            Whether its process may have work of its own to do.
        """
        if self._exchange is not None:
            if self._exchange.done():
                answers, self._exchange = self._exchange.result(), None
                self._hear(answers)
        elif self.done_since is None:
            if self._agreed:
                word = self._next_word(rows_at_end, works)
            else:
                known = counts()
                word = None if known is None else vars(known)
            if word is not None:
                self._exchange = self._rendezvous.exchange(word)

    def _next_word(self, rows_at_end: int | None, works: bool) -> Word | None:
        if self.trained_since is not None:
            return None if self._is_helper and works else {"over": True}
        if not self._is_active:
            return {"passive": True}
        if rows_at_end is not None:
            return {"ended": True, "rows": rows_at_end}
        return {"barrier": self._barrier} if self._barrier is not None else None

    def _hear(self, answers: list[Word]) -> None:
        if not self._agreed:
            self._agreed = True
            counts = [decode(RowCounts, answer) for answer in answers]
            self._send(Agreement(dict(zip(self._labels, counts, strict=True))))
            return
        if self.trained_since is not None:
            self._be_done()
            return
        active = {self._labels[rank]: answers[rank] for rank in self._active_ranks}
        if all("ended" in word for word in active.values()):
            self.total_rows = sum(word["rows"] for word in active.values())
            self.trained_since = time.monotonic()
            if self._is_helper:
                self._send(ClusterDone())
            if not self._has_helpers:
                self._be_done()
        elif self._barrier is not None:
            name, self._barrier = self._barrier, None
            elsewhere = {label: word for label, word in active.items() if word.get("barrier") != name}
            self._send(BarrierPassed(name, _barrier_error(name, elsewhere)))

    def _be_done(self) -> None:
        self.done_since = time.monotonic()
        if not self._is_helper:
            self._send(ClusterDone())


def _barrier_error(name: str, elsewhere: dict[str, Word]) -> str | None:
    if not elsewhere:
        return None
    what = {
        label: "has ended" if "ended" in word else f"is at barrier {word['barrier']!r}"
        for label, word in elsewhere.items()
    }
    return f"ctx.barrier({name!r}) must be reached by the chief and all workers, but: {what}"
