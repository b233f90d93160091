"""Where programs run: a driver process on a master, and all that belongs to it."""

from __future__ import annotations

import contextlib
import os
import shutil
import signal
import subprocess
import sys
import tempfile
import time
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import psutil
import standalone
from conftest import JVM_OPTIONS, wait_until
from drawn_runs import CONNECT, HOSTS, NAT, SPECULATION, STANDALONE
from namespaces import Network
from object_store import ACCESS_KEY, SECRET_KEY, ObjectStore
from standalone import Standalone, descendants

START_SECONDS, LOOK_SECONDS = 180.0, 20.0
LEASE = 5
SETTINGS = {
    "spark.ui.enabled": "false",
    "spark.ui.showConsoleProgress": "false",
    "spark.driver.host": "127.0.0.1",
    "spark.driver.memory": "1g",
    "spark.sql.shuffle.partitions": "2",
    "spark.default.parallelism": "2",
    "spark.executor.extraJavaOptions": JVM_OPTIONS,
    "spark.python.daemon.module": "tfos_ml.agent.daemon",
    "spark.tfos_ml.leaseTimeout": str(LEASE),
    "spark.task.maxFailures": "1",
}
SOON = {  # by which Spark finds out that an executor is lost
    "spark.network.timeout": "8s",
    "spark.network.timeoutInterval": "1s",
    "spark.executor.heartbeatInterval": "1s",
}
SPECULATES = {
    "spark.speculation": "true",
    "spark.speculation.interval": "100ms",
    "spark.speculation.multiplier": "1.1",
    "spark.speculation.quantile": "0.5",
    "spark.speculation.minTaskRuntime": "100ms",
}


PRIVATE = "10.78.0.2"  # the driver's address behind NAT, and its ports
BEHIND_NAT = {"spark.driver.port": 24300, "spark.driver.blockManager.port": 24301, "spark.tfos_ml.port": 24302}
CLUSTER = Path(__file__).parents[1] / "cluster"

SERVERS = ("java", "daemon", "tfos_ml.worker.fork_server")


class Driver(standalone.Driver):
    """A driver process that runs ``programs.py``."""

    def __init__(self, settings: dict[str, str], log: Path, prefix: Sequence[str], environment: dict[str, str]):
        super().__init__(Path(__file__).with_name("programs.py"), settings, log, prefix, environment)
        started = self.answer(START_SECONDS)
        if started is None:
            raise RuntimeError(f"the driver did not start: {self.logged()}")
        self.pid: int = started["pid"]

    def tell(self, do: str, **content: Any) -> None:
        self.send(do=do, **content)

    def look(self) -> dict[str, Any]:
        """Threads and jobs of the process."""
        self.tell("look")
        return self.answer(LOOK_SECONDS) or {"threads": [], "jobs": []}

    def stacks(self) -> str:
        """Where its threads are, as it writes them to its log."""
        before = self.log.stat().st_size
        with contextlib.suppress(ProcessLookupError):
            os.kill(self.pid, signal.SIGUSR1)
        wait_until(lambda: self.log.stat().st_size > before, 5)
        time.sleep(0.5)
        return self.log.read_text(errors="replace")[before:]

    def processes(self) -> list[psutil.Process]:
        with contextlib.suppress(psutil.NoSuchProcess):
            return [psutil.Process(self.pid), *descendants(self.pid)]
        return []

    def ports(self) -> set[int]:
        with contextlib.suppress(psutil.Error):
            connections = psutil.Process(self.pid).net_connections(kind="inet")
            return {c.laddr.port for c in connections if c.status == psutil.CONN_LISTEN}
        return set()


