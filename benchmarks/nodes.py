"""How the driver's control server carries many nodes: they speak its protocol, and train nothing.

``python benchmarks/nodes.py [--nodes 100,300,1000] [--seconds 20]`` prints a line for each number of nodes: seconds
until all have met, and then, while each reports as often as nodes do, the driver's CPU seconds a second, calls a
second, the median and the worst time of a call, connections, and memory of the driver for each node. Nodes are threads
of other processes on the same machine, so that the times include their own work.
"""

from __future__ import annotations

import argparse
import multiprocessing
import os
import statistics
import time
from concurrent.futures import ThreadPoolExecutor
from typing import Any

import psutil

from tfos_ml.agent.progress_link import period_for
from tfos_ml.agent.spark_task import ConnectedTask, TaskInfo
from tfos_ml.driver.control_server import ControlServer
from tfos_ml.protocol.addresses import ControlAddress
from tfos_ml.protocol.cluster_template import make_template
from tfos_ml.protocol.control_client import ControlClient
from tfos_ml.protocol.control_messages import Arrive, NodeProgress, ReportGone, ReportProgress

PROCESSES = 4
PATIENCE = 300.0  # for a call that is not answered
INFO = "x" * 300  # as long as what a node tells about itself


def node(control: ControlAddress, rank: int, size: int, met: Any, seconds: float) -> list[float]:
    """One node: it arrives, meets the others, reports for so long, and leaves; returns the seconds of each report."""
    client = ControlClient(control)
    task = ConnectedTask(TaskInfo(rank, "127.0.0.1", 1, {}), control, size, patience=PATIENCE)
    while client.call_reliably(Arrive(rank, size), PATIENCE) is None:
        time.sleep(0.1)
    task.allGather(INFO)
    met.wait()
    took, end, number = [], time.monotonic() + seconds, 0
    time.sleep(period_for(size) * rank / size)
    while time.monotonic() < end:
        number, began = number + 1, time.monotonic()
        client.call_reliably(ReportProgress(rank, number, NodeProgress(rows=number), []), PATIENCE)
        took.append(time.monotonic() - began)
        time.sleep(max(0.0, period_for(size) - took[-1]))
    client.call_reliably(ReportGone(rank, True), PATIENCE)
    task.close()
    client.close()
    return took


def nodes(control: ControlAddress, ranks: range, size: int, met: Any, seconds: float, answers: Any) -> None:
    """Some of the nodes, in this process; every node is a thread."""
    with ThreadPoolExecutor(len(ranks)) as threads:
        took = list(threads.map(lambda rank: node(control, rank, size, met, seconds), ranks))
    answers.put([each for one in took for each in one])


def measure(size: int, seconds: float) -> str:
    """A line of the table."""
    driver = psutil.Process()
    before = driver.memory_info().rss
    server = ControlServer("127.0.0.1", make_template(size))
    context = multiprocessing.get_context("spawn")
    met, answers = context.Barrier(size + 1), context.SimpleQueue()
    shares = [range(size)[start::PROCESSES] for start in range(PROCESSES)]
    processes = [
        context.Process(target=nodes, args=(server.address, share, size, met, seconds, answers)) for share in shares
    ]
    for process in processes:
        process.start()
    while not server.all_gather._arrived:
        time.sleep(0.01)
    began = time.monotonic()
    met.wait()
    meeting = time.monotonic() - began
    used, began = sum(driver.cpu_times()[:2]), time.monotonic()
    connections = len(server.connected_ports() or ())
    time.sleep(seconds * 0.9)
    cpu = (sum(driver.cpu_times()[:2]) - used) / (time.monotonic() - began)
    memory = (driver.memory_info().rss - before) / size
    took = [each for _ in processes for each in answers.get()]
    for process in processes:
        process.join()
    server.close()
    return (
        f"{size:6,} {meeting:8.1f} {cpu:8.2f} {len(took) / seconds:8.0f} {statistics.median(took) * 1e3:9.1f} "
        f"{max(took) * 1e3:9.0f} {connections:8,} {memory / 1e3:8.0f}"
    )


def main() -> None:
    """Print the table."""
    parser = argparse.ArgumentParser(description=__doc__.partition("\n")[0])
    parser.add_argument("--nodes", default="100,300,1000")
    parser.add_argument("--seconds", type=float, default=20.0)
    options = parser.parse_args()
    print(f"{os.cpu_count()} cores")
    print(" nodes   s meet  CPU s/s  calls/s median ms  worst ms  connect  kB/node")
    for size in options.nodes.split(","):
        print(measure(int(size), options.seconds), flush=True)


if __name__ == "__main__":
    main()
