"""Train functions of the end-to-end tests; they write what they saw into a directory, as JSON."""

from __future__ import annotations

import json
import os
from pathlib import Path
from typing import Any

from supervisors import supervisor_of


def write(args: Any, ctx: Any, content: Any) -> None:
    path = Path(args.directory) / f"{ctx.job_name}-{ctx.task_index}.json"
    part = path.with_suffix(".part")  # tests read the file as soon as it is there
    part.write_text(json.dumps(content))
    part.replace(path)


def record_dataset(args: Any, ctx: Any) -> None:
    """Record the ids of every batch of ``epochs`` passes, in one iteration or several."""
    passes = []
    if args.get("one_iteration"):
        batches = [ids.numpy().tolist() for ids in ctx.dataset(epochs=ctx.epochs)]
        steps = ctx.steps_per_epoch()
        passes = [batches[e * steps : (e + 1) * steps] for e in range(ctx.epochs)]
    else:
        dataset = ctx.dataset()
        passes = [[ids.numpy().tolist() for ids in dataset] for _ in range(ctx.epochs)]
    cardinality = int(ctx.dataset().cardinality())
    write(args, ctx, {"passes": passes, "cardinality": cardinality, "rows": ctx.row_count, "spec": ctx.cluster_spec})


def record_feed(args: Any, ctx: Any) -> None:
    """Record the ids that the data feed gives."""
    feed, ids, sizes = ctx.get_data_feed(), [], []
    while not feed.should_stop():
        batch = feed.next_batch(100)
        sizes.append(len(batch))
        ids.extend(row[0] for row in batch)
    assert feed.next_batch(10) == []
    write(args, ctx, {"ids": ids, "sizes": sizes})


def record_values(args: Any, ctx: Any) -> None:
    """Record values and dtypes of every column."""
    seen: dict[str, Any] = {}
    features, labels = next(iter(ctx.dataset(batch_size=1000, shuffle=False)))
    for name, tensor in {**features, "label": labels}.items():
        seen[name] = {"dtype": tensor.dtype.name, "values": [encode(v) for v in tensor.numpy().tolist()]}
    write(args, ctx, seen)


def encode(value: Any) -> Any:
    if isinstance(value, bytes):
        return {"bytes": value.hex()}
    if isinstance(value, float):
        return {"float": value.hex()}
    return [encode(v) for v in value] if isinstance(value, list) else value


def fail_on_one(args: Any, ctx: Any) -> None:
    """Raise on one node while the first waits in a barrier for it and the last is busy; tell when, if asked."""
    import time

    if f"{ctx.job_name}:{ctx.task_index}" == args.fail_on:
        if "directory" in args:
            (Path(args.directory) / "failed_at").write_text(str(time.time()))
        raise ZeroDivisionError("the user's own mistake")
    if ctx.task_index == 2:
        time.sleep(1000)
    ctx.barrier("never reached by all")


def hang_with_grandchild(args: Any, ctx: Any) -> None:
    """Start a process in a session of its own, tell both pids, and wait for ever."""
    import subprocess
    import time

    grandchild = subprocess.Popen(["sleep", "1000"], start_new_session=True)
    supervisor = supervisor_of(ctx)
    write(args, ctx, {"child": os.getpid(), "grandchild": grandchild.pid, "supervisor": supervisor})
    time.sleep(1000)


def do_nothing(args: Any, ctx: Any) -> None:
    """Return at once."""


def consume(args: Any, ctx: Any) -> None:
    """Read all rows once."""
    feed, rows = ctx.get_data_feed(), 0
    while not feed.should_stop():
        rows += len(feed.next_batch(100))
    write(args, ctx, rows)
