"""What is said of workers that trained without each other, from what the nodes report."""

from __future__ import annotations

import sys

import pytest
from elsewhere import run_elsewhere

from tfos_ml.protocol.cluster_template import make_template
from tfos_ml.stages.fit_outcome import independence


def reports(*labels, reads="dataset", coordinates=(), rows=30):
    return [{"label": label, "rows": rows, "reads": reads, "coordinates": list(coordinates)} for label in labels]


TWO = make_template(2)


def test_workers_with_rows_of_their_own_and_nothing_in_common():
    assert "worker:0 alone, which was trained on 30 of 60 rows" in independence(reports("worker:0", "worker:1"), TWO)


@pytest.mark.parametrize(
    ("found", "template"),
    [
        (reports("worker:0", "worker:1", coordinates=["collective operations"]), TWO),
        (reports("worker:0", "worker:1", reads=""), TWO),  # a model that was not trained here
        (reports("worker:0"), make_template(1)),
        (reports("ps:0", "chief:0", "worker:0"), make_template(3, num_ps=1, master_node="chief")),
        (reports("evaluator:0", "worker:0"), make_template(2, eval_node=True)),
        ([*reports("worker:0"), *reports("worker:1", rows=0)], TWO),  # one that has seen all there is
        ([{"label": "worker:0", "rows": 30}, *reports("worker:1")], TWO),  # one that told nothing
    ],
    ids=["collectives", "reads nothing", "one", "parameter server", "evaluator", "all rows", "untold"],
)
def test_nothing_is_said_of_others(found, template):
    assert independence(found, template) is None


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


def test_tensorflow_is_not_imported_to_find_it(monkeypatch):
    from tfos_ml.worker.outcome import coordination

    for name in [name for name in sys.modules if name.partition(".")[0] == "tensorflow"]:
        monkeypatch.delitem(sys.modules, name)
    assert coordination() == []
    assert "tensorflow" not in sys.modules
