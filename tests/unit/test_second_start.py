"""A node whose task Spark starts again says why Spark does: its process died, or what it was reading was lost."""

import pytest
from node_tasks import make_task

from tfos_ml import errors
from tfos_ml.agent.placement import GatherPlacement, TaskInfo
from tfos_ml.agent.supervisor import Supervisor, supervise
from tfos_ml.driver.control_server import ControlServer
from tfos_ml.protocol.addresses import Endpoint
from tfos_ml.protocol.failure import NodeFailure, find_failure
from tfos_ml.protocol.template import make_template


@pytest.fixture
def server():
    server = ControlServer(Endpoint("127.0.0.1", "127.0.0.1"), make_template(1))
    yield server
    server.close()


def start_again(server, attempt):
    """A second task attempt of a node of a plain job, in the given attempt of its stage."""
    task = make_task(control=server.address, barrier=False)
    assert GatherPlacement(TaskInfo(0, "127.0.0.1", 1, {}, task=7), server.address, 1).is_first()
    return Supervisor(
        task, GatherPlacement(TaskInfo(0, "127.0.0.1", 1, {}, task=8, attempt=attempt), server.address, 1)
    )


def test_a_second_start_tells_its_reason_and_ends_without_another_try(server):
    assert list(supervise(start_again(server, 1), ())) == []
    told = find_failure(server.nodes.failure())
    assert told.error is errors.NodeLostError
    assert "executor died" in told.message


def test_a_second_start_after_input_was_lost_fails_since_spark_knows_the_cause(server):
    with pytest.raises(NodeFailure, match="could not read all rows") as caught:
        list(supervise(start_again(server, 0), ()))
    assert caught.value.failure.error is errors.InputLostError
    assert (
        find_failure(server.nodes.failure()).error is errors.InputLostError
    )  # whatever comes later: this was told first
