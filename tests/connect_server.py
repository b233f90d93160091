"""A Spark Connect server in a process of its own, as the tests' sessions have it with TFOS_ML_TEST_CONNECT=1."""

from __future__ import annotations

import contextlib
import os
import re
import signal
import subprocess
import tempfile
import time
from collections.abc import Mapping
from pathlib import Path

import pyspark
import pytest

SPARK_HOME = Path(pyspark.__file__).parent
START_SECONDS = 120.0
STARTED = re.compile(r"Spark Connect server started at: \S+:(\d+)\n")


class ConnectServer:
    """The server, at ``url``; runs until :meth:`close`."""

    def __init__(self, master: str, conf: Mapping[str, str]):
        settings = {**conf, "spark.master": master, "spark.connect.grpc.binding.port": "0"}
        command = [str(SPARK_HOME / "bin" / "spark-class"), "org.apache.spark.deploy.SparkSubmit"]
        command += [part for name, value in settings.items() for part in ("--conf", f"{name}={value}")]
        command += ["--class", "org.apache.spark.sql.connect.service.SparkConnectServer", "spark-internal"]
        descriptor, name = tempfile.mkstemp(prefix="test-connect-", suffix=".log")
        self._log = Path(name)
        environment = {**os.environ, "SPARK_HOME": str(SPARK_HOME), "SPARK_LOCAL_IP": "127.0.0.1"}
        environment.pop("PYSPARK_SUBMIT_ARGS", None)
        with os.fdopen(descriptor, "wb") as log:
            self._process = subprocess.Popen(
                command, stdin=subprocess.DEVNULL, stdout=log, stderr=log, env=environment, start_new_session=True
            )
        self.url = f"sc://127.0.0.1:{self._port()}"

    def _port(self) -> int:
        deadline = time.monotonic() + START_SECONDS
        while time.monotonic() < deadline and self._process.poll() is None:
            found = STARTED.search(self._log.read_text(errors="replace"))
            if found is not None:
                return int(found[1])
            time.sleep(0.1)
        self.close()
        raise AssertionError(f"the Connect server did not start: {self.log()[-3000:]}")

    def log(self) -> str:
        """What it has printed."""
        return self._log.read_text(errors="replace")

    def close(self) -> None:
        """End it, and what it has started."""
        self._process.send_signal(signal.SIGTERM)  # Spark then ends its executors
        with contextlib.suppress(subprocess.TimeoutExpired):
            self._process.wait(20)
        with contextlib.suppress(ProcessLookupError):
            os.killpg(self._process.pid, signal.SIGKILL)
        self._process.wait(10)


HAS_SERVER = any((SPARK_HOME / "jars").glob("spark-connect_*.jar"))
needs_connect_server = pytest.mark.skipif(
    not HAS_SERVER,
    reason="pip's package of Spark 3.5 has no Connect server, and no client of its own speaks to another",
)
