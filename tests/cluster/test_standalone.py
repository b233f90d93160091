"""Fits on a cluster of separate processes."""

from __future__ import annotations

import json

import pytest
from standalone import Standalone


@pytest.fixture(scope="module")
def cluster(tmp_path_factory):
    with Standalone(tmp_path_factory.mktemp("cluster")) as cluster:
        yield cluster


@pytest.fixture(scope="module")
def driver(cluster):
    return cluster.driver()


def test_fit_on_two_workers_of_one_executor_each(cluster, driver, tmp_path):
    outcome = driver.run("fit", train="count_rows", directory=str(tmp_path), exportDir=str(tmp_path / "model"))
    assert outcome.result == {"rows": 100, "history": {"rows_here": [50.0]}}, outcome
    counts = [json.loads(path.read_text()) for path in tmp_path.glob("read-*.json")]
    assert sum(counts) == 100
    assert json.loads((tmp_path / "model" / "content.json").read_text()) in counts
    assert [len(worker.executors()) for worker in cluster.workers] == [1, 1]
