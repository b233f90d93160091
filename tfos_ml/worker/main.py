"""Entry point of a node's TensorFlow process: ``python -m tfos_ml.worker.main <parent>``, or a fork that calls it.

Its standard input is the channel to its supervisor.

It loads TensorFlow while the nodes meet, waits for the message to start, runs the user's train function, and sends its
outcome over the channel. It creates no TensorFlow state before the train function.
"""

from __future__ import annotations

import atexit
import contextlib
import ctypes
import importlib
import json
import os
import signal
import socket
import sys
import threading
import traceback
import warnings
from collections.abc import Callable, Sequence
from typing import TYPE_CHECKING, Any

from msgspec import structs

from tfos_ml import errors
from tfos_ml.common.interpreter import add_working_directory
from tfos_ml.inference.tensorflow_import import (
    PRELOADS,
    USES_KERAS,
    import_tensorflow,
    import_tensorflow_later,
    without_collections,
)
from tfos_ml.protocol.channel import HEARTBEAT, Channel, ChannelClosedError
from tfos_ml.protocol.failure import Failure
from tfos_ml.protocol.messages import Heartbeat, Returned, Start

if TYPE_CHECKING:
    from tfos_ml.worker.node_context import NodeContext

_PR_SET_PDEATHSIG = 1


def die_with(parent: int) -> None:
    """Make the kernel kill this process when its parent dies (Linux, prctl(2))."""
    ctypes.CDLL(None, use_errno=True).prctl(_PR_SET_PDEATHSIG, signal.SIGKILL)
    if os.getppid() != parent:  # it died before the call
        os._exit(1)


def send_heartbeat(channel: Channel) -> None:
    """Send a heartbeat: whether the train function only serves, and so will never return."""
    channel.send(Heartbeat(is_joining_server()))


def is_joining_server() -> bool:
    """Whether the main thread waits in ``join`` of any ``tf.distribute.Server``."""
    library = sys.modules.get("tensorflow.python.training.server_lib")  # tensorflow may be half imported
    server = getattr(library, "Server", None)
    if server is None:
        return False
    frame = sys._current_frames().get(threading.main_thread().ident or 0)
    while frame is not None and frame.f_code is not server.join.__code__:
        frame = frame.f_back
    return frame is not None


def _beat(channel: Channel) -> None:
    stop = threading.Event()
    period = float(os.environ.get(HEARTBEAT, 5))
    try:
        while not stop.wait(period):
            send_heartbeat(channel)
    except ChannelClosedError:
        pass


def _import_libraries() -> None:
    """Import what the program will need, while the nodes meet."""
    # Of Model.fit's own default: ctx.dataset() has shuffled the rows.
    warnings.filterwarnings("ignore", "`shuffle=True` was passed, but will be ignored")
    uses_keras = bool(os.environ.get(USES_KERAS))
    if uses_keras or os.environ.get(PRELOADS) != "0":
        import_tensorflow()
    else:
        import_tensorflow_later()
    if uses_keras:
        with without_collections():
            importlib.import_module("keras")


def _load_program(payload: str) -> tuple[Any, Any]:
    """The train function and its arguments; raises ``ImportError``, which names a missing module."""
    from tfos_ml.protocol.pickling import unpack_program

    add_working_directory()  # for what the train function imports
    with open(payload, "rb") as file:
        try:
            return unpack_program(file.read())
        except ModuleNotFoundError as error:
            raise ImportError(
                f"the train function needs module {error.name!r}, which this node cannot import. Install it on every "
                "host, send it with spark.addArtifacts(path, pyfile=True), or define the function in the notebook or "
                "main script"
            ) from None


def _run(channel: Channel, at_the_end: contextlib.ExitStack) -> None:
    """Run the train function. What is to be done after a failure, too, is added to `at_the_end`."""
    from tfos_ml.worker.inbox import Inbox
    from tfos_ml.worker.node_context import NodeContext
    from tfos_ml.worker.outcome import outcome

    _import_libraries()
    messages = iter(channel)
    start = next(messages)
    if not isinstance(start, Start):
        raise errors.VersionMismatchError(f"expected the message to start, got {start!r}")
    train_fn, args = _load_program(start.payload)
    if os.environ.get("TF_CONFIG") is None:
        os.environ["TF_CONFIG"] = json.dumps(start.tf_config)
    if isinstance(args, list):  # of command line arguments, as programs of TensorFlowOnSpark pass them
        sys.argv = list(args)
    inbox = Inbox(messages, start.settings.feed_timeout, lambda: send_heartbeat(channel))
    inbox.start()
    context = NodeContext(start, channel, inbox)
    if context._node.settings.release_port:
        context.release_port()
    at_the_end.callback(context._node.log_upload.run)
    value, ending = _call(train_fn, args, context)
    at_the_end.close()
    context.summarize({**outcome(context, ending), "log_problem": context._node.log_upload.problem})
    context._node.close(value)
    channel.send(Returned())


