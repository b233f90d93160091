"""The outcome of a train function that raised no error: how it ended, and whether it coordinated with other nodes."""

from __future__ import annotations

import sys
import traceback
from collections.abc import Callable
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from tfos_ml.worker.node_context import NodeContext

RETURNED = "returned"
_AROUND = ("tfos_ml/worker/main.py", "tfos_ml/compat/map_functions.py", "_sitebuiltins.py", "<frozen _sitebuiltins>")


def outcome(ctx: NodeContext, ending: str) -> dict[str, Any]:
    """Facts for the node's report; `ending` is ``RETURNED``, or the result of :func:`exit_line`."""
    return {"ending": ending, "reads": ctx._node.reads, "coordinates": [*coordination(), *ctx._node.coordinates]}


def is_own_exit(error: SystemExit) -> bool:
    """Whether the train function itself has called ``sys.exit``, not a function that it calls or a signal handler."""
    return len(_frames(error)) <= 1


def exit_line(error: SystemExit) -> str:
    """Where ``sys.exit`` was called."""
    code, where = "" if error.code is None else error.code, _frames(error)
    return f"sys.exit({code})" + (
        f" at {where[-1].filename}, line {where[-1].lineno}, in {where[-1].name}" if where else ""
    )


def _frames(error: SystemExit) -> list[traceback.FrameSummary]:
    """The frames from the train function on, without that of Python's ``exit()``, which only calls ``sys.exit``."""
    frames = traceback.extract_tb(error.__traceback__)
    return [frame for frame in frames if not frame.filename.endswith(_AROUND)]


def coordination() -> list[str]:
    """Names of the libraries and mechanisms with which this process can work with other processes."""
    return [name for name, is_used in _WAYS.items() if is_used()]


def _eager_context() -> Any:
    """TensorFlow's eager context; None if there is none."""
    if "tensorflow" not in sys.modules:
        return None
    from tensorflow.python.eager import context

    return context.context_safe()


def _has_collectives() -> bool:
    """Whether collective operations are set up, as by ``MultiWorkerMirroredStrategy`` and DTensor."""
    context = _eager_context()
    return context is not None and context._collective_ops_server_def is not None


def _has_remote_devices() -> bool:
    """Whether remote devices are set up, as by ``ParameterServerStrategy`` or ``experimental_connect_to_cluster``."""
    context = _eager_context()
    return context is not None and context.get_server_def() is not None


def _is_initialized(module: str) -> Callable[[], bool]:
    def is_initialized() -> bool:
        loaded = sys.modules.get(module)
        return bool(getattr(loaded, "is_initialized", lambda: False)())

    return is_initialized


def _is_loaded(module: str) -> Callable[[], bool]:
    return lambda: module in sys.modules


_WAYS: dict[str, Callable[[], bool]] = {
    "collective operations": _has_collectives,
    "remote devices": _has_remote_devices,
    "torch.distributed": _is_initialized("torch.distributed"),
    "jax.distributed": _is_initialized("jax.distributed"),
    "horovod": _is_loaded("horovod"),
    "mpi4py": _is_loaded("mpi4py.MPI"),
}
