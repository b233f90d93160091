"""A network between the hosts of a world: what is sent is late, out of order, lost, doubled, or cut off."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from dataclasses import dataclass
from itertools import count
from types import SimpleNamespace
from typing import Any

import pyarrow as pa
import pyarrow.flight as flight
import virtual_time
from virtual_time import Condition, Process

from tfos_ml.protocol import control_client, transport

KEEPALIVE_SECONDS = 40.0  # of gRPC, for a stream to a host that answers nothing
MAY_WAIT = {"GetOutcome", "ClaimPartition", "GetCommitted"}  # actions that the driver answers late


@dataclass(frozen=True)
class Weather:
    """How bad the network is: probabilities for each message, and seconds."""

    lost: float = 0.0
    doubled: float = 0.0
    slow: float = 0.0
    seconds: float = 0.0  # that a slow message takes, at most


class Network:
    """Servers by port, and what becomes of messages."""

    def __init__(self, weather: Weather):
        self.weather = weather
        self._servers: dict[int, tuple[Any, Process]] = {}
        self._ports = count(1)
        self._cut_until: dict[str, float] = {}
        self._callers: list[Process] = []

    def cut(self, host: str, seconds: float) -> None:
        virtual_time.now_in.note(host, "is cut off for", round(seconds, 3))
        self._cut_until[host] = virtual_time.now_in.now + seconds

    def is_cut(self, *hosts: str) -> bool:
        """Whether one of these hosts cannot be reached from another."""
        if not self._cut_until:
            return False
        now = virtual_time.now_in.now
        return any(self._cut_until.get(host, 0.0) > now for host in hosts)

    def port(self, caller: Process) -> int:
        """The port of a caller's connection."""
        if caller not in self._callers:
            self._callers.append(caller)
        return 1 + self._callers.index(caller)

    def connected_ports(self) -> set[int]:
        """Instead of what the kernel knows: connections end with their processes, but not across a cut."""
        return {self.port(one) for one in self._callers if not one.is_dead or self.is_cut(one.host)}

    def listen(self, server: Any) -> SimpleNamespace:
        """Instead of ``transport._listen``: the process that runs serves on a port of its own."""
        port = next(self._ports)
        self._servers[port] = server, virtual_time.process()
        return SimpleNamespace(port=port, network=self)

    def close(self, listener: Any) -> None:
        """Instead of ``transport._close``."""
        self._servers.pop(listener.port, None)

    def at(self, port: int) -> tuple[Any, Process] | None:
        """The server at a port, if its process lives."""
        server = self._servers.get(port)
        return None if server is None or server[1].is_dead else server

    def send(self, sender: str, receiver: str, arrive: Callable[..., None], *args: Any) -> None:
        """Send something to another host, where `arrive` is called so often as it arrives."""
        world, weather = virtual_time.now_in, self.weather
        draw = world.draw.random
        if sender != receiver and (self.is_cut(sender, receiver) or (weather.lost and draw() < weather.lost)):
            return
        for _ in range(2 if weather.doubled and draw() < weather.doubled else 1):
            is_slow = weather.slow and draw() < weather.slow
            world.at(weather.seconds * draw() if is_slow else 0.002 * draw(), arrive, *args)


def port_of(location: str) -> int:
    return int(location.rpartition(":")[2])


class Client:
    """Instead of ``FlightClient``; it belongs to the process that makes it."""

    def __init__(self, network: Network, location: str):
        self._network, self._port = network, port_of(location)
        self._process = virtual_time.process()

    def __enter__(self) -> Client:
        return self

    def __exit__(self, *error: object) -> None:
        pass

    def close(self) -> None:
        pass

    def do_action(self, action: flight.Action, options: Any = None) -> list[Any]:
        call = _Call(self._network, self._process, self._port, action.type, action.body.to_pybytes())
        return [SimpleNamespace(body=body) for body in call.answer()]

    def do_put(self, descriptor: flight.FlightDescriptor, schema: Any = None, options: Any = None) -> Any:
        stream = Stream(self._network, self._process, self._port, descriptor.command)
        return stream, stream


class _Call:
    def __init__(self, network: Network, process: Process, port: int, kind: str, body: bytes):
        self._network, self._process, self._port = network, process, port
        self._kind, self._body = kind, body
        self._answered = Condition()
        self._answer: Any = None

    def answer(self) -> list[bytes]:
        server = self._network.at(self._port)
        host = "driver" if server is None else server[1].host
        self._network.send(self._process.host, host, self._arrive)
        if self._answer is None:
            self._answered.wait_for(lambda: self._answer is not None, control_client.CALL_TIMEOUT)
        if self._answer is None:
            raise flight.FlightTimedOutError("no answer in time")
        if isinstance(self._answer, Exception):
            raise self._answer
        return self._answer  # type: ignore[no-any-return]

    def _arrive(self) -> None:
        world, found = virtual_time.now_in, self._network.at(self._port)
        if found is None:
            self._back("", flight.FlightUnavailableError("connection refused"))
            return
        server, process = found
        if process.stands_until > world.now:
            world.at(process.stands_until - world.now, self._arrive)
        elif self._kind in MAY_WAIT:
            world.start(process, self._kind, self._serve, server, process)
        else:
            self._serve(server, process)

    def _serve(self, server: Any, process: Process) -> None:
        try:
            transport.caller_port.set(self._network.port(self._process))
            answer: Any = server.do_action(None, SimpleNamespace(type=self._kind, body=self._body))
        except Exception as error:  # as Arrow Flight passes on what a server raises
            answer = flight.FlightServerError(f"{type(error).__name__}: {error}")
        self._back(process.host, answer)

    def _back(self, host: str, answer: Any) -> None:
        self._network.send(host or self._process.host, self._process.host, self._take, answer)

    def _take(self, answer: Any) -> None:
        if self._answer is None:
            self._answer = answer
            self._answered.notify_all()


