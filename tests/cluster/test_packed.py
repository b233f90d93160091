"""Executors with what pyspark needs alone, or without Python, and an archive of ``python -m tfos_ml pack``."""

from __future__ import annotations

import json
import os
import shutil
import subprocess
import sys
from pathlib import Path

import pytest
from elsewhere import interpreter_with
from standalone import SPARK_HOME, Standalone

pytestmark = [pytest.mark.chaos, pytest.mark.timeout(1200)]  # 30 s of computing to pack, and 40 s for each first start
ROOT = Path(__file__).parents[2]
SECONDS = 550
ROWS, EPOCHS = 400, 4
PROGRAM = """
import json, sys
import mlflow
from pyspark.sql import SparkSession
import tfos_ml.mlflow
from tfos_ml import KerasEstimator

settings, archive, store = json.loads(sys.argv[1]), sys.argv[2], sys.argv[3]
rows, epochs = map(int, sys.argv[4:])

def model():
    import keras

    network = keras.Sequential([keras.layers.Input((1,)), keras.layers.Dense(1)])
    network.compile("sgd", "mse")
    return network

def packages(batches):
    import pyarrow, tensorflow
    for _ in batches:
        pass
    yield pyarrow.record_batch([[tensorflow.__file__]], ["where"])

spark = SparkSession.builder.config(map=settings).getOrCreate()
if "spark.remote" in settings:
    spark.addArtifact(archive + "#environment", archive=True)
    spark.conf.set("spark.sql.execution.pyspark.python", "./environment/bin/python")
mlflow.set_tracking_uri(store)
tfos_ml.mlflow.autolog()
where = spark.range(0, 2, 1, 2).mapInArrow(packages, "where string", barrier=True).collect()
df = spark.range(0, rows, 1, 4).selectExpr("array(id / 400) AS features", "id / 200 AS label")
fitted = KerasEstimator(model=model, clusterSize=2, epochs=epochs, seed=7, verbose=0).fit(df)
scored = fitted.transform(df).filter("prediction IS NOT NULL").count()
run = mlflow.search_runs(search_all_experiments=True, output_format="list")[-1]
curve = [m.value for m in mlflow.MlflowClient().get_metric_history(run.info.run_id, "loss")]
print(json.dumps({"where": [row.where for row in where], "loss": fitted.summary.history["loss"], "curve": curve,
                  "workers": len(fitted.summary.nodes), "scored": scored}))
spark.stop()
"""

# A host without Python: of what the tests' interpreter has, Spark alone is left.
WITHOUT_PYTHON = """
set -e
spark=$1 kept=$2 environment=$3 interpreter=$4
shift 4
mount --bind "$spark" "$kept"
mount -t tmpfs none "$environment"
mount -t tmpfs none "$interpreter"
mkdir -p "$spark"
mount --bind "$kept" "$spark"
for directory in /usr/lib/python3.*; do mount -t tmpfs none "$directory"; done
for program in /usr/bin/python3.?? /usr/local/bin/python3.??; do
  if [ -f "$program" ]; then mount --bind /dev/null "$program"; fi
done
for program in python python3 python3.10 python3.11 python3.12 python3.13; do
  if "$program" -c pass; then echo "$program runs" && exit 1; fi
done
exec "$@"
"""


def packed(archive: Path, *arguments: str) -> Path:
    command = [sys.executable, "-m", "tfos_ml", "pack", str(archive), *arguments]
    done = subprocess.run(command, capture_output=True, text=True, timeout=SECONDS, check=False)
    assert done.returncode == 0, done.stderr[-3000:]
    assert f'spark.addArtifact("{archive}#environment", archive=True)' in done.stdout
    return archive


