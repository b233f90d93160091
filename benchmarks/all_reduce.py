"""What one sum over workers costs, by size: ours beside Gloo, TensorFlow's bare operation, and bare sockets.

Processes of one thread on this host. "gradients" is what a training step of KerasEstimator does with ten gradients of
that size together, through connections of its own; "operation" is one ``CollectiveReduceV2`` of one such tensor;
"sockets", for two processes, is the same exchange by hand over one TCP connection: halves there, sums back; "gloo" is
``torch.distributed.all_reduce`` on CPUs. The first three take turns; Gloo follows in processes of its own.

    python benchmarks/all_reduce.py [--processes 2 4 8] [--repeats 20] [--kilobytes 4 40 400 4000 40000 256000]

Over a wire, the program runs on each host, with RANK and the ADDRESSES of all in its environment, and the name of its
network interface for Gloo. It prints how near "gradients" and "gloo" come to the limit of the wire, 2 (n - 1) / n *
bytes / rate, as parts of 1:

    RANK=0 ADDRESSES='10.0.0.1 10.0.0.2' GLOO_SOCKET_IFNAME=eth0 python benchmarks/all_reduce.py --gigabits 1
"""

from __future__ import annotations

import argparse
import contextlib
import json
import math
import multiprocessing
import os
import socket
import statistics
import subprocess
import threading
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import peers

KILOBYTES = (4, 40, 400, 4_000, 40_000, 256_000)
GRADIENTS = 10
PORTS = 29501, 29502  # on each host
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


