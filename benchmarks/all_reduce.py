"""What one sum over two workers costs, by size: ours beside TensorFlow's bare operation and beside bare sockets.

Two processes of one thread on this host, in turn. "gradients" is what a training step of KerasEstimator does with ten
gradients of that size together, through a connection of its own; "operation" is one ``CollectiveReduceV2`` of one such
tensor; "sockets" is the same exchange by hand over one TCP connection: halves there, sums back.

    python benchmarks/all_reduce.py [--repeats 20] [--kilobytes 4 40 400 4000 40000 400000]
"""

from __future__ import annotations

import argparse
import contextlib
import json
import multiprocessing
import os
import socket
import statistics
import threading
import time
from collections.abc import Callable
from typing import Any

import numpy as np

KILOBYTES = (4, 40, 400, 4_000, 40_000, 400_000)
GRADIENTS = 10
ONE_THREAD = {"TF_NUM_INTRAOP_THREADS": "1", "TF_NUM_INTEROP_THREADS": "2", "TF_CPP_MIN_LOG_LEVEL": "3"}


class Sockets:
    """The exchange by hand."""

    def __init__(self, rank: int, port: int):
        if rank == 0:
            with socket.create_server(("127.0.0.1", port)) as listening:
                self._peer, _ = listening.accept()
        else:
            self._peer = _connected(port)
        self._peer.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
        self._rank = rank

    def all_reduce(self, mine: np.ndarray) -> np.ndarray:
        """Sum over both sides; each sums a half."""
        halves = np.split(mine, 2)
        own, other = halves[self._rank], halves[1 - self._rank]
        total = own + self._exchange(other)
        parts = [total, self._exchange(total)]
        return np.concatenate(parts if self._rank == 0 else parts[::-1])

    def _exchange(self, sent: np.ndarray) -> np.ndarray:
        received = np.empty_like(sent)
        sender = threading.Thread(target=self._peer.sendall, args=[memoryview(sent).cast("B")])
        sender.start()
        view = memoryview(received).cast("B")
        while view:
            view = view[self._peer.recv_into(view) :]
        sender.join()
        return received


def _connected(port: int) -> socket.socket:
    deadline = time.monotonic() + 60
    while True:
        with contextlib.suppress(ConnectionRefusedError):
            return socket.create_connection(("127.0.0.1", port))
        if time.monotonic() > deadline:
            raise TimeoutError("the other worker does not listen")
        time.sleep(0.01)


def milliseconds(call: Callable[[], object], repeats: int) -> float:
    """Median of some calls, after two that are not counted."""
    found = []
    for _ in range(repeats + 2):
        began = time.perf_counter()
        call()
        found.append(1e3 * (time.perf_counter() - began))
    return statistics.median(found[2:])


def work(rank: int, ports: list[int], kilobytes: list[int], repeats: int, results: Any) -> None:
    """One of the two workers; the first reports."""
    addresses, ours = [f"127.0.0.1:{port}" for port in ports[:2]], [f"127.0.0.1:{port}" for port in ports[2:4]]
    os.environ["TF_CONFIG"] = json.dumps({"cluster": {"worker": addresses}, "task": {"type": "worker", "index": rank}})
    import tensorflow as tf

    from tfos_ml.keras.collectives import WorkerGroup

    plain = WorkerGroup.start(rank, addresses, 120, "ring")
    group = WorkerGroup.start(rank, ours, 120, secret=b"of this benchmark")
    sockets = Sockets(rank, ports[4])
    for size in kilobytes:
        values = np.ones(size * 250 // GRADIENTS * GRADIENTS, np.float32)
        tensor, parts = tf.constant(values), list(map(tf.constant, np.split(values, GRADIENTS)))
        shapes = [part.shape for part in parts]

        @tf.function
        def operation(given, size=size):
            return plain.all_reduce(given, f"bare-{size}")

        @tf.function
        def gradients(given, shapes=shapes):
            return group.sum_gradients(given, tf.constant(0.5), shapes)

        contenders = {
            "gradients": lambda parts=parts, gradients=gradients: gradients(parts),
            "operation": lambda tensor=tensor, operation=operation: operation(tensor),
            "sockets": lambda values=values: sockets.all_reduce(values),
        }
        count = repeats if size < 100_000 else min(repeats, 5)
        results.put((rank, size, {name: milliseconds(call, count) for name, call in contenders.items()}))


def main() -> None:
    """Measure, and print a line for each size."""
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--repeats", type=int, default=20)
    parser.add_argument("--kilobytes", type=int, nargs="+", default=list(KILOBYTES))
    options = parser.parse_args()
    os.environ.update(ONE_THREAD)
    with contextlib.ExitStack() as stack:
        listening = [stack.enter_context(socket.create_server(("127.0.0.1", 0))) for _ in range(5)]
        ports = [server.getsockname()[1] for server in listening]
    context = multiprocessing.get_context("spawn")
    results = context.Queue()
    workers = [
        context.Process(target=work, args=(rank, ports, options.kilobytes, options.repeats, results))
        for rank in range(2)
    ]
    for worker in workers:
        worker.start()
    print(f"{'kB':>9} {'gradients':>12} {'operation':>12} {'sockets':>12}   milliseconds; ours / operation, / sockets")
    for _ in range(2 * len(options.kilobytes)):
        rank, size, found = results.get(timeout=600)
        if rank == 0:
            ours, bare, limit = found.values()
            line = f"{size:>9,} {ours:>12.2f} {bare:>12.2f} {limit:>12.2f}   {ours / bare:.2f}  {ours / limit:.2f}"
            print(line, flush=True)
    for worker in workers:
        worker.join()


if __name__ == "__main__":
    main()
