"""A worker of Spark's that is told to go, with a node of a fit or without one."""

from __future__ import annotations

import signal

import pytest
from conftest import wait_until
from standalone import START_SECONDS, Standalone, command_of


def has_node(worker) -> bool:
    return any("tfos_ml.worker.main" in command_of(process) for process in worker.pythons())


@pytest.mark.chaos
@pytest.mark.parametrize("of_the_fit", [True, False])
def test_a_decommissioned_worker_ends_the_attempt_with_a_checkpoint_if_it_has_a_node(tmp_path, of_the_fit):
    """If the fit may not be restarted, ``simulation/`` has the rules."""
    conf = tmp_path / "conf"
    conf.mkdir()
    (conf / "spark-defaults.conf").write_text("spark.decommission.enabled true\n")
    with Standalone(tmp_path, workers=3, of_workers={"SPARK_CONF_DIR": str(conf)}) as cluster:
        driver = cluster.driver(
            spark_decommission_enabled="true",
            spark_executor_cores=1,
            spark_cores_max=2 if of_the_fit else 3,
            spark_tfos__ml_idleSeconds=0,  # so that nodes are below their executors
        )
        undisturbed = driver.run("keras", directory=str(tmp_path / "undisturbed"))
        driver.begin("keras", directory=str(tmp_path), is_slow=True, minClusterSize=1)
        assert wait_until((tmp_path / "trains").exists, START_SECONDS), driver.logged()
        with_executors = [worker for worker in cluster.workers if worker.executors()]
        chosen = next(worker for worker in with_executors if has_node(worker) == of_the_fit)
        chosen.process.send_signal(signal.SIGPWR)  # as Spark's decommission-worker.sh
        outcome = driver.outcome()
        assert "result" in outcome, outcome
        first, *others = outcome["result"]["attempts"]
        if of_the_fit:
            assert "PreemptedError" in first["ended"], outcome
            assert (first["nodes"], others[-1]["ended"]) == (2, "")
            assert first["epoch"] + first["step"] > 0
        else:
            assert (first["ended"], others) == ("", [])
            assert "decommissions executor" not in driver.log.read_text()
        assert outcome["result"]["history"]["loss"] == pytest.approx(undisturbed["result"]["history"]["loss"], rel=1e-5)
