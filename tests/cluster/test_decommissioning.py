"""A worker of Spark's that is told to go, with a node of a fit or without one."""

from __future__ import annotations

import signal

import pytest
from conftest import wait_until
from standalone import START_SECONDS, Standalone, command_of

pytestmark = [pytest.mark.chaos]
NODE = "tfos_ml.worker.main"


def has_node(worker) -> bool:
    return any(NODE in command_of(process) for process in worker.pythons())


def decommission(worker) -> None:
    worker.process.send_signal(signal.SIGPWR)  # as Spark's decommission-worker.sh


@pytest.fixture
def spot_workers(tmp_path):
    """Three workers, which can be decommissioned."""
    conf = tmp_path / "conf"
    conf.mkdir()
    (conf / "spark-defaults.conf").write_text("spark.decommission.enabled true\n")
    with Standalone(tmp_path, workers=3, of_workers={"SPARK_CONF_DIR": str(conf)}) as cluster:
        yield cluster


def spot_driver(cluster, executors):
    return cluster.driver(
        spark_decommission_enabled="true",
        spark_executor_cores=1,
        spark_cores_max=executors,
        spark_tfos__ml_idleSeconds=0,  # so that nodes are below their executors
    )


def begin_slow_fit(driver, directory):
    """Begin a fit of two nodes, which trains now; of one that may not be restarted ``simulation/`` has the rules."""
    driver.begin("keras", directory=str(directory), is_slow=True, minClusterSize=1)
    assert wait_until((directory / "trains").exists, 3 * START_SECONDS), driver.log()[-3000:]


def test_a_decommissioned_worker_ends_the_attempt_with_a_checkpoint(spot_workers, tmp_path):
    driver = spot_driver(spot_workers, 2)
    undisturbed = driver.run("keras", 3 * START_SECONDS, directory=str(tmp_path / "undisturbed")).result
    begin_slow_fit(driver, tmp_path)
    decommission(next(filter(has_node, spot_workers.workers)))
    outcome = driver.outcome(3 * START_SECONDS)
    assert outcome.result, outcome
    first, *_, last = outcome.result["attempts"]
    assert "PreemptedError" in first["ended"], outcome
    assert (first["nodes"], last["ended"]) == (2, "")
    assert first["epoch"] + first["step"] > 0
    assert outcome.result["history"]["loss"] == pytest.approx(undisturbed["history"]["loss"], rel=1e-5)


def test_a_decommissioned_executor_without_a_node_does_not_concern_the_fit(spot_workers, tmp_path):
    driver = spot_driver(spot_workers, 3)
    begin_slow_fit(driver, tmp_path)
    decommission(next(worker for worker in spot_workers.workers if worker.executors() and not has_node(worker)))
    outcome = driver.outcome(3 * START_SECONDS)
    assert outcome.result, outcome
    assert [attempt["ended"] for attempt in outcome.result["attempts"]] == [""]
    assert "decommissions executor" not in driver.log()
