"""What all tests share: a Spark session by master, and the proof that nothing is left behind."""

from __future__ import annotations

import contextlib
import gc
import os
import select
import shutil
import socket
import stat
import subprocess
import sys
import tempfile
import time
import traceback
from collections.abc import Callable, Generator, Iterator
from pathlib import Path

import hypothesis
import psutil
import pytest
from connect_server import ConnectServer

from tfos_ml.common.directories import TemporaryDirectory
from tfos_ml.inference.tensorflow_import import import_tensorflow_later

HERE = Path(__file__).parent
os.environ["PYSPARK_PYTHON"] = sys.executable
# Train functions of the tests are importable on the nodes as they are here.
OURS = [str(HERE), str(HERE / "e2e")]
os.environ["PYTHONPATH"] = os.pathsep.join([*OURS, os.environ.get("PYTHONPATH", "")])
sys.path[:0] = OURS
import_tensorflow_later()
# A busy machine may take long for an example, and to draw one.
hypothesis.settings.register_profile("tests", deadline=None, suppress_health_check=[hypothesis.HealthCheck.too_slow])
hypothesis.settings.load_profile("tests")
STARTED = time.time()
SESSION = f"{os.getpid()}-{STARTED}"
os.environ["TFOS_ML_TEST_SESSION"] = SESSION  # inherited by all processes of these tests
# Temporary files of these tests alone: other pytest processes may run beside this one.
os.environ["TMPDIR"] = tempfile.tempdir = os.environ["SPARK_LOCAL_DIRS"] = tempfile.mkdtemp(prefix="test-tfos_ml-")
# Short programs gain more from a JVM that compiles little than from fast code; Spark's classes need no verification.
JVM_OPTIONS = "-XX:TieredStopAtLevel=1 -XX:+UseSerialGC -XX:+UnlockDiagnosticVMOptions -XX:-BytecodeVerificationRemote"
os.environ["SPARK_SUBMIT_OPTS"] = JVM_OPTIONS
# Python workers of programs that tests run begin with what they import, too, where not said otherwise.
OUR_DAEMON = "--conf spark.python.daemon.module=tfos_ml.agent.daemon"
os.environ["PYSPARK_SUBMIT_ARGS"] = f"{OUR_DAEMON} pyspark-shell"

CLEAN_SECONDS = 30.0  # on a busy machine; it ends a hang, and a quiet one needs a second
NO_MARKER = "0" * 32
MODULES = {
    "tfos_ml.worker.main",
    "tfos_ml.agent.reaper",
    "tfos_ml.agent.standalone_supervisor",
    "tfos_ml.agent.tensorboard",
}
FORKED = {"tfos supervisor", "tfos reaper"}
ENVIRONMENT = {k for k in os.environ if not k.startswith(("PYTEST_", "SPARK_", "PYSPARK_"))}
SPARK_PORTS: set[int] = set()  # of this process, opened by pyspark with the session
KERNEL = 2  # the parent of the kernel's own threads
STRANGERS: set[int] = set()  # processes that these tests did not start, as far as they have been looked at
LOCAL, CLUSTER = "local[4]", "local-cluster[2,2,1024]"
ON_CONNECT = os.environ.get("TFOS_ML_TEST_CONNECT") == "1"  # of Spark Connect, whose server is another process


def wait_until(condition: Callable[[], object], seconds: float) -> bool:
    """Whether a condition came true within a deadline."""
    deadline = time.monotonic() + seconds
    while not condition():
        if time.monotonic() > deadline:
            return False
        time.sleep(0.05)
    return True


def seconds(limit: float) -> float:
    """What takes so many seconds on two quiet cores may take so many here and now."""
    began = time.perf_counter()
    sum(range(3_000_000))
    return limit * max(1.0, (time.perf_counter() - began) / 0.06)


def open_for(waiting: Path) -> None:
    """Let a writer that waits for a reader of a pipe, as for a store that hangs, go on; its writing then fails."""
    os.close(os.open(waiting, os.O_RDONLY | os.O_NONBLOCK))


