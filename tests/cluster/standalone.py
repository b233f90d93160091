"""A Spark standalone cluster of real processes: a master, workers on addresses of their own, and driver programs.

The master and the driver are at 127.0.0.1, the workers at 127.0.0.2, 127.0.0.3..., each with one executor an
application; or each in a network namespace (``namespaces.py``). All carry a variable in their environment, by which
they are found and killed at the end, executors and Python workers too.
"""

from __future__ import annotations

import contextlib
import fnmatch
import json
import os
import queue
import re
import shutil
import signal
import subprocess
import sys
import threading
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import psutil
import pyspark
from conftest import JVM_OPTIONS, wait_until

SPARK_HOME = Path(pyspark.__file__).parent
MARKER = "TFOS_ML_TEST_CLUSTER"
START_SECONDS = 120.0  # on two cores, with other tests beside it
END_SECONDS = 20.0
DRIVER_ADDRESS = "127.0.0.1"
MASTER, WORKER, EXECUTOR = (
    "org.apache.spark.deploy.master.Master",
    "org.apache.spark.deploy.worker.Worker",
    "org.apache.spark.executor.CoarseGrainedExecutorBackend",
)


class Worker:
    """One worker of the cluster, and what runs below it."""

    def __init__(self, cluster: Standalone, address: str, prefix: Sequence[str]):
        self.address = address
        self.local = cluster.directory / f"local-{address}"
        self.log = cluster.directory / f"worker-{address}.log"
        command = [WORKER, "--host", address, "--port", "0", "--webui-port", "0", "--cores", "8", "--memory", "2g"]
        command += ["--work-dir", str(cluster.directory / f"work-{address}"), cluster.url]
        local = {"SPARK_LOCAL_IP": address, "SPARK_LOCAL_DIRS": str(self.local), **cluster.of_workers}
        self.process = cluster.spawn(command, self.log, local, prefix)

    def has_registered(self) -> bool:
        return "Successfully registered with master" in self.log.read_text()

    def executors(self) -> list[psutil.Process]:
        """JVMs of the executors that run on this worker now."""
        return [p for p in descendants(self.process.pid) if EXECUTOR in command_of(p)]

    def pythons(self) -> list[psutil.Process]:
        """Python processes of its executors: daemons, Spark's workers, nodes."""
        found = [p for executor in self.executors() for p in descendants(executor.pid)]
        return [p for p in found if "python" in "".join(command_of(p)[:1])]

    def map_outputs(self) -> list[Path]:
        """Files that its executors wrote for shuffles."""
        found = os.walk(self.local)  # unlike rglob, it goes on where a directory is deleted meanwhile
        return sorted(Path(top) / name for top, _, names in found for name in fnmatch.filter(names, "shuffle_*.data"))


