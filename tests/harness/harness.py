"""Fits and clusters without a JVM: real drivers, supervisors and processes of nodes, on :mod:`spark_of_processes`."""

from __future__ import annotations

import os
from argparse import Namespace
from collections.abc import Callable, Iterator
from typing import Any

import pyarrow as pa
import spark_task
from spark_of_processes import ProcessSpark, Rows

from tfos_ml import InputMode, TFCluster
from tfos_ml.data.arrow import spec_of
from tfos_ml.data.schema import ROW_COLUMN, FeedSchema
from tfos_ml.driver.attempt import RunResult
from tfos_ml.driver.fit_job import launch
from tfos_ml.driver.session_facts import SessionFacts
from tfos_ml.protocol.artifacts import Artifact
from tfos_ml.protocol.cluster_template import ClusterTemplate, make_template
from tfos_ml.protocol.messages import Report
from tfos_ml.protocol.node_task import NodeSettings, NodeTask
from tfos_ml.protocol.pickling import pack_program

BATCH_ROWS = 1000
CONSTANTS = {  # on the nodes
    "tfos_ml.protocol.control_client.CALL_TIMEOUT": 1.0,
    "tfos_ml.agent.progress_link.CALL_TIMEOUT": 1.0,
    "tfos_ml.agent.standalone_supervisor.start_supervisor": spark_task.fork_supervisor,
}
PLAIN = {"spark.dynamicAllocation.enabled": "true", "spark.dynamicAllocation.maxExecutors": "8"}  # no barrier jobs


def session(mode: str = "barrier") -> ProcessSpark:
    """A session whose jobs are barrier jobs, or plain ones as under dynamic allocation."""
    return ProcessSpark(PLAIN if mode == "plain" else None, CONSTANTS)


def fit(
    spark: ProcessSpark,
    train_fn: Callable[[Any, Any], Any],
    args: dict[str, Any] | None = None,
    nodes: int = 1,
    rows: int = 60,
    width: int = 0,
    restarts: int = 0,
    reported: Callable[[list[Report]], object] = lambda reports: None,
    silence: float = 120.0,
    **settings: Any,
) -> RunResult:
    """What ``TFEstimator.fit`` does once it knows the columns.

    Parameters
    ----------
    rows : int
        Rows of each node; row `i` of node `rank` is the number ``rank * rows + i``.
    width : int
        How often a row has that number, as an array; 0 for the bare number.
    restarts : int
        ``maxRestarts``.
    reported : callable
        Gets the nodes' reports as they come.
    silence : float
        ``heartbeat_timeout``.
    **settings
        Of :class:`tfos_ml.protocol.node_task.NodeSettings`.

    Raises
    ------
    tfos_ml.errors.TfosMlError
        As ``fit`` does.
    """
    kind = pa.list_(pa.int64()) if width else pa.int64()
    schema = pa.schema([("c0", kind), (ROW_COLUMN, pa.int64())])

    def source(rank: int) -> Iterator[pa.RecordBatch]:
        for start in range(0, rows, BATCH_ROWS):
            count = min(BATCH_ROWS, rows - start)
            values: Any = [rank * rows + start + i for i in range(count)]
            numbers = [(rank << 33) + start + i for i in range(count)]
            if width:
                flat = pa.array(values).take(pa.array([i for i in range(count) for _ in range(width)]))
                values = pa.ListArray.from_arrays(pa.array(range(0, count * width + 1, width), pa.int32()), flat)
            yield pa.record_batch([pa.array(values, kind), pa.array(numbers)], schema=schema)

    fixed = {"working_dir": os.getcwd(), "user": "driver", "home": "/", "shuffle": False, "feed_timeout": 30.0}
    task = NodeTask(
        run_id="",
        template=make_template(nodes),
        schema=FeedSchema((spec_of(kind, "id", "features"),)),
        payload=Artifact("program", pack_program("trainFn", train_fn, (train_fn, Namespace(**(args or {}))), {})),
        settings=NodeSettings(**{**fixed, **settings}),
        environment={},
        reservation_timeout=30,
        export_dir=None,
        control=None,
        heartbeat_timeout=silence,
    )

    def dataframe(template: ClusterTemplate) -> Any:
        return Rows(spark, schema, source, nodes)

    return launch(spark, SessionFacts.of(spark), dataframe, task, max_restarts=restarts, verbose=0, reported=[reported])


def start(
    spark: ProcessSpark,
    map_fun: Callable[[Any, Any], Any],
    args: Any = None,
    nodes: int = 1,
    mode: InputMode = InputMode.TENSORFLOW,
    **options: Any,
) -> TFCluster:
    """A running cluster."""
    return TFCluster.run(spark, map_fun, args or {}, nodes, input_mode=mode, **options)


def metrics_of(nodes: list[dict[str, Any]]) -> dict[str, dict[str, float]]:
    """What each node reported, by its label."""
    return {
        node["label"]: {name: value for report in node["metrics"] for name, value in report["metrics"].items()}
        for node in nodes
    }
