"""Puts the package's own code of nodes and driver on virtual time, a simulated network, processes and Spark."""

from __future__ import annotations

import contextlib
from collections.abc import Iterator
from functools import partial
from types import SimpleNamespace
from typing import Any

import clusters
import simulated_network
import simulated_node
import simulated_spark
import virtual_time

from tfos_ml.agent import (
    feed_task,
    node_result,
    node_run,
    outbox,
    process_monitor,
    progress_link,
    row_receiver,
    row_server,
    spark_task,
    standalone_supervisor,
    supervisor,
)
from tfos_ml.common import timeline
from tfos_ml.data import spool
from tfos_ml.driver import (
    attempt,
    cluster_size,
    decommissioning,
    fit_job,
    node_exchanges,
    nodes,
    progress,
    restarts,
    run,
    slots,
)
from tfos_ml.driver.liveness import Liveness
from tfos_ml.protocol import control_client, transport
from tfos_ml.tfcluster import feeding, shutdown, start

TIMED = (
    attempt, cluster_size, control_client, decommissioning, feed_task, feeding, fit_job, node_run,
    node_exchanges, node_result, process_monitor, progress_link, restarts, row_receiver, row_server, run, shutdown,
    slots, spark_task, timeline,
)  # fmt: skip
THREADED = (node_run, nodes, outbox, process_monitor, progress_link, row_receiver)
CONNECTED = (control_client, feed_task, node_result)


def parts() -> Any:
    """What is simulated in the world that runs."""
    return virtual_time.now_in.parts


def _connect(location: str, token: str, options: Any = None) -> simulated_network.Client:
    return simulated_network.Client(parts().network, location)


def _create_connection(target: tuple[str, int], timeout: float) -> Any:
    return simulated_network.create_connection(parts().network, target, timeout)


class _Link(progress_link.ProgressLink):
    """A link that can be looked at in the end."""

    def __init__(self, client: Any, rank: int, outbox: Any, *args: Any) -> None:
        super().__init__(client, rank, outbox, *args)
        self.outbox = outbox
        claim = next(claim for claim in reversed(parts().claims) if claim.supervisor is virtual_time.process())
        self.of = claim.key
        parts().links.append(self)


def _replacements() -> Iterator[tuple[Any, str, Any]]:
    yield from ((module, "time", virtual_time.time) for module in TIMED)
    yield from ((module, "threading", virtual_time.threading) for module in THREADED)
    yield from ((module, "connect", _connect) for module in CONNECTED)
    yield process_monitor, "queue", virtual_time.queues
    yield nodes, "Liveness", partial(Liveness, virtual_time.time.monotonic)
    # the network
    yield control_client, "socket", SimpleNamespace(create_connection=_create_connection)
    yield transport, "_listen", lambda endpoint, credentials, server: parts().network.listen(server)
    yield transport, "_close", lambda listener: listener.network.close(listener)
    yield transport, "make_credentials", lambda token: None
    yield transport.TransportServer, "connected_ports", lambda server: parts().network.connected_ports()
    # a node's host
    yield supervisor, "HostResources", simulated_node.Claim
    yield node_run, "Feeder", simulated_node.Rows
    yield node_run, "local_versions", lambda: {"python": "3"}
    yield node_run, "node_secret", lambda token: b""
    yield spark_task, "socket", SimpleNamespace(create_connection=_create_connection)
    yield spark_task, "address_towards", lambda location: virtual_time.process().host
    yield node_run, "ProgressLink", _Link
    yield supervisor, "log_failure", lambda failure: None
    # Spark
    yield run, "SparkJob", simulated_spark.Job
    yield run, "gather_lock", virtual_time.Condition()
    yield attempt, "gather_lock", virtual_time.Condition()
    yield decommissioning, "may_decommission", lambda spark: True
    yield decommissioning, "decommissioned", lambda spark, executors: spark.leaving_among(executors)
    yield cluster_size, "WORTH_SECONDS", 0.3
    yield attempt, "map_in_arrow", lambda df, function, schema, barrier, profile: df(function.args[0])
    yield fit_job, "check_settings", lambda spark, uses_grpc: None
    yield fit_job, "check_executors", lambda spark, tasks: None
    yield fit_job, "_of_session", lambda task, facts, verbose: task
    yield cluster_size, "check_slots", lambda *args, **named: parts().check_slots(*args, **named)
    yield cluster_size, "registered_slots", lambda spark, profile: spark.registered()
    yield cluster_size, "allocates_dynamically", lambda spark: False
    yield cluster_size.ClusterSize, "_free", lambda size, held=0: len(size._spark.free()) + held
    # the store of exportDir
    yield (
        attempt,
        "publishing",
        SimpleNamespace(commit=lambda uri, run_id: parts().store.commit(run_id), discard=lambda uri, run_id: None),
    )
    yield from _store()
    yield from _feeds()
    # fewer events: all of these are seconds between two looks at what wakes nobody
    yield node_run, "POLL_SECONDS", 2.0
    yield run, "POLL_SECONDS", 1.0
    yield attempt, "POLL_SECONDS", 1.0
    yield spark_task, "GATHER_POLL_SECONDS", 1.6
    yield progress_link, "PING_SECONDS", 2.5
    yield node_run, "STANDALONE_PING_FACTOR", 2
    yield row_receiver, "POLL_SECONDS", 1.5