class Standalone:
    """A running cluster; close it, or use it as a context manager.

    Parameters
    ----------
    directory : Path
        For logs, work directories and Spark's local directories.
    workers : int, default 2
        Workers at loopback addresses to start with.
    address : str
        Of the master and of drivers.
    prefix : sequence of str, optional
        What their commands are prefixed with.
    of_workers : dict of str to str, optional
        Environment variables of workers, and so of executors, that the master and drivers do not have.
    """

    def __init__(
        self,
        directory: Path,
        workers: int = 2,
        address: str = DRIVER_ADDRESS,
        prefix: Sequence[str] = (),
        of_workers: dict[str, str] | None = None,
    ):
        self.directory = directory
        self.of_workers = of_workers or {}
        self._prefix = prefix
        self.address = address
        self._marker = f"{os.getpid()}-{directory.name}"
        self._drivers: list[Driver] = []
        self._daemons: list[subprocess.Popen[bytes]] = []
        self.workers: list[Worker] = []
        log = directory / "master.log"
        try:
            self.master = self.spawn(
                [MASTER, "--host", address, "--port", "0", "--webui-port", "0"], log, prefix=prefix
            )
            self.url = found_in(log, r"Starting Spark master at (spark://\S+)")
            for i in range(workers):
                self.start_worker(f"127.0.0.{2 + i}")
            self.wait_for_workers()
        except BaseException:
            self.close()
            raise

    def spawn(
        self, command: Sequence[str], log: Path, variables: dict[str, str] | None = None, prefix: Sequence[str] = ()
    ) -> subprocess.Popen[bytes]:
        """Start one of Spark's daemons, without the JVM that ``spark-class`` takes to find out how."""
        java = ["java", "-Xmx128m", *JVM_OPTIONS.split(), "-cp", f"{SPARK_HOME / 'jars'}/*"]
        return self.start([*prefix, *java, *command], log, variables)

    def start(
        self, command: Sequence[str], log: Path, variables: dict[str, str] | None = None
    ) -> subprocess.Popen[bytes]:
        environment = {**self.environment(), "SPARK_LOCAL_IP": self.address, **(variables or {})}
        with log.open("wb") as output:
            process = subprocess.Popen(
                command,
                env=environment,
                stdin=subprocess.DEVNULL,
                stdout=output,
                stderr=subprocess.STDOUT,
                start_new_session=True,
            )
        self._daemons.append(process)
        return process

    def settings(self) -> dict[str, str]:
        """Settings of applications on the cluster."""
        return {
            "spark.master": self.url,
            "spark.driver.host": self.address,
            "spark.ui.enabled": "false",
            "spark.ui.showConsoleProgress": "false",
            "spark.driver.memory": "512m",
            "spark.executor.memory": "512m",
            "spark.executor.cores": "2",
            "spark.cores.max": "4",
            "spark.executor.extraJavaOptions": JVM_OPTIONS,
            "spark.executorEnv.TFOS_ML_PRELOAD": "0",
            "spark.python.daemon.module": "pyspark.daemon",  # as users have it; most other tests have ours
            "spark.sql.shuffle.partitions": "4",
            "spark.sql.adaptive.enabled": "false",
        }

    def environment(self) -> dict[str, str]:
        paths = [str(Path(__file__).parent), os.environ["PYTHONPATH"]]
        return {
            **os.environ,
            MARKER: self._marker,
            "PYTHONPATH": os.pathsep.join(paths),
            "SPARK_HOME": str(SPARK_HOME),
            "SPARK_SCALA_VERSION": "2.13",  # as spark-class sets it; of no consequence, but workers want it
        }

    def start_worker(self, address: str, prefix: Sequence[str] = ()) -> Worker:
        """Start one more worker, with room for several applications; it registers in a few seconds."""
        worker = Worker(self, address, prefix)
        self.workers.append(worker)
        return worker

    def wait_for_workers(self) -> None:
        assert wait_until(lambda: all(w.has_registered() for w in self.workers), START_SECONDS), self.logs()

    def driver(self, within: Sequence[str] = (), **conf: Any) -> Driver:
        """Start a driver program with a Spark session; dots of settings are written as underscores."""
        settings = with_dots(conf)
        driver = Driver(
            Path(__file__).with_name("driver_programs.py"),
            settings if "spark.remote" in settings else {**self.settings(), **settings},
            self.directory / f"driver-{len(self._drivers)}.log",
            within or self._prefix,
            {**self.environment(), "SPARK_LOCAL_IP": self.address},
        )
        self._drivers.append(driver)
        return driver

    def connect_server(self, **conf: Any) -> str:
        """Start a Spark Connect server on the cluster; the URL for its clients."""
        log = self.directory / "connect.log"
        settings = {**self.settings(), **with_dots(conf), "spark.connect.grpc.binding.port": "0"}
        command = [str(SPARK_HOME / "bin" / "spark-class"), "org.apache.spark.deploy.SparkSubmit"]
        command += [part for name, value in settings.items() for part in ("--conf", f"{name}={value}")]
        command += ["--class", "org.apache.spark.sql.connect.service.SparkConnectServer", "spark-internal"]
        self.start(command, log)
        port = found_in(log, r"Spark Connect server started at: \S+:(\d+)\n")
        return f"sc://{self.address}:{port}"

    def processes(self) -> list[psutil.Process]:
        """All processes that carry the cluster's variable."""
        return [p for p in psutil.process_iter() if environment_of(p).get(MARKER) == self._marker]

    def logs(self) -> str:
        """The end of each log, for messages of failed assertions."""
        return "\n".join(f"--- {path}\n{path.read_text()[-3000:]}" for path in sorted(self.directory.glob("*.log")))

    def close(self) -> None:
        """Kill drivers and daemons, and see that all else ends with them: no process, and so no port, is left."""
        for driver in self._drivers:
            driver.close()
        daemons = [daemon.pid for daemon in self._daemons]
        for process in self.processes():
            if process.pid in daemons or EXECUTOR in command_of(process):
                kill(process)
        gone = wait_until(lambda: not self.processes(), END_SECONDS)
        left = {p.pid: " ".join(command_of(p)) for p in self.processes()}
        for process in self.processes():
            kill(process)
        for daemon in self._daemons:
            daemon.wait(10)
        for worker in self.workers:
            shutil.rmtree(worker.local, ignore_errors=True)  # executors that were killed leave their files
        assert gone, left

    def __enter__(self) -> Standalone:
        return self

    def __exit__(self, *exception: object) -> None:
        self.close()


