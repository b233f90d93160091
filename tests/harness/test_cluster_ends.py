"""What ends when in a TFCluster: without a JVM and without TensorFlow. Fits are in ``e2e/test_cluster_end.py``."""

from __future__ import annotations

import threading
from argparse import Namespace

import node_functions
import pytest
from harness import metrics_of, session, start
from settings import setting
from spark_of_processes import wait_until

from tfos_ml import InputMode, errors

pytestmark = [pytest.mark.slow, pytest.mark.usefixtures("without_spark")]


@pytest.fixture
def spark():
    return session()


@pytest.mark.parametrize("mode", [pytest.param(InputMode.TENSORFLOW, marks=pytest.mark.chaos), InputMode.SPARK])
def test_grace_secs_do_not_cut_the_work_of_a_map_function(spark, mode):
    fed = mode == InputMode.SPARK
    cluster = start(spark, node_functions.work, {"fed": fed, "worker": 2}, nodes=2, mode=mode)
    if fed:
        cluster.train(spark.sparkContext.parallelize(range(10), 2))
    cluster.shutdown(grace_secs=0.5)
    assert all("done" in metrics for metrics in metrics_of(cluster.summary["nodes"]).values())


def test_a_node_whose_process_exits_before_it_has_read_its_rows_ends_the_cluster(spark):
    cluster = start(spark, node_functions.exit_at_first, Namespace(how="exit"), nodes=2, mode=InputMode.SPARK)
    with pytest.raises(errors.NodeExitError, match="exited with code 0 before") as caught:
        cluster.train(spark.sparkContext.parallelize(range(200), 4))
    assert (caught.value.role, caught.value.index) == ("worker", 1)


def test_the_time_limit_names_who_works(spark, tmp_path):
    told = tmp_path / "told"
    cluster = start(spark, node_functions.return_or_work, {"told": str(told)}, nodes=2, master_node="chief")
    assert wait_until(told.exists, 60)
    with pytest.raises(errors.ShutdownTimeoutError, match=r"\['worker:0'\] have not finished within timeout=2 s"):
        cluster.shutdown(grace_secs=300, timeout=2)


def test_grace_secs_let_an_evaluator_finish(spark):
    with setting(spark, "evaluatorGrace", "1"):
        cluster = start(spark, node_functions.evaluate_once_more, {"evaluator": 4}, nodes=2, eval_node=True)
        wait = threading.Event()
        assert not wait.wait(3)  # a program that is late: the grace begins with shutdown
        cluster.shutdown(grace_secs=30)
    assert "done" in metrics_of(cluster.summary["nodes"])["evaluator:0"]