class Place:
    """A master with a driver; processes of both are found by their names.

    Attributes
    ----------
    network : Network or None
        The hosts of the cluster, if it has hosts of its own.
    store : ObjectStore or None
        A store whose address the session knows; None where there is no moto.
    """

    def __init__(self, master: str, directory: Path):
        self.master = master
        self._before = {process.pid for process in self.all_processes()}
        self._cluster: Standalone | None = None
        self.network: Network | None = None
        self._directory = directory / f"place-{len(list(directory.glob('place-*')))}"
        self._directory.mkdir()
        self.clock = self._directory / "clock"
        try:
            self.store = make_store()
            self.driver = self._start()
        except BaseException:
            self.close()
            raise

    def _start(self) -> Driver:
        master = self.master
        settings, prefix, environment = dict(SETTINGS), [], {**with_clock(self.clock), "PYTHONPATH": search_path()}
        if not master.startswith("local["):
            settings.update({"spark.executorEnv.TFOS_ML_PRELOAD": "0", **SOON})
        if self.store is not None:
            settings.update(
                {f"spark.hadoop.fs.s3a.{name}": value for name, value in store_settings(self.store).items()}
            )
        if master in (STANDALONE, *HOSTS):
            self._cluster = self._start_cluster(environment)
            prefix = self.network.within("d") if self.network is not None else []
            settings = {**settings, **self._cluster.settings(), "spark.python.daemon.module": "tfos_ml.agent.daemon"}
            if master == NAT:
                settings.update(self._forward())
            environment = {**self._cluster.environment(), **environment, "SPARK_LOCAL_IP": self._cluster.address}
        elif master == CONNECT:
            settings["spark.remote"] = "local[4]"
        else:
            settings["spark.master"] = master.split()[0]
        if master == SPECULATION:
            settings.update(SPECULATES)
        return Driver(settings, self._directory / "driver.log", prefix, environment)

    def _start_cluster(self, environment: dict[str, str]) -> Standalone:
        if self.master == STANDALONE:
            return Standalone(self._directory, of_workers=environment)
        self.network = network = Network("mgab" if self.master == NAT else "dab")
        of_master = "m" if self.master == NAT else "d"
        cluster = Standalone(
            self._directory,
            workers=0,
            address=network.addresses[of_master],
            prefix=network.within(of_master),
            of_workers=environment,
        )
        for host in "ab":
            cluster.start_worker(network.addresses[host], prefix=network.within(host))
        cluster.wait_for_workers()
        return cluster

    def _forward(self) -> dict[str, str]:
        """Put the driver behind a gateway, which hands connections to ports on to it; Spark's settings for that."""
        assert self.network is not None
        assert self._cluster is not None
        self.network.add_behind("d", gateway="g", address=PRIVATE)
        gateway, log = self.network.addresses["g"], self._directory / "forwarder.txt"
        command = [sys.executable, str(CLUSTER / "forwarder.py"), gateway, PRIVATE, *map(str, BEHIND_NAT.values())]
        self._cluster.start([*self.network.within("g"), *command], log)
        assert wait_until(lambda: "ready" in log.read_text(), START_SECONDS)
        ports = {name: str(port) for name, port in BEHIND_NAT.items()}
        return {
            **ports,
            "spark.driver.host": gateway,
            "spark.driver.bindAddress": PRIVATE,
            "spark.port.maxRetries": "0",
        }

    def all_processes(self) -> list[psutil.Process]:
        """Those of the driver, and those that outlive their parents."""
        session = os.environ["TFOS_ML_TEST_SESSION"]
        found = []
        for process in psutil.process_iter():
            with contextlib.suppress(psutil.Error, OSError):
                if process.environ().get("TFOS_ML_TEST_SESSION") == session and process.pid != os.getpid():
                    found.append(process)
        return found

    def states(self) -> str:
        lines = []
        for process in self.all_processes():
            with contextlib.suppress(psutil.Error, OSError):
                waits_in = Path(f"/proc/{process.pid}/wchan").read_text()
                seconds = sum(process.cpu_times()[:2])
                command = " ".join(process.cmdline())[:120]
                lines.append(
                    f"{process.pid} of {process.ppid()}: {process.status()} in {waits_in}, {seconds:.1f} s, {command}"
                )
        return "\n".join(lines)

    def strangers(self, before: set[int]) -> dict[int, str]:
        """Processes that were not there before, and are none of those that serve a session until its end."""
        found = {}
        for process in self.all_processes():
            with contextlib.suppress(psutil.Error):
                command = " ".join(process.cmdline())
                if process.pid not in before and process.status() != psutil.STATUS_ZOMBIE:
                    found |= {} if any(word in command for word in SERVERS) else {process.pid: command}
        return found

    def named(self, *words: str) -> list[psutil.Process]:
        """Processes that have one of some words as their name or as an argument; parents first."""
        found = []
        for process in self.all_processes():
            with contextlib.suppress(psutil.Error):
                if {process.name(), *process.cmdline()} & {*words}:
                    found.append(process)
        return sorted(found, key=lambda process: process.pid)

    def close(self) -> None:
        if hasattr(self, "driver"):
            self.driver.close()
        with contextlib.suppress(AssertionError):  # what it has left is killed below
            if self._cluster is not None:
                self._cluster.close()
        for process in self.all_processes():
            if process.pid not in self._before:
                with contextlib.suppress(psutil.NoSuchProcess):
                    process.kill()
        if self.network is not None:
            self.network.close()
        if getattr(self, "store", None) is not None:
            self.store.close()


def search_path() -> str:
    """Where processes find the modules of these tests."""
    here = Path(__file__).parent
    return os.pathsep.join([str(here), str(here.parent / "cluster"), os.environ["PYTHONPATH"]])


def make_store() -> ObjectStore | None:
    """A store of moto's, if it is installed."""
    with contextlib.suppress(ImportError):
        return ObjectStore()
    return None


def store_settings(store: ObjectStore) -> dict[str, str]:
    """Spark's settings for it, without ``fs.s3a.``."""
    keys = {"access.key": ACCESS_KEY, "secret.key": SECRET_KEY}
    return {"endpoint": store.endpoint, "endpoint.region": "us-east-1", **keys}


def with_clock(file: Path) -> dict[str, str]:
    """Variables of processes whose wall clock is off by what a file says; none where there is no compiler."""
    library = Path(tempfile.gettempdir(), "clock.so")
    if shutil.which("gcc") is None:
        return {}
    if not library.exists():
        source = Path(__file__).with_name("clock.c")
        subprocess.run(["gcc", "-O1", "-shared", "-fPIC", "-o", library, source, "-ldl"], check=True)
    file.write_bytes(bytes(8))
    return {"LD_PRELOAD": str(library), "CHAOS_CLOCK": str(file)}


def step_clock(file: Path, seconds: int) -> None:
    """Step the wall clock of all processes that look at a file."""
    with open(file, "r+b") as stream:
        offset = int.from_bytes(stream.read(8), sys.byteorder, signed=True)
        stream.seek(0)
        stream.write((offset + seconds).to_bytes(8, sys.byteorder, signed=True))
