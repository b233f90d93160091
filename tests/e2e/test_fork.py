"""Nodes are forked from a process that has imported TensorFlow, unless a setting says otherwise."""

import contextlib
import json
import os
import signal
import sys
import tempfile
from pathlib import Path

import psutil
import pytest
from conftest import CLUSTER, ends, wait_until
from pyspark.sql import functions as F
from train_functions import write

from tfos_ml import KerasEstimator, TFEstimator, errors
from tfos_ml.driver import probe
from tfos_ml.driver.preflight import registered_slots
from tfos_ml.inference.tensorflow_import import PRELOADS

pytestmark = pytest.mark.filterwarnings("ignore:The train function exported no model")
IDLE = "spark.tfos_ml.idleSeconds"


def tell_parent(args, ctx):
    from supervisors import supervisor_of

    write(args, ctx, {"parent": os.getppid(), "supervisor": supervisor_of(ctx)})


def lose_the_server(args, ctx):
    os.kill(os.getppid(), signal.SIGKILL)
    feed = ctx.get_data_feed()
    rows = 0
    while not feed.should_stop():
        rows += len(feed.next_batch(10))
    write(args, ctx, {"rows": rows})


def fit(spark, directory, train_fn=tell_parent, **node_env):
    """Fit on two nodes whose functions need no TensorFlow, so that they have a server without it."""
    df = spark.range(40).select(F.col("id").cast("float").alias("features"))
    params = {"tfArgs": {"directory": str(directory)}, "nodeEnv": {PRELOADS: "0", **node_env}}
    TFEstimator(trainFn=train_fn, clusterSize=2, **params).fit(df)
    return [json.loads(file.read_text()) for file in sorted(directory.glob("worker-*.json"))]


@pytest.fixture
def setting(spark):
    yield lambda value: spark.conf.set(IDLE, value)
    spark.conf.unset(IDLE)


def test_fits_share_a_server_that_is_none_of_their_processes(spark, tmp_path):
    first, second = fit(spark, tmp_path), fit(spark, tmp_path)
    assert len({node["parent"] for node in [*first, *second]}) == 1
    assert "tfos_ml.worker.fork_server" in psutil.Process(first[0]["parent"]).cmdline()
    assert first[0]["parent"] not in {node["supervisor"] for node in first}


@pytest.mark.chaos  # unit/test_forkserver.py has fresh processes
def test_without_a_server_every_node_is_started_by_its_supervisor(spark, tmp_path, setting):
    setting("0")
    assert all(node["parent"] == node["supervisor"] for node in fit(spark, tmp_path))


@pytest.mark.chaos
def test_a_fit_outlives_its_server_and_the_next_has_another(spark, tmp_path):
    before = fit(spark, tmp_path)
    assert sum(node["rows"] for node in fit(spark, tmp_path, lose_the_server)) == 40
    assert ends(before[0]["parent"])
    assert fit(spark, tmp_path)[0]["parent"] != before[0]["parent"]


def owner_of(server):
    """The pid of the process that has started a fork server."""
    return int(server.cmdline()[-4])


@pytest.mark.parametrize("value", ["soon", "-1"])
def test_idle_seconds_that_are_none_are_refused(spark, tmp_path, setting, value):
    setting(value)
    with pytest.raises(errors.ClusterConfigError, match=f"{IDLE}={value} must be a positive number"):
        fit(spark, tmp_path)


def test_looks_nodes_and_scoring_share_one_server_on_the_drivers_host(spark, tmp_path):
    """Red before: three servers, each with a TensorFlow of its own."""
    fit(spark, tmp_path, **{PRELOADS: "1"})
    known = servers()
    df = spark.range(40).select((F.col("id") / 40).cast("float").alias("features"), F.lit(0.0).alias("label"))
    estimator = KerasEstimator(model=regression, batchSize=10, verbose=0)
    assert estimator.fit(df).transform(df).count() == 40
    assert servers() == known


@pytest.mark.chaos
def test_executors_import_while_the_driver_looks(sessions, monkeypatch):
    spark = sessions.get(CLUSTER)
    df = spark.range(40).select((F.col("id") / 40).cast("float").alias("features"), F.lit(0.0).alias("label"))
    monkeypatch.setattr(probe, "_checked", [])  # as before the first fit of an application
    while found := processes_of(servers()):  # of tests before; and forks of theirs, which look like servers then
        for process in found:
            process.kill()
            assert ends(process.pid)
    assert wait_until(lambda: registered_slots(spark) >= 4, 60)
    preparation = {"environment": {"KERAS_BACKEND": "tensorflow"}, "cpus": None, "idle_seconds": 300.0}
    with probe.prepared_executors(spark, 4, {**preparation, "fork_owner": None}):  # one for each slot
        pass
    known = processes_of(servers())
    assert len({owner_of(server) for server in known}) == len(known) == 2  # one for each executor
    assert {psutil.Process(owner_of(server)).name() for server in known} == {"java"}
    assert spark.sparkContext.applicationId in probe._checked
    model = KerasEstimator(model=regression, clusterSize=2, batchSize=10, verbose=0).fit(df)
    assert model.transform(df).count() == 40
    assert {*known} <= {*processes_of(servers())}  # the driver has one of its own


def processes_of(places):
    """The fork servers whose sockets are in some places."""
    sockets, found = {str(place / "socket") for place in places}, []
    for process in psutil.process_iter():
        with contextlib.suppress(psutil.Error):  # it ends meanwhile
            if sockets & set(process.cmdline()) and process.ppid() == 1:  # and is no fork
                found.append(process)
    return found


def servers():
    """The places of fork servers."""
    return set(Path(tempfile.gettempdir()).glob("tfos_ml-forkserver-*"))


def regression():
    import keras

    model = keras.Sequential([keras.layers.Input((1,)), keras.layers.Dense(1)])
    model.compile("sgd", "mse")
    return model


def test_python_workers_of_our_daemon_begin_with_what_tasks_import(spark):
    def look(_):

        archives = [path for path in sys.path if "pyspark.zip" in path or "py4j" in path or path.endswith(".jar")]
        return [({"pandas", "pyarrow.flight", "tfos_ml.agent.feed_task"} <= set(sys.modules), archives)]

    assert spark.conf.get("spark.python.daemon.module") == "tfos_ml.agent.daemon"
    assert spark.sparkContext.parallelize([1], 1).mapPartitions(look).collect() == [(True, [])]
