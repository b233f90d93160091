"""Exchanges between nodes over the driver's control server."""

from __future__ import annotations

import time
from threading import Condition

from tfos_ml.protocol.control_messages import Enter, Entered, Gathered, GatherRound
from tfos_ml.protocol.transport import Service


class AllGather:
    """The messages of all nodes, round by round; in the first round, each node describes itself. The caller locks.

    Tasks of a barrier stage can also use Spark's exchanges, which take a second each. If not all tasks arrive in
    time (one may not reach this host), all of them use Spark's exchanges. They may take longer to join the first round:
    their TensorFlow processes start meanwhile.
    """

    def __init__(self, changed: Condition):
        self._changed = changed
        self._rounds: dict[int, dict[int, str]] = {}
        self._entered: dict[int, int] = {}
        self._arrived: set[int] = set()  # nodes that will send their messages here
        self._begun: float | None = None
        self._by_spark = False

    def service(self) -> Service:
        """The calls of nodes that exchange messages."""
        return Service({Enter: self._enter, GatherRound: self._gather})

    def _enter(self, call: Enter) -> Entered:
        return Entered(self._entered.setdefault(call.rank, call.task) == call.task)

    def _gather(self, call: GatherRound) -> Gathered:
        if call.round not in self._rounds and 0 <= call.round < max(self._rounds, default=0):
            return Gathered(None)  # a late repetition of a call that all nodes have completed
        messages = self._rounds.setdefault(call.round, {})
        if call.message is not None:
            messages[call.rank] = call.message
        if call.round == 0 and (call.arrives or call.message is not None):
            self._arrived.add(call.rank)
        if call.round == 0 and self._leaves_to_spark(len(self._arrived) == call.size, call.patience):
            return Gathered(None, by_spark=True)
        if len(messages) < call.size:
            return Gathered(None)
        for past in [n for n in self._rounds if 0 < n < call.round]:  # nodes in this round have had their answers
            del self._rounds[past]
        return Gathered([messages[rank] for rank in sorted(messages)])

    def _leaves_to_spark(self, is_complete: bool, patience: float | None) -> bool:
        """Whether Spark carries the exchanges: decided once, and the same for all nodes."""
        now = time.monotonic()
        self._begun = now if self._begun is None else self._begun
        if patience is not None and not is_complete and now - self._begun > patience:
            self._by_spark = True
        return self._by_spark

    def first(self) -> dict[int, str]:
        """What each node that has joined the first round has told about itself, by rank."""
        with self._changed:
            return dict(self._rounds.get(0, {}))
