"""A file of a shuffle is lost before the nodes have read it: on a cluster of processes, in all kinds of jobs."""

from __future__ import annotations

from pathlib import Path

import pytest
from conftest import wait_until
from standalone import START_SECONDS, Standalone

PARTITIONS, ROWS = 20, 2000  # of 8 kB each
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


@pytest.fixture(scope="module")
def cluster(tmp_path_factory):
    with Standalone(tmp_path_factory.mktemp("cluster")) as cluster:
        yield cluster


def outputs(cluster: Standalone) -> set[Path]:
    return {path for worker in cluster.workers for path in worker.map_outputs()}


@pytest.mark.chaos
@pytest.mark.parametrize("kind", ["barrier", "plain", "connect"])
def test_a_fit_whose_fetch_failed_is_restarted_and_trains_all_rows(cluster, tmp_path, kind):
    conf = IN_PIECES | (DYNAMIC if kind == "plain" else {})
    driver = cluster.driver(**({"spark_remote": cluster.connect_server(**conf)} if kind == "connect" else conf))
    before = outputs(cluster)
    driver.begin("fit", directory=str(tmp_path), count=ROWS, partitions=PARTITIONS)
    assert wait_until(lambda: len(outputs(cluster) - before) == PARTITIONS - 1, START_SECONDS), driver.logged()
    max(outputs(cluster) - before).unlink()
    (tmp_path / "mapped").touch()
    outcome = driver.outcome()
    assert "result" in outcome, outcome
    first, last = outcome["result"].pop("ended")
    assert first.startswith("InputLostError")
    assert not last
    assert outcome["result"] == {"rows": ROWS, "history": {"rows_here": [ROWS / 2]}}
