"""Sums over workers through connections between each two of them; here the workers are threads."""

import contextlib
import socket
import threading
from concurrent.futures import ThreadPoolExecutor

import numpy as np
import pytest
from ports import free_ports

from tfos_ml.keras.collectives.segmented_sum import SEGMENT_BYTES
from tfos_ml.keras.collectives.sockets import WHOLE_BYTES, PeerAllReduce, PeerLostError, SilentWorkerError

SECRET = b"of these tests"
DEADLINE = 60.0
LARGE = WHOLE_BYTES // 4 + 1001  # float32 numbers, which no number of workers divides
SEGMENTS = SEGMENT_BYTES // 4 * 5 + 1001


@pytest.fixture
def start():
    """Connects so many workers; functions for each of them run at the same time."""
    with contextlib.ExitStack() as stack:

        def start(size, timeout=DEADLINE):
            addresses = [f"127.0.0.1:{port}" for port in free_ports(size)]
            pool = stack.enter_context(ThreadPoolExecutor(size))
            connect = lambda rank: PeerAllReduce.connect(rank, addresses, SECRET, timeout)  # noqa: E731
            meshes = list(pool.map(connect, range(size)))
            for mesh in meshes:
                stack.callback(mesh.close)
            return meshes, lambda work: list(pool.map(work, meshes))

        yield start


def shares(size, count, dtype):
    """Of sizes that differ, so that the order of a sum shows in its last bits."""
    values = np.random.default_rng(3).normal(size=(size, count))
    return (values * 10.0 ** np.arange(size)[:, None]).astype(dtype)


@pytest.mark.parametrize(("size", "dtype", "count"), [(2, "float16", LARGE), (3, "float32", SEGMENTS)])
def test_all_have_the_sum_in_the_order_of_ranks(start, size, dtype, count):
    values = shares(size, count, dtype)
    expected = values[0]
    for share in values[1:]:
        expected = expected + share
    _, run = start(size)
    for found in run(lambda mesh: mesh.all_reduce(values[mesh.rank])):
        np.testing.assert_array_equal(found, expected, strict=True)
    half = np.array(0.5, dtype)[()]
    for found in run(lambda mesh: mesh.all_sum_weighted(half, values[mesh.rank][:7], values[mesh.rank])):
        for part, whole in zip(found, (expected[:7], expected), strict=True):
            np.testing.assert_array_equal(part, (whole * half).astype(dtype), strict=True)
    for found in run(lambda mesh: mesh.all_sum_weighted(0 * half, np.full((2, 3), np.nan, dtype))):
        np.testing.assert_array_equal(found, [np.zeros((2, 3), dtype)], strict=True)


def test_a_worker_that_has_ended_breaks_all_calls_at_once(start):
    meshes, run = start(3)
    meshes[1].close()

    def reduce(mesh):
        if mesh.rank == 1:
            return
        for _ in range(2):
            with pytest.raises(PeerLostError, match="worker 1 has ended"):
                mesh.all_reduce(np.ones(10))
        assert not isinstance(mesh.failure, SilentWorkerError)

    run(reduce)


def test_a_worker_that_stands_still_is_not_waited_for_longer_than_the_deadline(start):
    meshes, _ = start(2, timeout=0.5)
    with pytest.raises(SilentWorkerError, match=r"worker 1 has sent nothing for feedTimeout=0\.5 s.*raise feedTimeout"):
        meshes[0].all_reduce(np.ones(10))


def test_who_does_not_know_the_secret_is_none_of_the_workers():
    addresses = [f"127.0.0.1:{port}" for port in free_ports(2)]
    secrets = [SECRET, b"of others"]

    def connect(rank):
        with pytest.raises(SilentWorkerError):
            PeerAllReduce.connect(rank, addresses, secrets[rank], timeout=1.0)

    with ThreadPoolExecutor(2) as pool:
        list(pool.map(connect, range(2)))


def test_strangers_do_not_disturb():
    addresses = [f"127.0.0.1:{port}" for port in free_ports(2)]
    with ThreadPoolExecutor(2) as pool, contextlib.ExitStack() as strangers:
        first = pool.submit(PeerAllReduce.connect, 0, addresses, SECRET, DEADLINE)
        for said in (b"", b"GET / HTTP/1.1\r\n\r\n" + bytes(100), b"\0" * 68):
            strangers.enter_context(connected(addresses[0])).sendall(said)
        second = pool.submit(PeerAllReduce.connect, 1, addresses, SECRET, DEADLINE)
        with contextlib.closing(first.result()) as one, contextlib.closing(second.result()) as other:
            sums = pool.map(lambda mesh: mesh.all_reduce(np.ones(3)), [one, other])
            assert [list(found) for found in sums] == [[2.0] * 3] * 2


def connected(address):
    """A connection as soon as somebody listens."""
    host, port = address.split(":")
    while True:
        with contextlib.suppress(ConnectionRefusedError):
            return socket.create_connection((host, int(port)), timeout=DEADLINE)


class Relay:
    """Between two workers; once `changes` is set, it has what goes to the first one go through that."""

    def __init__(self, target):
        self.changes = bytes
        self.seen = b""
        self._listener = socket.create_server(("127.0.0.1", 0))
        self.address = f"127.0.0.1:{self._listener.getsockname()[1]}"
        self._target = target
        threading.Thread(target=self._run, daemon=True).start()

    def _run(self):
        caller, _ = self._listener.accept()
        with caller, connected(self._target) as listener, self._listener:
            back = threading.Thread(target=self._pass_on, args=[listener, caller, bytes], daemon=True)
            back.start()
            self._pass_on(caller, listener, lambda data: self.changes(data))
            back.join(DEADLINE)

    def _pass_on(self, source, target, change):
        with contextlib.suppress(OSError):
            while data := source.recv(1 << 20):
                self.seen += data
                target.sendall(change(data))
            target.shutdown(socket.SHUT_WR)


@pytest.mark.parametrize("encrypts", [False, True], ids=["plain", "encrypted"])
def test_a_sum_that_is_altered_on_its_way_is_none(encrypts):
    """Red before: the sum was another, and nobody saw it."""
    port, unused = free_ports(2)
    relay = Relay(f"127.0.0.1:{port}")
    ways = [(0, [f"127.0.0.1:{port}", "127.0.0.1:1"]), (1, [relay.address, f"127.0.0.1:{unused}"])]
    values = np.frombuffer(b"a telling text, ", np.uint8).repeat(10)

    def reduce(mesh):
        with contextlib.ExitStack() as at_failure:
            at_failure.callback(mesh.close)  # as a worker's end does, which the other then sees
            total = mesh.all_reduce(values)
            at_failure.pop_all()
            return int(total[0])

    with ThreadPoolExecutor(2) as pool, contextlib.ExitStack() as stack:
        meshes = list(pool.map(lambda way: PeerAllReduce.connect(*way, SECRET, 4.0, encrypts), ways))
        for mesh in meshes:
            stack.callback(mesh.close)
        assert list(pool.map(reduce, meshes)) == [2 * ord("a") % 256] * 2
        assert (b"aaaa" in relay.seen) is not encrypts
        relay.changes = lambda data: bytes([data[0] ^ 1]) + data[1:]
        with pytest.raises(PeerLostError, match="altered on its way"):
            list(pool.map(reduce, meshes))
