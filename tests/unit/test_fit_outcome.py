"""What is said of workers that trained without each other, from what the nodes report."""

from __future__ import annotations

from types import SimpleNamespace

import pytest
from elsewhere import run_elsewhere

from tfos_ml.errors import IndependentWorkersWarning
from tfos_ml.protocol.cluster_template import make_template
from tfos_ml.stages.fit_outcome import independence, warn_of_outcome


def reports(*labels, reads="dataset", coordinates=(), rows=30):
    return [{"label": label, "rows": rows, "reads": reads, "coordinates": list(coordinates)} for label in labels]


TWO = make_template(2)


def test_workers_with_rows_of_their_own_and_nothing_in_common():
    found = [{**report, "skipped_rows": 0} for report in reports("worker:0", "worker:1")]
    with pytest.warns(IndependentWorkersWarning, match="worker:0 alone, which was trained on 30 of 60 rows"):
        warn_of_outcome(SimpleNamespace(reports=found, model="a model"), TWO)


OTHERS = [
    (reports("worker:0", "worker:1", coordinates=["collective operations"]), TWO),
    (reports("worker:0", "worker:1", reads=""), TWO),  # a model that was not trained here
    (reports("ps:0", "chief:0", "worker:0"), make_template(3, num_ps=1, master_node="chief")),
    ([*reports("worker:0"), *reports("worker:1", rows=0)], TWO),  # one that has seen all there is
    ([{"label": "worker:0", "rows": 30}, *reports("worker:1")], TWO),  # one that told nothing
]


def test_nothing_is_said_of_others():
    assert [found for found, template in OTHERS if independence(found, template) is not None] == []


PROGRAM = """
import socket
import tensorflow as tf
from tfos_ml.worker.outcome import coordination

tf.distribute.MirroredStrategy(["CPU:0"])  # within this process
assert coordination() == []
with socket.socket() as one:
    one.bind(("127.0.0.1", 0))
    address = f"127.0.0.1:{one.getsockname()[1]}"
from tensorflow.python.eager import context

context._reset_context()
cluster = tf.train.ClusterSpec({"worker": [address]}).as_cluster_def()
server = tf.train.ServerDef(cluster=cluster, job_name="worker", task_index=0, protocol="grpc")
context.context().enable_collective_ops(server)  # as strategies of several workers do, which would wait for the others
assert coordination() == ["collective operations"]
"""


@pytest.mark.slow
def test_what_tensorflow_was_set_up_for_is_found():
    run_elsewhere(PROGRAM)