class _End:
    """A server has ended its part of a stream."""


class Stream:
    """A put: the caller's writer and reader. Messages stay in order; a lost one breaks the connection."""

    def __init__(self, network: Network, process: Process, port: int, command: bytes):
        self._network, self._process = network, process
        self._to_server, self._to_caller = virtual_time.SimpleQueue(), virtual_time.SimpleQueue()
        self._latest = 0.0
        self._broken: Exception | None = None
        self._ended: Any = None
        found = network.at(port)
        if found is None:
            raise flight.FlightUnavailableError("connection refused")
        server, self._server = found
        process.when_it_ends(self._break)
        self._server.when_it_ends(self._break)
        self._carry(self._process, self._server, self._begin, server, command)

    def _begin(self, server: Any, command: bytes) -> None:
        if virtual_time.now_in is not None and not self._server.is_dead:
            virtual_time.now_in.start(self._server, "put", self._serve, server, command)

    def _serve(self, server: Any, command: bytes) -> None:
        end: Any = _End
        try:
            server.do_put(None, SimpleNamespace(command=command), _Reader(self), _Writer(self))
        except Exception as error:
            end = flight.FlightServerError(f"{type(error).__name__}: {error}")
        self._carry(self._server, self._process, self._to_caller.put, end)

    def _carry(self, sender: Process, receiver: Process, arrive: Callable[..., None], *args: Any) -> None:
        world, weather = virtual_time.now_in, self._network.weather
        if self._network.is_cut(sender.host, receiver.host):
            world.at(KEEPALIVE_SECONDS, self._break)
        elif weather.lost and world.draw.random() < weather.lost:
            self._break()
        else:
            seconds = weather.seconds if weather.slow and world.draw.random() < weather.slow else 0.002
            self._latest = max(self._latest, world.now + seconds * world.draw.random())
            world.at(self._latest - world.now, arrive, *args)

    def _break(self) -> None:
        self._broken = self._broken or flight.FlightUnavailableError("the connection has broken")
        self._to_caller.put(self._broken)
        self._to_server.put(self._broken)

    # The caller's

    def __enter__(self) -> Stream:
        return self

    def __exit__(self, *error: object) -> None:
        self.close()

    def write_batch(self, batch: Any) -> None:
        if self._broken is not None:
            raise self._broken
        self._carry(self._process, self._server, self._to_server.put, batch)

    def done_writing(self) -> None:
        self._carry(self._process, self._server, self._to_server.put, _End)

    def close(self) -> None:
        self.done_writing()
        while self.read() is not None:
            pass

    def read(self) -> Any:
        """The next answer, None at the end."""
        if self._ended is None:
            item = self._get()
            if not (item is _End or isinstance(item, Exception)):
                return pa.py_buffer(item)
            self._ended = item
        if self._ended is _End:
            return None
        raise self._ended

    def _get(self) -> Any:
        while True:
            try:
                return self._to_caller.get(KEEPALIVE_SECONDS)
            except virtual_time.queues.Empty:
                if self._server.stands_until > virtual_time.now_in.now or self._broken is not None:
                    return flight.FlightUnavailableError("keepalive watchdog timeout")


class _Reader:
    def __init__(self, stream: Stream):
        self._stream = stream
        self._end: Any = None

    def read_chunk(self) -> Any:
        if self._end is None:
            item = self._stream._to_server.get()
            if not (item is _End or isinstance(item, Exception)):
                return SimpleNamespace(data=item)
            self._end = item
        if self._end is _End:
            raise StopIteration
        raise self._end

    def __iter__(self) -> Iterator[Any]:
        return self

    __next__ = read_chunk


class _Writer:
    def __init__(self, stream: Stream):
        self._stream = stream

    def write(self, content: bytes) -> None:
        if self._stream._broken is not None:
            raise self._stream._broken
        self._stream._carry(self._stream._server, self._stream._process, self._stream._to_caller.put, content)


def create_connection(network: Network, target: tuple[str, int], timeout: float) -> Any:
    """Instead of ``socket.create_connection``: a process that stands still accepts, one that has ended refuses."""
    host = virtual_time.process().host
    found = network.at(target[1])
    if network.is_cut(host, "driver" if found is None else found[1].host):
        virtual_time.sleep(timeout)
        raise TimeoutError("no answer")
    if found is None:
        raise ConnectionRefusedError("refused")
    return SimpleNamespace(close=lambda: None)
