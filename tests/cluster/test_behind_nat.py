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
from standalone import START_SECONDS, Standalone

DRIVER_PORT, BLOCK_PORT, OUR_PORT = 24300, 24301, 24302
NODE_PORTS = range(24400, 24410)
PRIVATE = "10.78.0.2"


@contextlib.contextmanager
def forwarding(network, directory: Path, *ports: int) -> Iterator[Path]:
    """Hand connections to ports of the gateway on to the driver; where their ports are told."""
    log = directory / f"forwarder-{ports[0]}.txt"
    script = str(Path(__file__).parent / "forwarder.py")
    command = [*network.within("g"), sys.executable, script, network.addresses["g"], PRIVATE, *map(str, ports)]
    with log.open("w") as output, subprocess.Popen(command, stdout=output) as process:
        try:
            assert wait_until(lambda: "ready" in log.read_text(), START_SECONDS)
            yield log
        finally:
            process.kill()


@pytest.fixture
def network():
    reason = namespaces.why_not()
    if reason:
        pytest.skip(reason)
    with namespaces.Network("mgab") as network:
        network.add_behind("d", gateway="g", address=PRIVATE)
        yield network


@pytest.fixture
def cluster(network, tmp_path):
    directory = tmp_path / "cluster"
    directory.mkdir()
    with Standalone(directory, workers=0, address=network.addresses["m"], prefix=network.within("m")) as cluster:
        for host in "ab":
            cluster.start_worker(network.addresses[host], prefix=network.within(host))
        cluster.wait_for_workers()
        yield cluster


@pytest.mark.chaos
def test_a_driver_behind_nat_and_a_port_that_is_not_let_through(network, cluster, tmp_path):
    driver = cluster.driver(
        within=network.within("d"),
        spark_driver_host=network.addresses["g"],
        spark_driver_bindAddress=PRIVATE,
        spark_driver_port=DRIVER_PORT,
        spark_driver_blockManager_port=BLOCK_PORT,
        spark_port_maxRetries=0,
        spark_tfos__ml_port=OUR_PORT,
        spark_tfos__ml_nodePorts=f"{NODE_PORTS[0]}-{NODE_PORTS[-1]}",
        spark_task_maxFailures=1,
    )
    with forwarding(network, tmp_path, DRIVER_PORT, BLOCK_PORT):
        outcome = driver.run("feed")
        assert outcome["error"] == "ClusterConfigError", f"{outcome}\n{cluster.logs()}"
        assert f"cannot reach the driver at spark.driver.host={network.addresses['g']}, on" in outcome["message"]
        assert "spark.tfos_ml.port" in outcome["message"]
        assert f"({OUR_PORT} now)" in outcome["message"]

        with forwarding(network, tmp_path, OUR_PORT) as log:
            outcome = driver.run("feed")
            assert "result" in outcome, f"{outcome}\n{cluster.logs()}"
            assert outcome["result"]["rows"] == 100
            assert outcome["result"]["location"] == f"grpc+tls://{network.addresses['g']}:{OUR_PORT}"
            assert {node["host"] for node in outcome["result"]["nodes"]} <= {network.addresses[host] for host in "ab"}
            assert {node["port"] for node in outcome["result"]["nodes"]} <= set(NODE_PORTS)
            assert str(OUR_PORT) in log.read_text().split()

            outcome = driver.run("keras", directory=str(tmp_path))  # whose workers connect to each other
            assert "result" in outcome, f"{outcome}\n{cluster.logs()}"
            assert outcome["result"]["rows"] == 400
