"""Uploads large result rows directly to the driver's control server, instead of through Spark."""

from __future__ import annotations

import time
from collections.abc import Callable, Iterable

import pyarrow as pa

from tfos_ml.common.limits import CALL_RETRY_SECONDS
from tfos_ml.protocol import results
from tfos_ml.protocol.control_client import NO_ANSWER
from tfos_ml.protocol.control_messages import SendResults
from tfos_ml.protocol.transport import command, connect

LARGE_BYTES = 4 << 20
"""Larger results do not go through the JVMs of executors and driver, which hold a task's result several times."""


def deliver(rows: Callable[[], Iterable[pa.RecordBatch]], rank: int, control: dict[str, str], patience: float) -> None:
    """Send result rows to the driver, and retry until it has them; raises ``ArrowException`` if it is gone.

    `rows` is called for each attempt; `patience` is in seconds.
    """
    deadline = time.monotonic() + patience
    while True:
        try:
            _send(rows(), rank, control)
            return
        except NO_ANSWER:
            if time.monotonic() > deadline:
                raise
            time.sleep(CALL_RETRY_SECONDS)


def _send(rows: Iterable[pa.RecordBatch], rank: int, control: dict[str, str]) -> None:
    with connect(control["location"], control["token"]) as client:
        writer, reader = client.do_put(command(SendResults(rank)), results.ARROW_SCHEMA)
        with writer:
            for batch in rows:
                writer.write_batch(batch)
            writer.write_batch(results.row(rank, results.END, b""))
            writer.done_writing()
            while reader.read() is not None:  # until the driver has them
                pass
