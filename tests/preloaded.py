"""Fresh Python processes that need not import TensorFlow and Keras, which takes longer than all else that they do.

They are forked from a process that has imported both and done nothing else. As a program: that process, with the path
of the Unix socket that it listens on.
"""

from __future__ import annotations

import contextlib
import json
import os
import runpy
import selectors
import signal
import socket
import subprocess
import sys
import tempfile
import traceback
from collections.abc import Mapping, Sequence
from pathlib import Path
from types import SimpleNamespace
from typing import Any

START_SECONDS = 120.0


class Process:
    """One of them, under way."""

    def __init__(self, connection: socket.socket):
        self._connection = connection
        self._answers = connection.makefile("r")
        self.pid = int(self._answers.readline())

    def wait(self, timeout: float | None = None) -> int:
        """Its exit code; raises ``TimeoutError``."""
        self._connection.settimeout(timeout)
        code = int(self._answers.readline())
        self._connection.close()
        return code

    def kill(self) -> None:
        """End it, if it has not ended."""
        with contextlib.suppress(ProcessLookupError):
            os.kill(self.pid, signal.SIGKILL)


class Preloaded:
    """The process that they are forked from; used as a context manager."""

    def __enter__(self) -> Preloaded:
        self._directory = tempfile.TemporaryDirectory(prefix="preloaded-")
        self._path = f"{self._directory.name}/socket"
        self._process = subprocess.Popen(
            [sys.executable, __file__, self._path], stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True
        )
        return self

    def __exit__(self, *exception: object) -> None:
        self._process.communicate("")  # it ends with its input
        self._directory.cleanup()

    def start(
        self, command: Sequence[str], environment: Mapping[str, str], output: Path, errors: Path | None = None
    ) -> Process:
        """Start ``python -m <module> <arguments>``, or ``python <file> <arguments>``, given as a whole command."""
        assert self._process.stdout is not None
        if not self._process.stdout.closed:
            assert self._process.stdout.readline() == "ready\n"
            self._process.stdout.close()
        connection = socket.socket(socket.AF_UNIX)
        connection.connect(self._path)
        arguments = [argument for argument in command[1:] if argument != "-P"]
        order = [arguments, dict(environment), os.getcwd(), str(output), str(errors or output)]
        connection.sendall(json.dumps(order).encode() + b"\n")
        return Process(connection)

    def run(self, command: Sequence[str], env: Mapping[str, str], timeout: float, **how: object) -> SimpleNamespace:
        """What ``subprocess.run`` does with ``capture_output`` and ``text``, which are expected."""
        assert how == {"capture_output": True, "text": True}
        with tempfile.TemporaryDirectory(prefix="preloaded-") as directory:
            output, errors = Path(directory, "stdout"), Path(directory, "stderr")
            process = self.start(command, env, output, errors)
            try:
                code = process.wait(timeout)
            except TimeoutError:
                process.kill()
                raise subprocess.TimeoutExpired(command, timeout) from None
            return SimpleNamespace(returncode=code, stdout=output.read_text(), stderr=errors.read_text())


def serve(path: str) -> None:
    """Fork a process for each connection, until standard input ends."""
    listener = socket.socket(socket.AF_UNIX)
    listener.bind(path)
    listener.listen()
    signal.signal(signal.SIGCHLD, signal.SIG_IGN)  # no zombies
    print("ready", flush=True)
    selector = selectors.DefaultSelector()
    selector.register(listener, selectors.EVENT_READ)
    selector.register(sys.stdin, selectors.EVENT_READ)
    while all(key.fileobj is listener for key, _ in selector.select()):
        connection, _ = listener.accept()
        if not os.fork():
            signal.signal(signal.SIGCHLD, signal.SIG_DFL)
            answer(connection)
            os._exit(0)
        connection.close()


def answer(connection: socket.socket) -> None:
    """Fork the process, and tell its pid and its exit code; in a process of its own, which waits for it."""
    with connection, connection.makefile("rw") as stream:
        order = json.loads(stream.readline())
        pid = os.fork()
        if not pid:
            run(*order)
        print(pid, file=stream, flush=True)
        print(os.waitstatus_to_exitcode(os.waitpid(pid, 0)[1]), file=stream, flush=True)


def run(arguments: list[str], environment: dict[str, str], directory: str, output: str, errors: str) -> Any:
    """The program, in its process."""
    for path, descriptor in ((output, 1), (errors, 2)):
        file = os.open(path, os.O_WRONLY | os.O_CREAT | os.O_APPEND, 0o600)
        os.dup2(file, descriptor)
    os.chdir(directory)
    os.environ.clear()
    os.environ.update(environment)
    sys.path[:0] = [p for p in environment.get("PYTHONPATH", "").split(os.pathsep) if p not in sys.path]
    code = 0
    try:
        if arguments[0] == "-m":
            sys.argv = arguments[1:]
            runpy.run_module(arguments[1], run_name="__main__", alter_sys=True)
        else:
            sys.argv = arguments
            sys.path.insert(0, os.path.dirname(arguments[0]))
            runpy.run_path(arguments[0], run_name="__main__")
    except SystemExit as end:
        code = end.code if isinstance(end.code, int) else int(end.code is not None)
    except BaseException:
        traceback.print_exc()
        code = 1
    sys.stdout.flush()
    sys.stderr.flush()
    os._exit(code)


if __name__ == "__main__":
    from tfos_ml.inference.tensorflow_import import import_keras_lightly, import_tensorflow, without_collections

    os.environ["TF_CPP_MIN_LOG_LEVEL"] = "3"
    import_keras_lightly()
    import_tensorflow()
    with without_collections():
        import keras  # noqa: F401
    serve(sys.argv[1])
