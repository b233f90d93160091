"""A host that is cut off from the others in mid-fit, on network namespaces."""

from __future__ import annotations

import json
import time

import namespaces
import pytest
from conftest import wait_until
from standalone import START_SECONDS, Standalone, has_ended

LEASE = 5
SHORT_TIMEOUTS = {
    "spark_tfos__ml_leaseTimeout": LEASE,
    "spark_network_timeout": "8s",
    "spark_network_timeoutInterval": "1s",
    "spark_executor_heartbeatInterval": "1s",
}


@pytest.fixture(scope="module")
def network():
    reason = namespaces.why_not()
    if reason:
        pytest.skip(reason)
    with namespaces.Network("dab") as network:
        yield network


@pytest.fixture
def cluster(network, tmp_path_factory):
    driver = network.addresses["d"]
    directory = tmp_path_factory.mktemp("cluster")
    with Standalone(directory, workers=0, address=driver, prefix=network.within("d")) as cluster:
        for host in "ab":
            cluster.start_worker(network.addresses[host], prefix=network.within(host))
        cluster.wait_for_workers()
        yield cluster


def host_of(network, cluster, pid: int) -> str:
    address = cluster.worker_of(pid).address
    return next(name for name, of_host in network.addresses.items() if of_host == address)


@pytest.mark.chaos
def test_a_node_that_is_cut_off_ends_itself_and_the_restart_stands(network, cluster, tmp_path):
    driver = cluster.driver(**SHORT_TIMEOUTS)
    model = tmp_path / "model"
    params = {"exportDir": str(model), "modelDir": str(tmp_path / "checkpoints"), "maxRestarts": 1}
    driver.begin("fit", train="wait_at_first", directory=str(tmp_path), **params)
    running = [tmp_path / f"running-worker-{rank}-0.json" for rank in range(2)]
    assert wait_until(lambda: all(path.exists() for path in running), START_SECONDS), driver.log()[-3000:]
    chief, other = (json.loads(path.read_text())["pid"] for path in running)
    cut_off = host_of(network, cluster, chief)
    assert cut_off != host_of(network, cluster, other)

    network.cut_off(cut_off)
    began = time.monotonic()
    try:
        assert wait_until(lambda: has_ended(chief), 90), "the node did not end itself"
        alone = time.monotonic() - began
        outcome = driver.outcome()
        assert json.loads((model / "content.json").read_text()) == 1
    finally:
        network.join(cut_off)
    (tmp_path / "go").touch()  # for whoever still waits: it comes too late

    assert alone < LEASE + 10, f"the node went on for {alone:.0f} s"
    assert outcome.result == {"rows": 100, "history": {}}, outcome
    (notice,) = [line for line in driver.log().splitlines() if "Restart 1 of 1" in line]
    assert "worker:0" in notice
    assert "worker:1" not in notice
    assert json.loads((model / "content.json").read_text()) == 1
    assert not list(tmp_path.glob("model.partial*"))