@pytest.fixture(scope="module")
def bare(tmp_path_factory):
    """Environment variables of a host whose Python has what pyspark needs and nothing of ours."""
    python = interpreter_with(tmp_path_factory.mktemp("bare") / "venv", "numpy", "pandas", "pyarrow", "py4j")
    variables = {"PYTHONPATH": "", "PATH": f"{Path(python).parent}:{os.environ['PATH']}"}
    look = (
        "import importlib.util as u; print([n for n in ('tensorflow', 'keras', 'tfos_ml', 'psutil') if u.find_spec(n)])"
    )
    seen = subprocess.run(
        [python, "-c", look], env={**os.environ, **variables}, capture_output=True, text=True, check=True, cwd="/"
    )
    assert seen.stdout.strip() == "[]"
    return variables


@pytest.fixture(scope="module")
def cluster(tmp_path_factory, bare):
    with Standalone(tmp_path_factory.mktemp("cluster"), of_workers=bare) as cluster:
        yield cluster


def run(cluster: Standalone, archive: Path, directory: Path, settings: dict[str, str], **variables: str):
    """A user's program, in a process of its own: what it prints, or None, and its stderr."""
    program = directory / "program.py"
    program.write_text(PROGRAM)
    store = f"sqlite:///{directory}/mlflow.db"
    done = subprocess.run(
        [sys.executable, str(program), json.dumps(settings), str(archive), store, str(ROWS), str(EPOCHS)],
        env={**cluster.environment(), "SPARK_LOCAL_IP": cluster.address, **variables},
        cwd=directory,
        capture_output=True,
        text=True,
        timeout=SECONDS,
        check=False,
    )
    return (json.loads(done.stdout.splitlines()[-1]) if done.returncode == 0 else None), done.stderr


def assert_trained(outcome, stderr, cluster):
    assert outcome is not None, stderr[-5000:] + cluster.logs()[-3000:]
    assert all("/environment/site-packages/tensorflow/" in where for where in outcome["where"])
    assert outcome["workers"] == 2
    assert outcome["scored"] == ROWS
    assert len(outcome["curve"]) == EPOCHS
    assert outcome["curve"] == pytest.approx(outcome["loss"])
    assert outcome["curve"][-1] < outcome["curve"][0]


def test_standalone(cluster, tmp_path):
    archive = packed(tmp_path / "environment.tar.gz")
    settings = {**cluster.settings(), "spark.archives": f"{archive}#environment"}
    python = {"PYSPARK_PYTHON": "./environment/bin/python", "PYSPARK_DRIVER_PYTHON": sys.executable}
    assert_trained(*run(cluster, archive, tmp_path, settings, **python), cluster)


def test_spark_connect_with_tensorflow_cpu_that_pip_installs(cluster, tmp_path):
    archive = packed(tmp_path / "environment.tar.gz", "--fresh", "--add", "tensorflow-cpu")
    url = cluster.connect_server()
    assert_trained(*run(cluster, archive, tmp_path, {"spark.remote": url}), cluster)


@pytest.mark.skipif(os.geteuid() != 0 or sys.base_prefix == "/usr", reason="needs root, and a Python of its own")
def test_executors_without_any_python(tmp_path):
    archive = packed(tmp_path / "environment.tar.gz", "--fresh", "--add", "tensorflow-cpu", "--with-python")
    kept, directory = tmp_path / "kept", tmp_path / "cluster"
    kept.mkdir()
    directory.mkdir()
    variables = {"PYTHONPATH": "", "PATH": f"{Path(shutil.which('java')).parent}:/usr/bin:/bin"}
    host = [str(part) for part in (SPARK_HOME, kept, sys.prefix, sys.base_prefix)]
    with Standalone(directory, workers=0, of_workers=variables) as cluster:
        for address in ("127.0.0.2", "127.0.0.3"):
            cluster.start_worker(address, prefix=["unshare", "--mount", "sh", "-c", WITHOUT_PYTHON, "sh", *host])
        cluster.wait_for_workers()
        settings = {**cluster.settings(), "spark.archives": f"{archive}#environment"}
        python = {"PYSPARK_PYTHON": "./environment/bin/python", "PYSPARK_DRIVER_PYTHON": sys.executable}
        assert_trained(*run(cluster, archive, tmp_path, settings, **python), cluster)