def _call(train_fn: Callable[[Any, Any], Any], args: Any, context: NodeContext) -> tuple[Any, str]:
    """The return value of a train function, and how it ended; ``sys.exit(0)`` in the function itself is a return."""
    from tfos_ml.worker.outcome import RETURNED, exit_line, is_own_exit

    try:
        return train_fn(args, context), RETURNED
    except SystemExit as end:
        if end.code or not is_own_exit(end):
            raise
        return None, exit_line(end)


def _exit_failure(end: SystemExit) -> Failure:
    """The failure for a ``sys.exit`` that does not count as a return of the train function."""
    from tfos_ml.worker.outcome import exit_line

    said = f": {end.code}" if isinstance(end.code, str) else ""
    message = f"the train function called sys.exit({_exit_code(end)}){said}"
    if not end.code:
        message = (
            f"{exit_line(end)} was called before the train function had returned. Rows may be untrained, so this is no "
            "success. Return from the train function instead. Only the train function itself may call sys.exit(0)"
        )
    return structs.replace(_failure(end), error=errors.NodeExitError, message=message)


def _exit_code(end: SystemExit) -> int:
    return end.code if isinstance(end.code, int) else int(end.code is not None)


def _failure(error: BaseException) -> Failure:
    """The failure, without the node's name, which the supervisor adds."""
    frames = [f for f in traceback.extract_tb(error.__traceback__) if f.filename != __file__]
    text = "".join(["Traceback (most recent call last):\n", *traceback.format_list(frames)])
    chain = error.__cause__ or (None if error.__suppress_context__ else error.__context__)
    before = "".join(traceback.format_exception(chain)) + "\nThe above led to:\n\n" if chain else ""
    summary = "".join(traceback.format_exception_only(error)).strip()
    error_class: type[errors.TfosMlError] = errors.TrainFnError
    message = f"the train function raised {summary}"
    if isinstance(error, errors.TfosMlError) and type(error).__module__ == errors.__name__:
        error_class, message = type(error), str(error)  # a user's own subclass is not known on the driver
    if "Could not start gRPC server" in str(error):
        error_class = errors.PortTakenError
    return Failure(error_class, message, traceback=before + text + summary, collateral=_is_collateral(error))


def _is_collateral(error: BaseException) -> bool:
    """Whether an error looks like a collective broken by another node's end."""
    if "tensorflow" not in sys.modules:
        return False
    import tensorflow as tf

    timed_out = tf.errors.DeadlineExceededError  # another node hangs
    broken = (tf.errors.UnavailableError, tf.errors.AbortedError, tf.errors.CancelledError, timed_out)
    links: list[BaseException | None] = [error, error.__cause__, error.__context__]
    return any(isinstance(link, broken) for link in links)


def main(arguments: Sequence[str]) -> int:
    """Run one node's train function; returns the exit code. The argument is the parent's pid, or "0" in a fork."""
    if parent := int(arguments[0]):
        die_with(parent)
    channel = Channel(socket.socket(fileno=os.dup(0)))
    with open(os.devnull) as nothing:
        os.dup2(nothing.fileno(), 0)
    threading.Thread(target=_beat, args=(channel,), daemon=True).start()
    with contextlib.ExitStack() as at_the_end:  # after the failure is told: other nodes may fail because of it
        try:
            _run(channel, at_the_end)
        except SystemExit as end:
            channel.send(_exit_failure(end))
            return _exit_code(end)
        except ChannelClosedError:
            return 1
        except BaseException as error:
            channel.send(_failure(error))
            return 1
    return 0


if __name__ == "__main__":
    code = main(sys.argv[1:])
    atexit._run_exitfuncs()
    sys.stdout.flush()
    sys.stderr.flush()
    os._exit(code)  # TensorFlow's threads must not hold up, or crash, an exit whose result is known
