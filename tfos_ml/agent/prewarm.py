"""Prepares an executor before the first node: imports what tasks need, and starts the fork server."""

from __future__ import annotations

import importlib
from collections.abc import Mapping

from pyspark import TaskContext

from tfos_ml.agent.child_process import child_environment
from tfos_ml.agent.executor import executor
from tfos_ml.agent.fork_client import ForkServerRef, start_server
from tfos_ml.inference.tensorflow_import import USES_KERAS
from tfos_ml.worker.fork_server import NO_MARKER


def prepare(environment: Mapping[str, str], cpus: int | None, idle_seconds: float, fork_owner: int | None) -> None:
    """Start the fork server for later nodes, without waiting until it has imported Keras.

    `environment` has the nodes' variables, `cpus` the CPUs of a node; None: as many as this task has. The server waits
    `idle_seconds` for its next request (0: no server), and ends with the process `fork_owner`; None: this executor.
    """
    context = TaskContext.get()
    assert context is not None
    variables = child_environment(NO_MARKER, cpus or context.cpus(), {USES_KERAS: "1", **environment})
    start_server(variables, ForkServerRef(fork_owner or executor(), idle_seconds))
    importlib.import_module("tfos_ml.agent.supervisor")  # while the server imports, too
