"""Rows of all Python workers of an executor are scored in one process, or in each of them: the results are the same."""

from __future__ import annotations

import os
import shutil
import signal
import subprocess
import sys
import threading
from pathlib import Path

import cloudpickle
import psutil
import pyarrow as pa
import pytest
from conftest import CLUSTER, ends, wait_until
from elsewhere import run_elsewhere
from pyspark.sql import functions as F
from settings import setting

from tfos_ml import TFModel, errors
from tfos_ml.agent import scoring_client as agent_scoring
from tfos_ml.agent.fork_client import ForkServerRef
from tfos_ml.agent.scorer import Scorer, ScoringProcess, make_udf_function
from tfos_ml.agent.scoring_client import ScoringProcessClient
from tfos_ml.common import unix_sockets
from tfos_ml.common.pids import ProcessHandle
from tfos_ml.common.session_settings import AUTO, EXECUTOR, WORKER
from tfos_ml.data.casting import TensorInfo
from tfos_ml.inference.input_tensors import InputBinding
from tfos_ml.inference.udf import ScoringSpec
from tfos_ml.worker import scoring_server

DEADLINE = 60.0
MAKE_MODELS = """
import sys
import tensorflow as tf

def save(name, serve, **inputs):
    module = tf.Module()
    module.weight = tf.Variable(tf.random.stateless_normal([8, 3], [1, 2]))
    module.serve = tf.function(lambda **tensors: serve(module.weight, **tensors))
    specs = {k: tf.TensorSpec(shape, dtype, k) for k, (shape, dtype) in inputs.items()}
    tf.saved_model.save(module, f"{sys.argv[1]}/{name}", signatures=module.serve.get_concrete_function(**specs))

def end_process(weight, x):
    with tf.control_dependencies([tf.cond(tf.reduce_any(x < 0), lambda: abort(x), lambda: tf.no_op())]):
        return {"y": tf.identity(x)}

def abort(x):
    with tf.control_dependencies([tf.raw_ops.Abort(error_msg="the model ends it")]):
        return tf.no_op()

save("mixed", lambda w, x, s, n: {"y": tf.nn.softmax(x @ w), "out": tf.strings.join([s, tf.strings.as_string(n)])},
     x=([None, 8], tf.float32), s=([None], tf.string), n=([None], tf.int64))
save("strict", lambda w, x: {"y": tf.ensure_shape(x, [5])}, x=([None], tf.float32))
save("deadly", end_process, x=([None], tf.float32))
"""


@pytest.fixture(scope="module")
def models(tmp_path_factory):
    """SavedModels made elsewhere, by plain TensorFlow in another process."""
    directory = tmp_path_factory.mktemp("models")
    run_elsewhere(MAKE_MODELS, str(directory))
    return directory


@pytest.fixture(scope="module")
def owner():
    """A process that stands for an executor: its servers end with it."""
    process = subprocess.Popen(["sleep", "600"])
    yield process.pid
    found = server_of(process.pid)
    process.kill()
    process.wait(DEADLINE)
    assert found is None or ends(found, DEADLINE)
    assert wait_until(lambda: not list(Path(os.environ["TMPDIR"]).glob(f"tfos_ml-*-{process.pid}-*")), DEADLINE)


def server_of(owner: int) -> int | None:
    """The pid of the owner's server, or None if it does not run."""
    client = ScoringProcessClient(ForkServerRef(owner, 300.0))
    if not client.answers():
        return None
    with client.connect() as connection:
        assert connection._process is not None
        return connection._process.pid


def plain(model: Path) -> ScoringSpec:
    """How to call a model of one input `x` and one output."""
    tensor = TensorInfo("float32", (None,))
    inputs, fields = (InputBinding("c", "x", tensor),), {"y": pa.float32()}
    return ScoringSpec(model, "serving_default", "serve", inputs, {"y": tensor}, fields, {"y": "y"}, 10, "error", 0)


def floats(*values: float) -> list[pa.Array]:
    return [pa.array(values, pa.float32())]


@pytest.fixture
def scorer(owner, models):
    """Makes a task's use of a model in the owner's scoring process."""
    made = []

    def make(name: str, kind: str = EXECUTOR) -> Scorer:
        made.append(Scorer(plain(models / name), ScoringProcess(kind, 0, 300.0, owner)))
        return made[-1]

    yield make
    for one in made:
        one._disconnect()


def test_error_of_the_model_tells_what_tensorflow_says(scorer):
    told = r"(?s)The model failed on rows of column 'c' .* InvalidArgumentError: .*\[5\]"
    with pytest.raises(errors.ModelError, match=told):
        scorer("strict").score(floats(1.0, 2.0))


def test_a_bounded_number_of_models_is_kept(scorer, models, owner, tmp_path):
    for number in range(6):
        shutil.copytree(models / "deadly", tmp_path / str(number))
        one = scorer(tmp_path / str(number))
        one.score(floats(1.0))
        one._disconnect()
    names = [f.path for f in psutil.Process(server_of(owner)).open_files()]
    assert not [name for name in names if str(tmp_path) in name]