def ends(pid: int, seconds: float = CLEAN_SECONDS) -> bool:
    """Whether a process, ours or not, ends within a deadline."""
    try:
        descriptor = os.pidfd_open(pid)
    except ProcessLookupError:
        return True
    try:
        poller = select.poll()
        poller.register(descriptor, select.POLLIN)
        return bool(poller.poll(seconds * 1000))
    finally:
        os.close(descriptor)


def lives(pid: int) -> bool:
    """Whether a process, ours or not, has not ended."""
    return not ends(pid, seconds=0)


def our_processes() -> dict[int, str]:
    """Processes of nodes, guardians and the like on this machine."""
    found = {}
    pids = {int(name) for name in os.listdir("/proc") if name.isdecimal()}
    STRANGERS.intersection_update(pids)
    for pid in pids - STRANGERS:
        try:
            process = psutil.Process(pid)
            if pid == KERNEL or process.ppid() == KERNEL:  # has no environment to be read
                STRANGERS.add(pid)
                continue
            command, environment = process.cmdline(), process.environ()
        except psutil.AccessDenied:  # of another user
            STRANGERS.add(pid)
            continue
        except psutil.Error:
            continue
        if environment.get("TFOS_ML_TEST_SESSION") != SESSION:
            if environment:  # others have none while they begin
                STRANGERS.add(pid)
            continue
        of_node = environment.get("TFOS_ML_NODE", NO_MARKER) != NO_MARKER  # a fork server has none
        with contextlib.suppress(psutil.NoSuchProcess):
            ours = MODULES & set(command) or process.name() in FORKED
            if (ours or of_node) and process.status() != psutil.STATUS_ZOMBIE:
                found[process.pid] = " ".join(command)
    return found


def our_files() -> set[str]:
    """Spools, temporary directories of ours, and models that were unpacked by half."""
    temporary = Path(tempfile.gettempdir())
    roots = [Path("/dev/shm"), temporary, *temporary.glob("spark-*")]
    found = {p for root in roots for p in root.glob("tfos_ml-*")}
    found -= {
        *temporary.glob("tfos_ml-forkserver-*"),
        *temporary.glob("tfos_ml-scoring-*"),
    }  # they end with the session, or with these tests
    for spark in temporary.glob("spark-*"):
        for place, names, _ in os.walk(spark):  # of which Spark may delete parts meanwhile
            if place.endswith("/tfos_ml-models"):
                found |= {Path(place, name) for name in names if name.startswith(".partial-")}
    if any(p.name.startswith("tfos_ml-model-") for p in found):
        found -= {one.path for one in gc.get_objects() if type(one) is TemporaryDirectory}  # of models in use
    return {str(p) for p in found if not of_another_session(p)}


def of_another_session(path: Path) -> bool:
    """Whether a directory is older than these tests, or belongs to a live process that they did not start."""
    with contextlib.suppress(FileNotFoundError):
        if path.stat().st_ctime < STARTED:
            return True
    place = {"spool": 3, "rows": 3, "model": 3, "node": 2}  # where in the name its process stands
    owner = place.get(path.name.split("-")[1])
    if owner is None:
        return False
    pid = int(path.name.split("-")[owner])
    if pid == os.getpid():  # whose environment, as the kernel has it, is that of its start
        return False
    try:
        return psutil.Process(pid).environ().get("TFOS_ML_TEST_SESSION") != SESSION
    except psutil.Error:
        return False


def listening_ports() -> set[int]:
    """Ports this process listens on; psutil would read all connections of the host, thousands after some tests."""
    found = set()
    for name in os.listdir("/proc/self/fd"):
        with contextlib.suppress(OSError):  # the directory's own is closed by now
            found |= port_if_listening(int(name))
    return found


def port_if_listening(descriptor: int) -> set[int]:
    if not stat.S_ISSOCK(os.fstat(descriptor).st_mode):
        return set()
    with socket.socket(fileno=os.dup(descriptor)) as one:
        is_port = one.family in (socket.AF_INET, socket.AF_INET6)
        listens = is_port and one.getsockopt(socket.SOL_SOCKET, socket.SO_ACCEPTCONN)
        return {one.getsockname()[1]} if listens else set()


def our_environment() -> dict[str, str]:
    """Environment variables that our code could change; TensorFlow's import sets some of its own."""
    return {k: v for k, v in os.environ.items() if k in ENVIRONMENT or k.startswith(("TF_C", "TFOS", "KERAS"))}


