"""What a Python worker of Spark's does before the first node: import what tasks need, start the fork server."""

from __future__ import annotations

import importlib
from collections.abc import Mapping

from pyspark import TaskContext

from tfos_ml.agent.fork_client import Forking, executor, start_server
from tfos_ml.agent.process import child_environment
from tfos_ml.inference.tensorflow_import import USES_KERAS
from tfos_ml.worker.forkserver import NO_MARKER


def prepare(
    environment: Mapping[str, str], cpus: int | None, idle_seconds: float, fork_owner: int | None, application: str
) -> None:
    """Start the fork server of the nodes to come, and do not wait until it has imported Keras.

    Parameters
    ----------
    environment : mapping of str to str
        The nodes' environment variables.
    cpus : int or None
        CPUs of a node; None for those of this task.
    idle_seconds : float
        That the server waits for a next process; 0 for none.
    fork_owner : int or None
        The process with which it ends; None for this executor.
    application : str
        Whose processes share the server.
    """
    context = TaskContext.get()
    assert context is not None
    variables = child_environment(NO_MARKER, cpus or context.cpus(), {USES_KERAS: "1", **environment})
    start_server(variables, Forking(fork_owner or executor(), idle_seconds, application))
    importlib.import_module("tfos_ml.agent.supervisor")  # while the server imports, too
