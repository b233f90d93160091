"""A driver that others reach at an address it does not have, on three ports, as in a container or behind NAT."""

from __future__ import annotations

import contextlib
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path

import namespaces
import pytest
from conftest import wait_until
from standalone import START_SECONDS, Driver, Standalone

DRIVER_PORT, BLOCK_PORT, OUR_PORT = 24300, 24301, 24302
NODE_PORTS = range(24400, 24410)
PRIVATE = "10.78.0.2"


@pytest.fixture(scope="module")
def network():
    reason = namespaces.why_not()
    if reason:
        pytest.skip(reason)
    with namespaces.Network("mgab") as network:
        network.add_behind("d", gateway="g", address=PRIVATE)
        yield network


@pytest.fixture
def cluster(network, tmp_path_factory):
    directory = tmp_path_factory.mktemp("cluster")
    with Standalone(directory, workers=0, address=network.addresses["m"], prefix=network.within("m")) as cluster:
        for host in "ab":
            cluster.start_worker(network.addresses[host], prefix=network.within(host))
        cluster.wait_for_workers()
        yield cluster


@contextlib.contextmanager
def forwarding(network, directory: Path, *ports: int) -> Iterator[Path]:
    """Hand connections to ports of the gateway on to the driver; where their ports are told."""
    log = directory / "forwarder.txt"
    script = str(Path(__file__).parent / "forwarder.py")
    command = [*network.within("g"), sys.executable, script, network.addresses["g"], PRIVATE, *map(str, ports)]
    with log.open("w") as output, subprocess.Popen(command, stdout=output) as process:
        try:
            assert wait_until(lambda: "ready" in log.read_text(), START_SECONDS)
            yield log
        finally:
            process.kill()


@pytest.fixture
def driver(network, cluster):
    """The driver behind the gateway; Spark's own settings for that, and ours."""
    settings = {
        **cluster.settings(),
        "spark.driver.host": network.addresses["g"],
        "spark.driver.bindAddress": PRIVATE,
        "spark.driver.port": str(DRIVER_PORT),
        "spark.driver.blockManager.port": str(BLOCK_PORT),
        "spark.port.maxRetries": "0",
        "spark.tfos_ml.port": str(OUR_PORT),
        "spark.tfos_ml.nodePorts": f"{NODE_PORTS[0]}-{NODE_PORTS[-1]}",
        "spark.task.maxFailures": "1",
    }
    driver = Driver(cluster, network.within("d"), settings)
    yield driver
    driver.close()


@pytest.mark.chaos
def test_fit_and_cluster_of_a_driver_behind_nat(network, cluster, driver, tmp_path):
    with forwarding(network, tmp_path, DRIVER_PORT, BLOCK_PORT, OUR_PORT) as log:
        outcome = driver.run("feed", timeout=240, directory=str(tmp_path))
        assert outcome.result is not None, f"{outcome}\n{cluster.logs()}"
        assert outcome.result["rows"] == 100
        assert outcome.result["location"] == f"grpc+tls://{network.addresses['g']}:{OUR_PORT}"
        assert {node["host"] for node in outcome.result["nodes"]} <= {network.addresses[host] for host in "ab"}
        assert {node["port"] for node in outcome.result["nodes"]} <= set(NODE_PORTS)
        assert str(OUR_PORT) in log.read_text().split()

        outcome = driver.run("keras", timeout=240, directory=str(tmp_path))  # whose workers connect to each other
        assert outcome.result is not None, f"{outcome}\n{cluster.logs()}"
        assert outcome.result["rows"] == 400


@pytest.mark.chaos
def test_a_port_that_is_not_let_through_is_named(network, cluster, driver, tmp_path):
    with forwarding(network, tmp_path, DRIVER_PORT, BLOCK_PORT):
        outcome = driver.run("feed", timeout=240, directory=str(tmp_path))
        assert outcome.error == "ClusterConfigError", f"{outcome}\n{cluster.logs()}"
        assert f"cannot reach the driver at spark.driver.host={network.addresses['g']}, on" in outcome.message
        assert "spark.tfos_ml.port" in outcome.message
        assert f"({OUR_PORT} now)" in outcome.message
