"""Calls to the driver's control server, repeated until it answers or is gone."""

from __future__ import annotations

import socket
import time
from urllib.parse import urlsplit

import pyarrow.flight as flight

from tfos_ml.common.timeouts import CALL_RETRY_SECONDS, CALL_TIMEOUT, REFUSED_SECONDS
from tfos_ml.protocol.addresses import ControlAddress
from tfos_ml.protocol.codec import decode, encode
from tfos_ml.protocol.control_messages import A, Request, answer_type
from tfos_ml.protocol.transport import checked_credentials, connect

RECONNECT = {"grpc.initial_reconnect_backoff_ms": 200, "grpc.max_reconnect_backoff_ms": 1_000}
NO_ANSWER = (
    flight.FlightUnavailableError,
    flight.FlightTimedOutError,
    flight.FlightCancelledError,
    flight.FlightInternalError,
)
"""Errors of a call without an answer; the call may have taken effect."""


class ControlClient:
    """A node's client of the control server."""

    def __init__(self, address: ControlAddress):
        self._client = connect(address.location, address.token, RECONNECT)
        self._location = address.location
        self._options = flight.FlightCallOptions(timeout=CALL_TIMEOUT)

    @checked_credentials()
    def call(self, request: Request[A]) -> A:
        """Make one call; raises ``pyarrow.lib.ArrowException`` if the driver cannot be reached."""
        action = flight.Action(type(request).__name__, encode(request))
        result = next(iter(self._client.do_action(action, self._options)), None)
        if result is None:
            raise flight.FlightUnavailableError("the call ended without an answer")
        return decode(answer_type(type(request)), result.body)

    def call_reliably(self, request: Request[A], patience: float) -> A:
        """Repeat a call for `patience` seconds until it is answered; ``ArrowException`` if it is not, or is refused."""
        deadline = time.monotonic() + patience
        refusals = Refusals(self._location)
        while True:
            try:
                return self.call(request)
            except NO_ANSWER:
                if time.monotonic() > deadline or refusals.are_final():
                    raise
                time.sleep(CALL_RETRY_SECONDS)

    def refusals(self) -> Refusals:
        """Whether the driver's host refuses connections."""
        return Refusals(self._location)

    def close(self) -> None:
        self._client.close()


class Refusals:
    """Distinguishes a driver whose process is gone from one that is stopped, slow or cut off.

    If the process is gone, its host refuses connections at once. If it is stopped, its host accepts a number of
    connections, then is silent. A host that is cut off does not answer at all.
    """

    def __init__(self, location: str):
        target = urlsplit(location)
        self._target = target.hostname, target.port or 0
        self._since: float | None = None

    @property
    def is_refused(self) -> bool:
        """Whether the last attempt was refused."""
        return self._since is not None

    def are_final(self) -> bool:
        """Try to connect; returns whether all attempts of the last ``REFUSED_SECONDS`` were refused."""
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
        """Start over: the driver has answered."""
        self._since = None