def what_is_left(ports_before: set[int]) -> dict[str, object]:
    left: dict[str, object] = {
        "processes": our_processes(),
        "files": our_files(),
        "ports": listening_ports() - ports_before - SPARK_PORTS,
    }
    return {kind: what for kind, what in left.items() if what}


@pytest.fixture(autouse=True)
def nothing_left() -> Iterator[None]:
    """After every test, within a bounded time: no process, spool, port, variable or Spark job of ours."""
    ports, environment = listening_ports(), our_environment()
    yield
    left = what_is_left(ports)
    if left:
        gc.collect()  # the files of a TFModel live as long as the object
        # Looked at once more it could be something of other tests, whose process has just ended.
        assert wait_until(lambda: not what_is_left(ports), CLEAN_SECONDS), (left, what_is_left(ports))
    assert wait_until(lambda: not active_jobs(), CLEAN_SECONDS), active_jobs()  # Spark notes their end a moment later
    assert our_environment() == environment


def active_jobs() -> list[int]:
    """Jobs that run in the active classic session."""
    pyspark = sys.modules.get("pyspark")
    context = pyspark.SparkContext._active_spark_context if pyspark else None
    return list(context.statusTracker().getActiveJobsIds()) if context else []


def jobs_of(spark) -> set[int]:  # type: ignore[no-untyped-def]
    """Jobs that a session has run, but for those that prepare executors, and read no rows."""
    from tfos_ml.driver.executor_check import PROBE_TAG

    listed = spark.sparkContext._jsc.sc().statusStore().jobsList(None)
    jobs = [listed.apply(i) for i in range(listed.size())]
    return {job.jobId() for job in jobs if PROBE_TAG not in job.jobTags().mkString()}


class Sessions:
    """The one Spark session there can be in a process; changes its master on request."""

    def __init__(self) -> None:
        self._kind: str | None = None
        self._server: ConnectServer | None = None

    def get(self, master: str, **conf: str):  # type: ignore[no-untyped-def]
        """The session of a master and settings, whose dots are written as underscores."""
        from pyspark import SparkContext
        from pyspark.sql import SparkSession

        if conf and SparkContext._gateway is None and not ON_CONNECT:
            self.get(LOCAL)  # a JVM gives the settings with which it was started to all its sessions
        active = SparkSession.getActiveSession()
        kind = f"{master} {sorted(conf.items())}"
        if active is not None and self._kind == kind:
            return active
        self.stop()
        self._kind = kind
        # Fork servers of executors end with each session, and most nodes need no TensorFlow.
        settings = {
            "spark.app.name": "tfos_ml tests",
            "spark.ui.enabled": "false",
            "spark.sql.shuffle.partitions": "4",
            "spark.default.parallelism": "2",  # every Python worker that scores imports TensorFlow
            "spark.ui.showConsoleProgress": "false",
            "spark.driver.host": "127.0.0.1",
            "spark.executor.extraJavaOptions": JVM_OPTIONS,
            "spark.python.daemon.module": "tfos_ml.agent.daemon",
            "spark.executorEnv.TFOS_ML_PRELOAD": "1" if master.startswith("local[") else "0",
            **{name.replace("_", "."): value for name, value in conf.items()},
        }
        if ON_CONNECT:
            self._server = ConnectServer(master, settings)
            return SparkSession.builder.remote(self._server.url).getOrCreate()
        session = SparkSession.builder.master(master).config(map=settings).getOrCreate()
        session.sparkContext.setLogLevel("OFF")
        SPARK_PORTS.update(listening_ports())
        return session

    def stop(self) -> None:
        from pyspark.sql import SparkSession

        active = SparkSession.getActiveSession()
        if active is not None:
            active.stop()
        if self._server is not None:
            self._server.close()
        self._kind = self._server = None


@pytest.fixture(scope="module")
def keras():
    """Keras on the driver; it changes the environment when it is imported, which is not ours to undo."""
    import keras

    return keras


@pytest.fixture(scope="session")
def sessions() -> Iterator[Sessions]:
    sessions = Sessions()
    yield sessions
    sessions.stop()
    assert wait_until(lambda: not our_processes() and not our_files(), CLEAN_SECONDS), (our_processes(), our_files())