class TestEnd:
    def test_is_started_again_between_two_batches(self, scorer, owner):
        one = scorer("deadly")
        assert one.score(floats(1.0)).to_pylist() == [1.0]
        before = server_of(owner)
        os.kill(before, signal.SIGKILL)
        assert ends(before)
        assert one.score(floats(2.0)).to_pylist() == [2.0]
        assert server_of(owner) not in (None, before)

    def test_ends_the_task_if_the_same_batch_ends_it_twice(self, scorer):
        one = scorer("deadly")
        with pytest.raises(errors.ModelError, match="ended twice while it had the same batch of 2 rows"):
            one.score(floats(1.0, -1.0))
        assert one.score(floats(1.0)).to_pylist() == [1.0]

    def test_that_stands_still_is_ended_and_started_again(self, scorer, owner, monkeypatch):
        one = scorer("deadly")
        one.score(floats(1.0))
        stopped = server_of(owner)
        monkeypatch.setattr(agent_scoring, "SCORER_ANSWER_SECONDS", 3.0)
        one._connection._batches.connection.settimeout(3.0)
        os.kill(stopped, signal.SIGSTOP)
        assert one.score(floats(2.0)).to_pylist() == [2.0]
        assert ends(stopped)

    def test_comes_although_a_call_for_a_client_that_is_gone_does_not_end(self, monkeypatch, tmp_path):
        """Red before: the call took a core until the executor ended."""
        hangs, goes_on = threading.Event(), threading.Event()
        monkeypatch.setattr(scoring_server, "_received_batch", lambda batches: hangs.set() or goes_on.wait(DEADLINE))
        listener = unix_sockets.listen(tmp_path / "socket")
        server = scoring_server.ScoringServer(listener, tmp_path / "socket", ProcessHandle.open(os.getpid()), 0.5)
        serving = threading.Thread(target=server.serve)
        serving.start()
        client = unix_sockets.connect(tmp_path / "socket")
        assert hangs.wait(DEADLINE)
        serving.join(2.0)
        assert serving.is_alive()
        client.close()
        serving.join(DEADLINE / 2)
        assert not serving.is_alive()
        goes_on.set()


def test_one_that_cannot_be_started_is_an_error_if_it_was_asked_for(scorer, owner, monkeypatch, tmp_path, caplog):
    """Others may use the place for its socket, too."""
    monkeypatch.setattr("tempfile.tempdir", str(tmp_path))
    ScoringProcessClient(ForkServerRef(owner, 300.0))._path.parent.mkdir(mode=0o755)
    assert scorer("deadly", kind=AUTO).score(floats(5.0)).to_pylist() == [5.0]
    assert "This Python worker runs the model itself" in caplog.text
    refused = "does not start: .*with mode 40755.* or set spark.tfos_ml.scoringProcess=worker"
    with pytest.raises(errors.ModelError, match=refused):
        scorer("deadly").score(floats(5.0))


@pytest.mark.corner("One scoring process for all Python workers")
def test_results_are_the_same_bit_for_bit(spark, models):
    number = F.col("id").cast("float")
    features = F.when(F.col("id") % 7 != 3, F.array([F.sin(number * i).cast("float") for i in range(8)]))
    df = spark.range(0, 5000, 1, 2).select(
        "id", features.alias("features"), F.concat(F.lit("é"), F.col("id")).alias("s")
    )
    model = TFModel(
        exportDir=str(models / "mixed"),
        inputMapping={"features": "x", "s": "s", "id": "n"},
        outputMapping={"y": "probability", "out": "joined"},
        handleInvalid="keep",
        predictBatchSize=100,
    )
    found = {}
    for kind in (EXECUTOR, WORKER):
        with setting(spark, "scoringProcess", kind):
            rows = df if kind == EXECUTOR else df.coalesce(1)  # each Python worker imports TensorFlow
            found[kind] = sorted(model.transform(rows).collect())  # Spark would score twice to sort them
    assert found[EXECUTOR] == found[WORKER]


@pytest.mark.chaos
def test_operations_have_as_many_threads_as_an_executor_has_cores_on_several_executors(sessions, models):
    score = make_udf_function(plain(models / "deadly"), ScoringProcess(WORKER, 1, 300.0, None))

    def threads_of_an_operation(batches):
        import tensorflow as tf

        for batch in batches:
            list(score(iter([(batch.column(0),)])))
            yield pa.RecordBatch.from_pydict({"threads": [tf.config.threading.get_intra_op_parallelism_threads()]})

    few = sessions.get(CLUSTER).range(0, 4, 1, 1).select(F.col("id").cast("float").alias("features"))
    assert [row.threads for row in few.mapInArrow(threads_of_an_operation, "threads long").collect()] == [2]


def test_small_models_are_pythons_work_on_many_cores(monkeypatch):
    monkeypatch.setattr(os, "sched_getaffinity", lambda pid: set(range(64)))
    assert [ScoringProcess(AUTO, size, 300.0, None).is_shared for size in (1, 1 << 30)] == [False, True]


LOOK = """
import pickle, sys
import pyarrow as pa

score = pickle.load(sys.stdin.buffer)
(scored,) = score(iter([(pa.array([1.0, 2.0], pa.float32()),)]))
print(scored.to_pylist(), "tensorflow" in sys.modules)
"""


def test_a_python_worker_whose_rows_are_scored_elsewhere_does_without_tensorflow(owner, models):
    score = make_udf_function(plain(models / "deadly"), ScoringProcess(EXECUTOR, 1, 300.0, owner))
    done = subprocess.run([sys.executable, "-c", LOOK], input=cloudpickle.dumps(score), capture_output=True, timeout=60)
    assert done.stdout.decode().strip() == "[1.0, 2.0] False", done.stderr