def values_of(kilobytes: int) -> np.ndarray:
    """So many kilobytes of numbers."""
    return np.ones(kilobytes * 250 // GRADIENTS * GRADIENTS, np.float32)


def repeats_of(kilobytes: int, repeats: int) -> int:
    """How often a sum of this size is timed."""
    return repeats if kilobytes < 100_000 else min(repeats, 5)


def sum_of_gradients(group: Any, values: np.ndarray) -> Callable[[], object]:
    """What a training step does with its gradients."""
    import tensorflow as tf

    parts = list(map(tf.constant, np.split(values, GRADIENTS)))
    shapes = [part.shape for part in parts]

    @tf.function
    def gradients(given: list[Any]) -> Any:
        return group.all_sum_gradients(given, tf.constant(0.5), shapes)

    return lambda: gradients(parts)


def work(rank: int, size: int, ports: list[int], kilobytes: list[int], repeats: int, results: Any) -> None:
    """One of the workers; the first reports."""
    addresses, ours = ([f"127.0.0.1:{port}" for port in part] for part in (ports[:size], ports[size : 2 * size]))
    os.environ["TF_CONFIG"] = json.dumps({"cluster": {"worker": addresses}, "task": {"type": "worker", "index": rank}})
    import tensorflow as tf

    from tfos_ml.keras.collectives.group import WorkerGroup

    plain = WorkerGroup.start(rank, addresses, 120, "ring")
    group = WorkerGroup.start(rank, ours, 120, secret=b"of this benchmark")
    sockets = Sockets(rank, ports[-1]) if size == 2 else None
    for kilobyte in kilobytes:
        values = values_of(kilobyte)
        tensor = tf.constant(values)

        @tf.function
        def operation(given, kilobyte=kilobyte):
            return plain.all_reduce(given, f"bare-{kilobyte}")

        contenders: dict[str, Callable[[], object]] = {
            "gradients": sum_of_gradients(group, values),
            "operation": lambda tensor=tensor, operation=operation: operation(tensor),
        }
        if sockets is not None:
            contenders["sockets"] = lambda values=values: sockets.all_reduce(values)
        count = repeats_of(kilobyte, repeats)
        found = {name: milliseconds(call, count) for name, call in contenders.items()}
        if rank == 0:
            results.put(found)


def ours_and_tensorflows(size: int, kilobytes: list[int], repeats: int) -> list[dict[str, float]]:
    """Milliseconds of each contender, for each number of kilobytes."""
    ports = free_ports(2 * size + 1)
    context = multiprocessing.get_context("spawn")
    results = context.Queue()
    workers = [
        context.Process(target=work, args=(rank, size, ports, kilobytes, repeats, results)) for rank in range(size)
    ]
    for worker in workers:
        worker.start()
    found = [results.get(timeout=600) for _ in kilobytes]
    for worker in workers:
        worker.join()
    return found


def gloos(size: int, kilobytes: list[int], repeats: int) -> list[float]:
    """Milliseconds of Gloo, for each number of kilobytes."""
    (port,) = free_ports(1)
    running = [gloo(f"127.0.0.1:{port}", size, rank, kilobytes, repeats) for rank in range(size)]
    outputs = [process.communicate()[0] for process in running]
    return json.loads(outputs[0].splitlines()[-1])


def gloo(address: str, size: int, rank: int, kilobytes: list[int], repeats: int) -> subprocess.Popen[str]:
    """One process of Gloo, which prints its milliseconds."""
    command = [peers.python_of("torch"), Path(__file__).with_name("gloo_peer.py"), address, *map(str, (size, repeats))]
    return subprocess.Popen([*command, str(rank), *map(str, kilobytes)], stdout=subprocess.PIPE, text=True)


def over_a_wire(rank: int, hosts: list[str], gigabits: float, kilobytes: list[int], repeats: int) -> None:
    """Measure as one host of several; the first prints a line for each size."""
    from tfos_ml.keras.collectives.group import WorkerGroup

    addresses = [f"{host}:{PORTS[0]}" for host in hosts]
    with WorkerGroup.start(rank, addresses, 120, secret=b"of this benchmark") as group:
        ours = [milliseconds(sum_of_gradients(group, values_of(k)), repeats_of(k, repeats)) for k in kilobytes]
    size = len(hosts)
    process = gloo(f"{hosts[0]}:{PORTS[1]}", size, rank, kilobytes, repeats)
    gloos = json.loads(process.communicate()[0].splitlines()[-1])
    for kilobyte, mine, other in zip(kilobytes, ours, gloos, strict=True):
        limit = 2 * (size - 1) / size * values_of(kilobyte).nbytes * 8 / (gigabits * 1e6)
        figures = f"{size:>9} {kilobyte:>8,} limit {limit:>9.2f} gradients {mine:>9.2f} gloo {other:>9.2f}"
        if rank == 0:
            print(f"{figures}   of the limit: gradients {limit / mine:.2f}, gloo {limit / other:.2f}", flush=True)


def free_ports(count: int) -> list[int]:
    """Ports that nothing listens on."""
    with contextlib.ExitStack() as stack:
        listening = [stack.enter_context(socket.create_server(("127.0.0.1", 0))) for _ in range(count)]
        return [server.getsockname()[1] for server in listening]


def main() -> None:
    """Measure, and print a line for each number of processes and size."""
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--repeats", type=int, default=20)
    parser.add_argument("--processes", type=int, nargs="+", default=[2, 4, 8])
    parser.add_argument("--kilobytes", type=int, nargs="+", default=list(KILOBYTES))
    parser.add_argument("--gigabits", type=float, help="a second, that each host can send; with RANK and ADDRESSES")
    options = parser.parse_args()
    os.environ.update(ONE_THREAD)
    if options.gigabits:
        rank, hosts = int(os.environ["RANK"]), os.environ["ADDRESSES"].split()
        over_a_wire(rank, hosts, options.gigabits, options.kilobytes, options.repeats)
        return
    names = ("gradients", "operation", "sockets", "gloo")
    print("milliseconds; ratio of gradients to each other\n" + f"{'processes':>9} {'kB':>8}", end="")
    print("".join(f"{name:>12}" for name in names))
    for size in options.processes:
        ours = ours_and_tensorflows(size, options.kilobytes, options.repeats)
        gloo = gloos(size, options.kilobytes, options.repeats)
        for kilobyte, found, milliseconds_of_gloo in zip(options.kilobytes, ours, gloo, strict=True):
            found["gloo"] = milliseconds_of_gloo
            line = f"{size:>9} {kilobyte:>8,}" + "".join(f"{found.get(name, math.nan):>12.2f}" for name in names)
            ratios = (f"{name} {found['gradients'] / found[name]:.2f}" for name in names[1:] if name in found)
            print(line, "  ", ", ".join(ratios), flush=True)


if __name__ == "__main__":
    main()