@pytest.fixture
def spark(sessions: Sessions):  # type: ignore[no-untyped-def]
    """A session on threads of this machine."""
    return sessions.get(LOCAL)


@pytest.fixture(scope="session")
def connect_server() -> Iterator[ConnectServer]:
    """A Spark Connect server of its own, for programs that are its clients."""
    settings = {"spark.ui.enabled": "false", "spark.ui.showConsoleProgress": "false"}
    server = ConnectServer(LOCAL, {**settings, "spark.python.daemon.module": "tfos_ml.agent.daemon"})
    yield server
    server.close()


@pytest.fixture
def small(tmp_path: Path) -> Iterator[Callable[[str], Path]]:
    """Mounts a filesystem in memory of some size and number of inodes."""
    mounted: list[Path] = []

    def mount(options: str) -> Path:
        point = tmp_path / f"mount-{len(mounted)}"
        point.mkdir()
        done = subprocess.run(["mount", "-t", "tmpfs", "-o", options, "none", point], capture_output=True, text=True)
        if done.returncode:
            pytest.skip(f"nothing can be mounted here: {done.stderr}")
        mounted.append(point)
        return point

    yield mount
    for point in mounted:
        subprocess.run(["umount", point], check=True)


@pytest.hookimpl(wrapper=True)
def pytest_runtest_setup(item: pytest.Item) -> Generator[None, object, object]:
    """See ``left_out_on_connect``."""
    with left_out_on_connect():
        return (yield)


pytest_runtest_call = pytest_runtest_setup


@contextlib.contextmanager
def left_out_on_connect() -> Iterator[None]:
    """Leave out tests that look into Spark's context, which Spark Connect does not have; our own code must do without.

    What cannot be without it, such as TFCluster, says so, and is left out, too.
    """
    try:
        yield
    except Exception as error:
        if not ON_CONNECT:
            raise
        frames = [frame.filename for frame in traceback.extract_tb(error.__traceback__)]
        asks = [name for name in frames if f"{os.sep}pyspark{os.sep}" not in name][-1]
        if "JVM_ATTRIBUTE_NOT_SUPPORTED" in str(error) and asks.startswith(str(HERE)):
            pytest.skip("looks into the SparkContext, which a client of Spark Connect has not")
        if type(error).__name__ == "ClusterConfigError" and "needs a SparkContext" in str(error):
            pytest.skip(str(error).partition(",")[0])
        raise


def pytest_unconfigure() -> None:
    shutil.rmtree(tempfile.gettempdir(), ignore_errors=True)


def on_executors(nodeid: str) -> bool:
    """Whether a test, by its file or its name, uses the session with executors."""
    path, _, name = nodeid.partition("::")
    return path in ON_EXECUTORS or "local-cluster" in name or "several_executors" in name


ON_EXECUTORS = {"tests/e2e/test_node_output.py"}
ON_SERVER = {"tests/e2e/test_connect.py", "tests/e2e/test_connect_live.py"}  # one for both
OWN_EXECUTORS = "tests/e2e/test_dynamic_allocation.py"  # has a session of its own, so it runs after the others


def turn(item: pytest.Item) -> tuple[bool, bool, bool, int]:
    """Order tests: those of one master in a row, then files that take long, then the many that do not."""
    path = item.nodeid.partition("::")[0]
    is_short = path.startswith("tests/unit/")
    return not on_executors(item.nodeid), path == OWN_EXECUTORS, is_short, path.count("/")


def pytest_collection_modifyitems(items: list[pytest.Item]) -> None:
    items.sort(key=turn)


@pytest.hookimpl(optionalhook=True)
def pytest_xdist_make_scheduler(config: pytest.Config, log):  # type: ignore[no-untyped-def]
    """One process runs all tests with executors, one those with a Connect server; the others go by file."""
    from xdist.scheduler import LoadScopeScheduling

    class ByMaster(LoadScopeScheduling):
        def _split_scope(self, nodeid: str) -> str:
            path = nodeid.partition("::")[0]
            return "on executors" if on_executors(nodeid) else "with a Connect server" if path in ON_SERVER else path

    config.option.loadscopereorder = False  # but as they are ordered above
    return ByMaster(config, log)
