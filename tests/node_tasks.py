"""Orders for nodes that do not come to run a program."""

from __future__ import annotations

from dataclasses import replace
from typing import Any

from tfos_ml.data.schema import FeedSchema
from tfos_ml.protocol.artifacts import Artifact
from tfos_ml.protocol.node_task import NodeTask
from tfos_ml.protocol.template import make_template


def make_task(**changes: Any) -> NodeTask:
    """The order of the only node of a cluster, without rows, program and driver, but for `changes`."""
    task = NodeTask(
        run_id="run",
        template=make_template(1),
        schema=FeedSchema(()),
        payload=Artifact("program", b"no program"),
        settings={"tensorboard": False},
        environment={},
        reservation_timeout=10.0,
        feed_timeout=10.0,
        export_dir=None,
        control=None,
    )
    return replace(task, **changes)
