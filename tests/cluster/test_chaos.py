"""Faults that take longer: executors killed in each phase of a fit, and a process that stands still in a collective."""

from __future__ import annotations

import json
import os
import signal
import time
from pathlib import Path

import pytest
from conftest import wait_until
from standalone import START_SECONDS, Standalone, command_of, kill

pytestmark = [pytest.mark.chaos, pytest.mark.timeout(600)]
NODE = "tfos_ml.worker.main"
SPOOL_WINDOW_ROWS = 50_000  # of 8 kB: more than a node holds before its train function reads


@pytest.fixture(scope="module")
def cluster(tmp_path_factory):
    with Standalone(tmp_path_factory.mktemp("cluster")) as cluster:
        yield cluster


@pytest.fixture(scope="module")
def driver(cluster):
    return cluster.driver(
        spark_shuffle_io_maxRetries=0, spark_reducer_maxReqsInFlight=1, spark_reducer_maxSizeInFlight="1b"
    )


@pytest.fixture(scope="module")
def undisturbed(driver, tmp_path_factory):
    outcome = driver.run("keras", 3 * START_SECONDS, directory=str(tmp_path_factory.mktemp("undisturbed")))
    assert outcome.result, outcome
    return outcome.result


def kill_executor(worker) -> None:
    (executor,) = worker.executors()
    kill(executor)


def has_node(worker) -> bool:
    return any(NODE in command_of(process) for process in worker.pythons())


@pytest.mark.parametrize("phase", ["feed", "epoch", "end"])
def test_an_executor_killed_in_any_phase_is_restarted_to_the_same_history(
    cluster, driver, undisturbed, tmp_path, phase
):
    driver.begin("keras", directory=str(tmp_path), phase=phase, maxRestarts=1)
    if phase == "feed":
        assert wait_until(lambda: any(map(has_node, cluster.workers)), START_SECONDS)
    else:
        assert wait_until(lambda: list(tmp_path.glob("paused-*.json")), START_SECONDS), driver.log()[-3000:]
    kill_executor(next(filter(has_node, cluster.workers)))
    (tmp_path / "go").touch()
    outcome = driver.outcome(3 * START_SECONDS)
    assert outcome.result == undisturbed, outcome
    assert (tmp_path / "model" / "saved_model.pb").exists()
    assert not list(tmp_path.glob("model.partial*"))


def test_an_executor_that_held_input_and_was_killed_while_a_node_was_fed_loses_no_row(cluster, driver, tmp_path):
    fit = {"train": "count_rows_when_told", "directory": str(tmp_path), "exportDir": str(tmp_path / "model")}
    driver.begin("fit", **fit, count=SPOOL_WINDOW_ROWS, partitions=40, wide=True, clusterSize=1, maxRestarts=1)
    running = tmp_path / "running-worker-0-0.json"
    assert wait_until(running.exists, START_SECONDS), driver.log()[-3000:]
    spool_is_full(json.loads(running.read_text())["supervisor"])
    of_node = cluster.worker_of(json.loads(running.read_text())["pid"])
    kill_executor(next(worker for worker in cluster.workers if worker is not of_node))
    (tmp_path / "go").touch()
    outcome = driver.outcome(3 * START_SECONDS)
    assert outcome.result["rows"] == SPOOL_WINDOW_ROWS, outcome
    assert json.loads((tmp_path / "model" / "content.json").read_text()) == SPOOL_WINDOW_ROWS


def spool_is_full(supervisor: int) -> None:
    """Wait until a node has as many rows as it takes before its train function reads."""

    def size() -> int:
        files = [f for d in Path("/dev/shm").glob(f"tfos_ml-spool-*-{supervisor}-*") for f in d.glob("*.arrow")]
        return sum(f.stat().st_size for f in files)

    assert wait_until(lambda: size() >= 256 << 20, START_SECONDS), size()


def test_a_process_that_stands_still_in_a_collective_is_the_one_that_is_named(driver, tmp_path):
    driver.begin("fit", train="reduce_for_ever", directory=str(tmp_path))
    assert wait_until(lambda: len(list(tmp_path.glob("running-*.json"))) == 2, START_SECONDS), driver.log()[-3000:]
    stopped = json.loads((tmp_path / "running-worker-1-0.json").read_text())["pid"]
    os.kill(stopped, signal.SIGSTOP)
    began = time.monotonic()
    outcome = driver.outcome(240)
    assert outcome.node == "worker:1", outcome
    assert time.monotonic() - began < 180
