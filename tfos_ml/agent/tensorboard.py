"""``python -m tfos_ml.agent.tensorboard <log_dir> <host> <port> <parent>``: TensorBoard, started by the chief.

It writes its address to standard output, and dies with its parent. It runs in a
session of its own; the node's reaper kills the processes that it has started.
"""

from __future__ import annotations

import subprocess
import sys
import threading
import time
from collections.abc import Mapping

from tfos_ml.common.interpreter import module_command
from tfos_ml.errors import ClusterConfigError
from tfos_ml.worker.main import die_with


class TensorBoard:
    """The supervisor's handle on the TensorBoard process; `environment` is its complete one, port 0 means any port."""

    def __init__(self, log_dir: str, host: str, environment: Mapping[str, str], parent: int, port: int = 0):
        self._process = subprocess.Popen(
            module_command("tfos_ml.agent.tensorboard", log_dir, host, str(port), str(parent)),
            env=dict(environment),
            stdin=subprocess.DEVNULL,
            stdout=subprocess.PIPE,
            text=True,
            start_new_session=True,
        )
        self._port = port
        self.pid = self._process.pid
        self.url: str | None = None  # as soon as it listens
        threading.Thread(target=self._listen, name="tensorboard", daemon=True).start()

    def _listen(self) -> None:
        assert self._process.stdout is not None
        with self._process.stdout as output:
            self.url = output.readline().strip() or None
            output.read()

    def check(self) -> None:
        """Raise ``ClusterConfigError`` if it has ended before it had an address."""
        if self.url is not None or self._process.poll() is None:
            return
        port = self._port
        taken = f", for instance because port {port} (spark.tfos_ml.tensorboardPort) is not free" if port else ""
        raise ClusterConfigError(
            "tensorboard=True needs the package tensorboard on the host of the chief, and it could not be started there"
            f"{taken}. Install it with: pip install tensorboard (versions up to 2.20 also need 'setuptools<81'). Its "
            "own error is on the console or in the log of the chief's executor."
        )

    def wait(self, timeout: float) -> None:
        self._process.wait(timeout)


def main(log_dir: str, host: str, port: str) -> None:
    """Serve until killed."""
    from tensorboard import program

    board = program.TensorBoard()
    where = ["--logdir", log_dir, "--host", host, "--port", port]
    board.configure(argv=["tensorboard", *where, "--load_fast", "false"])
    sys.stdout.write(board.launch() + "\n")
    sys.stdout.flush()
    while True:
        time.sleep(3600)


if __name__ == "__main__":
    die_with(parent=int(sys.argv[4]))
    main(*sys.argv[1:4])
