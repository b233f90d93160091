"""Inspects a Keras model in a fresh process, which has only what the nodes will have."""

from __future__ import annotations

import hashlib
import json
import os
import subprocess
import tempfile
from collections import OrderedDict
from collections.abc import Mapping, Sequence
from pathlib import Path

import msgspec
import pyarrow as pa

from tfos_ml.agent.child_process import child_environment
from tfos_ml.agent.fork_client import ForkServerRef, start_process
from tfos_ml.common.directories import owned_prefix
from tfos_ml.common.optional_packages import check_installed
from tfos_ml.common.timeouts import INSPECTION_SECONDS
from tfos_ml.data.schema import FeedSchema
from tfos_ml.errors import ModelError
from tfos_ml.inference.tensorflow_import import USES_KERAS
from tfos_ml.keras.model import inspection
from tfos_ml.keras.model.inspection import ModelDescription
from tfos_ml.keras.model.source import ModelSource
from tfos_ml.protocol.pickling import dumps, pickle_function
from tfos_ml.worker.fork_server import NO_MARKER

REMEMBERED = 32
OUTPUT = "output"
TAIL_LINES = 12  # of a process that ended without an answer

_described: OrderedDict[str, ModelDescription] = OrderedDict()
"""Descriptions of instances by hash; a documented cache of at most ``REMEMBERED``."""


def describe_source(
    source: ModelSource, environment: Mapping[str, str], fork_server: ForkServerRef
) -> ModelDescription:
    """Describe a model as a fresh process with the nodes' `environment` sees it; each instance is inspected once.

    A function is called again for each fit, since it may read a file that changes.

    Raises as :func:`check_sendable`, and ``ModelError`` if the process cannot make the model, or KerasEstimator cannot
    train it.
    """
    key = hashlib.sha256(check_sendable(source) + json.dumps(sorted(environment.items())).encode()).hexdigest()
    if source.function is not None or key not in _described:
        _described[key], _ = _ask(source, (), FeedSchema(()), None, environment, fork_server)
    _described.move_to_end(key)
    while len(_described) > REMEMBERED:
        _described.popitem(last=False)
    return _described[key]


def check_sendable(source: ModelSource) -> bytes:
    """A model, pickled for other processes; raises ``TrainFnPickleError`` if something of it cannot be sent."""
    of_program = "customObjects, or a class or function in the model"
    named = {"modelArgs": source.arguments, of_program: source.custom_objects}
    return pickle_function("The model", source.function, source.for_host(), named)


def adapt_source(
    source: ModelSource,
    layers: Sequence[str],
    schema: FeedSchema,
    rows: pa.Table,
    environment: Mapping[str, str],
    fork_server: ForkServerRef,
) -> bytes:
    """State of preprocessing layers adapted on rows of the feature columns; raises ``ModelError`` if they cannot be."""
    _, adapted = _ask(source, tuple(layers), schema, rows, environment, fork_server)
    assert adapted is not None
    return adapted


def _ask(
    source: ModelSource,
    layers: tuple[str, ...],
    schema: FeedSchema,
    rows: pa.Table | None,
    environment: Mapping[str, str],
    fork_server: ForkServerRef,
) -> tuple[ModelDescription, bytes | None]:
    check_installed("tensorflow", "KerasEstimator, which looks at the model before any job starts,")
    with tempfile.TemporaryDirectory(prefix=owned_prefix("temporary")) as directory:
        folder = Path(directory)
        (folder / inspection.REQUEST).write_bytes(dumps((source.for_host(), layers, schema)))
        if rows is not None:
            with pa.OSFile(str(folder / inspection.ROWS), "wb") as file, pa.ipc.new_file(file, rows.schema) as writer:
                writer.write_table(rows)
        _run(folder, environment, fork_server)
        response = json.loads((folder / inspection.RESPONSE).read_text())
        if "error" in response:
            raise ModelError(response["error"])
        adapted = (folder / inspection.ADAPTED).read_bytes() if layers else None
        return msgspec.convert(response["description"], ModelDescription, strict=False), adapted


def _run(folder: Path, environment: Mapping[str, str], fork_server: ForkServerRef) -> None:
    variables = child_environment(NO_MARKER, os.cpu_count() or 1, environment)
    variables |= {
        "CUDA_VISIBLE_DEVICES": "",  # inspecting the model does not need the driver's GPUs
        "OMP_NUM_THREADS": environment.get("OMP_NUM_THREADS", "1"),
        USES_KERAS: "1",
    }
    with open(folder / OUTPUT, "w+b") as output, open(os.devnull, "rb") as nothing:
        process = start_process(inspection.__name__, [str(folder)], variables, nothing, output, fork_server, "look")
        try:
            code = process.wait(INSPECTION_SECONDS)
        except subprocess.TimeoutExpired:
            process.kill()
            raise ModelError(
                f"The model was not made within {INSPECTION_SECONDS:g} s in a process of its own."
            ) from None
    if not (folder / inspection.RESPONSE).exists():
        tail = "\n".join((folder / OUTPUT).read_text(errors="replace").splitlines()[-TAIL_LINES:])
        raise ModelError(f"The process that makes the model ended with exit code {code}:\n{tail}")