class Driver:
    """A process that runs programs, one after the other: their beginnings and ends are lines of JSON.

    Parameters
    ----------
    script : Path
        What it runs, with its Spark settings as the argument.
    log : Path
        Where it writes what else it has to say.
    prefix : sequence of str
        What the command is prefixed with.
    """

    def __init__(
        self, script: Path, settings: dict[str, str], log: Path, prefix: Sequence[str], environment: dict[str, str]
    ):
        self.log = log
        with log.open("ab") as output:
            self.process = subprocess.Popen(
                [*prefix, sys.executable, str(script), json.dumps(settings)],
                stdin=subprocess.PIPE,
                stdout=subprocess.PIPE,
                stderr=output,
                text=True,
                start_new_session=True,
                env={**os.environ, **environment},
            )
        self._answers: queue.SimpleQueue[dict[str, Any] | None] = queue.SimpleQueue()
        threading.Thread(target=self._read, daemon=True).start()

    def _read(self) -> None:
        assert self.process.stdout is not None
        with self.process.stdout as stream:
            for line in stream:
                self._answers.put(json.loads(line))
        self._answers.put(None)

    def send(self, **request: Any) -> None:
        assert self.process.stdin is not None
        with contextlib.suppress(BrokenPipeError):
            print(json.dumps(request), file=self.process.stdin, flush=True)

    def answer(self, seconds: float) -> dict[str, Any] | None:
        """The next answer; None if the process has ended. Raises ``TimeoutError``."""
        try:
            return self._answers.get(timeout=seconds) if seconds > 0 else self._answers.get_nowait()
        except queue.Empty:
            raise TimeoutError from None

    def begin(self, program: str, **arguments: Any) -> None:
        """Start a program of ``driver_programs.py``; :meth:`outcome` tells how it ended."""
        self.send(program=program, arguments=arguments)

    def outcome(self) -> dict[str, Any]:
        """How the program ended that was begun first."""
        outcome = self.answer(3 * START_SECONDS)
        assert outcome is not None, f"the driver died: {self.logged()}"
        return outcome

    def run(self, program: str, **arguments: Any) -> dict[str, Any]:
        self.begin(program, **arguments)
        return self.outcome()

    def logged(self) -> str:
        return self.log.read_text(errors="replace")[-3000:]

    def close(self) -> None:
        """End it, and what it has started."""
        below = [*descendants(self.process.pid)]
        assert self.process.stdin is not None
        with contextlib.suppress(BrokenPipeError):
            self.process.stdin.close()
        with contextlib.suppress(subprocess.TimeoutExpired):
            self.process.wait(END_SECONDS)
        with contextlib.suppress(ProcessLookupError):
            os.killpg(self.process.pid, signal.SIGKILL)
        for process in below:
            kill(process)
        self.process.wait(END_SECONDS)


def with_dots(conf: dict[str, Any]) -> dict[str, str]:
    """Settings of Spark by their names in Python, with underscores for dots, and two for one."""
    return {name.replace("__", "-").replace("_", ".").replace("-", "_"): str(value) for name, value in conf.items()}


def found_in(log: Path, pattern: str) -> str:
    """What a pattern's group finds in a log, once it is there."""
    assert wait_until(lambda: re.search(pattern, log.read_text()), START_SECONDS), log.read_text()
    found = re.search(pattern, log.read_text())
    assert found is not None
    return found[1]


def kill(process: psutil.Process) -> None:
    with contextlib.suppress(psutil.NoSuchProcess):
        process.kill()


def descendants(pid: int) -> list[psutil.Process]:
    try:
        return psutil.Process(pid).children(recursive=True)
    except psutil.NoSuchProcess:
        return []


def command_of(process: psutil.Process) -> list[str]:
    try:
        return process.cmdline()
    except psutil.Error:
        return []


def environment_of(process: psutil.Process) -> dict[str, str]:
    try:
        return process.environ() if process.status() != psutil.STATUS_ZOMBIE else {}
    except (psutil.Error, OSError):
        return {}
