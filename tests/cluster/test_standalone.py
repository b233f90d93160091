"""Faults on a cluster of separate processes: no row is lost, no result false, and who is healthy is not blamed."""

from __future__ import annotations

import json
from pathlib import Path

import pytest
from conftest import wait_until
from standalone import START_SECONDS, Driver, Outcome, Standalone

PARTITIONS, ROWS = 20, 2000  # of 8 kB each
LEASE = 5
# Blocks of a shuffle one at a time, and in small pieces to Python, so that some rows come before a fetch that fails.
IN_PIECES = {
    "spark_shuffle_io_maxRetries": 0,
    "spark_reducer_maxReqsInFlight": 1,
    "spark_reducer_maxSizeInFlight": "1b",
    "spark_sql_execution_arrow_maxRecordsPerBatch": 10,
}
DYNAMIC = {
    "spark_dynamicAllocation_enabled": "true",
    "spark_dynamicAllocation_shuffleTracking_enabled": "true",
    "spark_dynamicAllocation_minExecutors": 2,
    "spark_dynamicAllocation_maxExecutors": 2,
}
pytestmark = pytest.mark.chaos  # a cluster of processes takes long to start; most other tests have one in one JVM
KINDS = ["barrier", "plain", "connect"]


@pytest.fixture(scope="module")
def cluster(tmp_path_factory):
    with Standalone(tmp_path_factory.mktemp("cluster")) as cluster:
        yield cluster


class Drivers:
    """Drivers by the kind of their jobs, each started when it is first needed."""

    def __init__(self, cluster: Standalone):
        self._cluster = cluster
        self._drivers: dict[str, Driver] = {}

    def __getitem__(self, kind: str) -> Driver:
        if kind not in self._drivers:
            self._drivers[kind] = self._start(kind)
        return self._drivers[kind]

    def _start(self, kind: str) -> Driver:
        conf = {**IN_PIECES, "spark_tfos__ml_leaseTimeout": LEASE, "spark_driver_maxResultSize": "1m"}
        if kind == "plain":
            return self._cluster.driver(**conf, **DYNAMIC)
        if kind == "connect":
            return self._cluster.driver(spark_remote=self._cluster.connect_server(**conf))
        return self._cluster.driver(**conf)


@pytest.fixture(scope="module")
def drivers(cluster):
    return Drivers(cluster)


def contents(directory: Path, pattern: str) -> list:
    return [json.loads(path.read_text()) for path in sorted(directory.glob(pattern))]


# A fetch of the nodes' input fails


def fit_with_a_failed_fetch(cluster: Standalone, driver: Driver, directory: Path, **params) -> Outcome:
    """A fit of which one file of the shuffle is lost before the nodes read it."""
    before = outputs(cluster)
    driver.begin(
        "fit",
        train="count_rows",
        directory=str(directory),
        count=ROWS,
        partitions=PARTITIONS,
        wide=True,
        held=True,
        exportDir=str(directory / "model"),
        **params,
    )
    assert wait_until(lambda: len(outputs(cluster) - before) == PARTITIONS - 1, START_SECONDS), driver.log()[-3000:]
    max(outputs(cluster) - before).unlink()
    (directory / "mapped").touch()
    return driver.outcome()


def outputs(cluster: Standalone) -> set[Path]:
    return {path for worker in cluster.workers for path in worker.map_outputs()}


@pytest.mark.parametrize("kind", KINDS)
def test_input_cut_off_by_a_failed_fetch_is_an_error_and_nothing_is_published(cluster, drivers, tmp_path, kind):
    outcome = fit_with_a_failed_fetch(cluster, drivers[kind], tmp_path, clusterSize=1)
    assert outcome.error == "InputLostError", outcome
    assert not (tmp_path / "model").exists()
    assert not list(tmp_path.glob("read-*"))
    assert len(list(tmp_path.glob("started-*"))) <= 1


@pytest.mark.parametrize("kind", KINDS)
def test_a_fit_whose_fetch_failed_is_restarted_and_trains_all_rows(cluster, drivers, tmp_path, kind):
    outcome = fit_with_a_failed_fetch(cluster, drivers[kind], tmp_path, maxRestarts=1)
    assert outcome.result == {"rows": ROWS, "history": {"rows_here": [ROWS / 2]}}, outcome
    assert contents(tmp_path, "read-worker-?-1.json") == [ROWS // 2, ROWS // 2]
    assert contents(tmp_path, "model/content.json") == [ROWS // 2]
    assert len(list(tmp_path.glob("started-*-0.json"))) <= 2
    assert len(list(tmp_path.glob("started-*-1.json"))) == 2


def test_a_model_larger_than_the_results_that_spark_allows_is_a_typed_error(drivers, tmp_path):
    outcome = drivers["barrier"].run("fit", train="export_two_mib", directory=str(tmp_path))
    assert outcome.typed, outcome
    assert "spark.driver.maxResultSize" in outcome.message
    assert "exportDir" in outcome.message
