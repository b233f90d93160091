"""Claims of partitions, and results that come twice: nothing is missing or counted twice.

Answers of all kinds that are lost, late or doubled are in ``simulation/``.
"""

from __future__ import annotations

import errno
import os
import tempfile

import pyarrow as pa
import pyarrow.flight as flight
import pytest

from tfos_ml import errors
from tfos_ml.common.local_files import FileWriter
from tfos_ml.driver.control_server import ControlServer
from tfos_ml.driver.partitions import Partitions
from tfos_ml.protocol import results, transport
from tfos_ml.protocol.cluster_template import make_template
from tfos_ml.protocol.control_messages import GRANTED, PENDING, TAKEN, SendResults
from tfos_ml.protocol.failure import find_failure

DEADLINE = 60.0


@pytest.fixture
def claims():
    claims = Partitions()
    claims.open(1, {})
    return claims


def test_the_same_claimant_is_granted_again_and_others_wait_then_are_refused(claims):
    assert [claims.claim(1, 0, who) for who in "aab"] == [GRANTED, GRANTED, PENDING]
    for _ in range(2):
        claims.commit(1, 0, "a", 10)
    assert [claims.claim(1, 0, who) for who in "ab"] == [GRANTED, TAKEN]
    assert (claims.committed(1), claims.is_settled(1)) == ({0: 10}, True)


def test_a_grant_that_is_released_goes_to_the_next_and_never_comes_back(claims):
    claims.claim(1, 0, "a")
    assert not claims.is_settled(1)
    for _ in range(2):
        claims.release(1, 0, "a")
    assert [claims.claim(1, 0, who) for who in "aba"] == [TAKEN, GRANTED, TAKEN]
    with pytest.raises(ValueError, match="not been granted"):
        claims.commit(1, 0, "a", 10)


# Results


@pytest.fixture
def server():
    server = ControlServer("127.0.0.1", make_template(1), lambda: True)
    yield server
    server.close()


def deliver(server, rows, whole=True):
    descriptor = transport.command(SendResults(0))
    with transport.connect(server.address.location, server.address.token) as client:
        options = flight.FlightCallOptions(timeout=DEADLINE)
        writer, reader = client.do_put(descriptor, rows[0].schema, options)
        with writer:
            for row in [*rows, *([results.row(0, results.END, b"")] if whole else [])]:
                writer.write_batch(row)
            writer.done_writing()
            while reader.read() is not None:
                pass


def test_results_that_come_twice_count_once_and_those_that_are_not_whole_never(server):
    parts = [results.row(0, "model", b"abc"), results.row(0, "model", b"def")]
    with pytest.raises(pa.ArrowInvalid, match="ended early"):
        deliver(server, parts, whole=False)
    assert not server.nodes.have_results([0], 0)
    for _ in range(2):
        deliver(server, parts)
    assert server.nodes.have_results([0], 0)
    assert server.nodes.results().models[0].read() == b"abcdef"


def test_a_full_disk_of_the_driver_fails_the_run(server, monkeypatch):
    def write(self, part):
        raise OSError(errno.ENOSPC, os.strerror(errno.ENOSPC))

    monkeypatch.setattr(FileWriter, "write", write)
    with pytest.raises(pa.ArrowException):
        deliver(server, [results.row(0, results.MODEL, b"abc")])
    error = find_failure(server.nodes.failure()).to_error()
    assert isinstance(error, errors.SpoolFullError)
    assert f"On the driver, nothing more can be written to {tempfile.gettempdir()}" in str(error)
