"""What is said of workers that trained without each other, from what the nodes report."""

from __future__ import annotations

from tfos_ml.protocol.cluster_template import make_template
from tfos_ml.stages.fit_outcome import independence


def reports(*labels, reads="dataset", coordinates=(), rows=30):
    return [{"label": label, "rows": rows, "reads": reads, "coordinates": list(coordinates)} for label in labels]


TWO = make_template(2)


def test_workers_with_rows_of_their_own_and_nothing_in_common():
    assert "worker:0 alone, which was trained on 30 of 60 rows" in independence(reports("worker:0", "worker:1"), TWO)


OTHERS = [
    (reports("worker:0", "worker:1", coordinates=["collective operations"]), TWO),
    (reports("worker:0", "worker:1", reads=""), TWO),  # a model that was not trained here
    (reports("ps:0", "chief:0", "worker:0"), make_template(3, num_ps=1, master_node="chief")),
    ([*reports("worker:0"), *reports("worker:1", rows=0)], TWO),  # one that has seen all there is
    ([{"label": "worker:0", "rows": 30}, *reports("worker:1")], TWO),  # one that told nothing
]


def test_nothing_is_said_of_others():
    assert [found for found, template in OTHERS if independence(found, template) is not None] == []
