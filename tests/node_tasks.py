"""Tasks and first messages of nodes that do not come to run a program."""

from __future__ import annotations

from dataclasses import replace
from typing import Any

from msgspec import structs

from tfos_ml.data.schema import FeedSchema
from tfos_ml.protocol.artifacts import Artifact
from tfos_ml.protocol.cluster_template import make_template
from tfos_ml.protocol.messages import Start
from tfos_ml.protocol.node_task import NodeSettings, NodeTask


def make_task(**changes: Any) -> NodeTask:
    """The task of the only node of a cluster, without rows, program and driver, but for `changes`."""
    task = NodeTask(
        run_id="run",
        template=make_template(1),
        schema=FeedSchema(()),
        payload=Artifact("program", b"no program"),
        settings=NodeSettings(feed_timeout=10.0),
        environment={},
        reservation_timeout=10.0,
        export_dir=None,
        control=None,
    )
    return replace(task, **changes)


def make_start(**changes: Any) -> Start:
    """The first message to the only worker of a cluster, but for `changes`."""
    start = Start(
        payload="payload",
        directory="/tmp",
        rank=0,
        job_name="worker",
        task_index=0,
        label="worker:0",
        is_chief=True,
        feed_labels=["worker:0"],
        validation_labels=["worker:0"],
        run_id="run",
        cluster_spec={"worker": ["127.0.0.1:1"]},
        tf_config={"cluster": {"worker": ["127.0.0.1:1"]}, "task": {"type": "worker", "index": 0}},
        schema=FeedSchema(()),
        log_dir="/tmp",
        settings=NodeSettings(),
    )
    return structs.replace(start, **changes)
