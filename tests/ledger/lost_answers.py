"""The driver's servers with a bad network between them and those who call: what is asked is done, but not heard of."""

from __future__ import annotations

import threading
import time
from collections import Counter
from collections.abc import Callable
from typing import Any

import pyarrow.flight as flight

from tfos_ml.protocol.codec import decode

TIMES = 2  # so often for each action of each node
LATE_SECONDS = 1.5  # the callers wait for 1 s
AGAIN_SECONDS = 0.3


class Answers:
    """What becomes of answers, from the moment that a test arms it.

    Parameters
    ----------
    fault : str
        ``"lost answers"``, ``"late answers"``, which nobody waits for any more, or ``"doubled calls"``, which come a
        second time at once and a third time later; anything else leaves them alone.
    """

    def __init__(self, fault: str):
        self._fault = fault
        self._is_fault = fault in ("lost answers", "late answers", "doubled calls")
        self._armed = False
        self._hits: Counter[Any] = Counter()

    def arm(self) -> None:
        """Begin."""
        self._armed = True

    def were_hit(self) -> bool:
        """Whether any answer was, if any should be."""
        return bool(self._hits) or not self._is_fault

    def give(self, call: Callable[[], Any], key: Any) -> Any:
        """The answer of a call, or what becomes of it."""
        answer = call()
        if not (self._armed and self._is_fault) or self._hits[key] >= TIMES:
            return answer
        self._hits[key] += 1
        if self._fault == "lost answers":
            raise flight.FlightUnavailableError("the answer is lost")
        if self._fault == "late answers":
            time.sleep(LATE_SECONDS)
            return answer
        threading.Timer(AGAIN_SECONDS, call).start()
        return call()

    def hit(self, server: Any) -> Any:
        """A class of server like `server`, whose answers this is about."""
        answers = self

        class Hit(server):  # type: ignore[misc]
            def do_action(self, context: Any, action: flight.Action) -> list[bytes]:
                copy = flight.Action(action.type, action.body.to_pybytes())
                key = (action.type, decode(dict, copy.body.to_pybytes()).get("rank"))
                return answers.give(lambda: super(Hit, self).do_action(None, copy), key)  # type: ignore[no-any-return]

            def do_put(self, context: Any, descriptor: Any, reader: Any, writer: Any) -> None:
                super().do_put(context, descriptor, reader, writer)
                if answers._fault != "doubled calls":  # a stream cannot be read twice
                    answers.give(lambda: None, ("put", descriptor.command))

        return Hit