def _feeds() -> Iterator[tuple[Any, str, Any]]:
    """What clusters have, and fits do not."""
    blocks = SimpleNamespace(
        MESSAGE_SCHEMA=None,
        END="end",
        pack=lambda batches: batches[0],
        unpack=lambda rows: (rows.num_rows, rows),
        is_end=lambda message: message == "end",
        check=clusters.refused,
    )
    yield from ((module, "blocks", blocks) for module in (feed_task, row_receiver, row_server))
    yield row_receiver, "spool", SimpleNamespace(write_block=_write_block, NoRoomError=spool.NoRoomError)
    yield row_receiver, "Path", lambda path: SimpleNamespace(unlink=lambda missing_ok=False: None)
    yield feed_task, "address_towards", lambda location: virtual_time.process().host
    yield feeding, "train_action", clusters.train_action
    yield standalone_supervisor, "start_supervisor", clusters.Standalone
    yield standalone_supervisor, "check_driver", lambda control: None
    yield standalone_supervisor, "task_info_of", _task_info
    yield standalone_supervisor, "executor", lambda: virtual_time.process().host
    yield spark_task, "psutil", SimpleNamespace(Process=_owner)
    yield start, "gather_lock", virtual_time.Condition()
    yield progress, "threading", virtual_time.threading
    yield progress, "SHOWN_SECONDS", 5.0
    yield feeding, "POLL_SECONDS", 1.0
    yield shutdown, "POLL_SECONDS", 1.0


def _write_block(directories: Any, name: str, block: Any, rows: int) -> spool.Chunk:
    path = f"{virtual_time.process().name}/{name}"
    parts().blocks[path] = block.what
    return spool.Chunk(path, rows, rows, False)


def _task_info(context: Any, rank: int, control: Any) -> spark_task.TaskInfo:
    attempt, number = parts().task_info
    return spark_task.TaskInfo(rank, virtual_time.process().host, 1, {}, number, attempt)


def _owner(host: str) -> SimpleNamespace:
    executors = [executor for executor in parts().spark.executors if executor.host == host]
    return SimpleNamespace(is_running=lambda: not all(executor.is_dead for executor in executors))


def _store() -> Iterator[tuple[Any, str, Any]]:
    yield node_result, "publishing", SimpleNamespace(stage=lambda exported, uri, run_id: parts().store.stage(run_id))


@contextlib.contextmanager
def simulated() -> Iterator[None]:
    """Within the context, the package runs in the world that is current."""
    before = [(holder, name, getattr(holder, name)) for holder, name, _ in _replacements()]
    try:
        for holder, name, value in _replacements():
            setattr(holder, name, value)
        yield
    finally:
        for holder, name, value in reversed(before):
            setattr(holder, name, value)
