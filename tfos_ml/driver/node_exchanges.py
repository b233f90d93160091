"""Exchanges between nodes over the driver's control server."""

from __future__ import annotations

import time
from threading import Condition

from tfos_ml.common.timeouts import ARRIVE_SECONDS, HANDSHAKE_SECONDS
from tfos_ml.protocol.control_messages import Arrive, Enter, GatherRound
from tfos_ml.protocol.transport import Service


class AllGather:
    """The messages of all nodes, round by round; in the first round, each node describes itself. The caller locks.

    It also decides whether the tasks of a barrier stage are connected: all of them arrive in time.
    """

    def __init__(self, changed: Condition):
        self._changed = changed
        self._rounds: dict[int, dict[int, str]] = {}
        self._entered: dict[int, int] = {}
        self._arrived: set[int] = set()
        self._deadline: float | None = None
        self._is_connected: bool | None = None  # until decided

    def service(self) -> Service:
        return Service({Arrive: self._arrive, Enter: self._enter, GatherRound: self._gather})

    def _arrive(self, call: Arrive) -> bool | None:
        now = time.monotonic()
        if self._deadline is None:
            self._deadline = now + ARRIVE_SECONDS + call.size * HANDSHAKE_SECONDS
        self._arrived.add(call.rank)
        if self._is_connected is None and len(self._arrived) == call.size:
            self._is_connected = True
        elif self._is_connected is None and now > self._deadline:
            self._is_connected = False
        return self._is_connected

    @property
    def is_apart(self) -> bool:
        """Whether the tasks are known not to be connected, so that none comes here."""
        return self._is_connected is False

    def _enter(self, call: Enter) -> bool:
        return self._entered.setdefault(call.rank, call.task) == call.task

    def _gather(self, call: GatherRound) -> list[str] | None:
        if call.round not in self._rounds and 0 <= call.round < max(self._rounds, default=0):
            return None  # a late repetition of a call that all nodes have completed
        messages = self._rounds.setdefault(call.round, {})
        if call.message is not None:
            messages[call.rank] = call.message
        if len(messages) < call.size:
            return None
        for past in [n for n in self._rounds if 0 < n < call.round]:  # nodes in this round have had their answers
            del self._rounds[past]
        return [messages[rank] for rank in sorted(messages)]

    def first(self) -> dict[int, str]:
        """What each node that has joined the first round has told about itself, by rank."""
        with self._changed:
            return dict(self._rounds.get(0, {}))
