"""The train function of the ledger: writes down each row that it trains on, and stops where it is told to."""

from __future__ import annotations

import os
import time
from pathlib import Path
from typing import Any

from supervisors import supervisor_of

PAUSE_DEADLINE = 150.0
BATCH = 7


def train(args: Any, ctx: Any) -> None:
    """Read all rows ``epochs`` times; the chief exports what says which attempt it was."""
    directory = Path(args.directory)
    (directory / f"{ctx.restart_count}-pid-{ctx.executor_id}").write_text(
        f"{os.getpid()} {supervisor_of(ctx)} {ctx.run_id}"
    )
    ctx.summarize({"run_id": ctx.run_id})
    feed = ctx.get_data_feed()
    pause(args, ctx, "start")
    share, count = args.shares[ctx.executor_id], 0
    with open(directory / f"trained-{ctx.run_id}-{ctx.executor_id}", "a", buffering=1) as ledger:
        while not feed.should_stop():
            rows = feed.next_batch(min(BATCH, share - count % share))
            ledger.write("".join(f"{row[0] if isinstance(row, tuple) else row}\n" for row in rows))
            count += len(rows)
            if count == share:
                pause(args, ctx, "epoch")
    if ctx.is_chief:
        export(args, ctx)
    pause(args, ctx, "export")


def export(args: Any, ctx: Any) -> None:
    """What ``ctx.export_saved_model`` does, without TensorFlow."""
    from tfos_ml.protocol.messages import Exported

    path = Path(ctx._directory) / "saved_model"
    (path / "variables").mkdir(parents=True)
    (path / "saved_model.pb").write_text(ctx.run_id)
    with open(path / "variables" / "variables.data-00000-of-00001", "wb") as file:
        file.truncate(args.model_bytes)
    ctx._channel.send(Exported(str(path)))


def mark(directory: Path, attempt: int, phase: str, rank: int) -> None:
    """Let the test know that a node is in a phase."""
    (directory / f"{attempt}-{phase}-{rank}").touch()


def pause(args: Any, ctx: Any, phase: str) -> None:
    """Where the test is to do something, let it know, and wait until it has."""
    directory = Path(args.directory)
    mark(directory, ctx.restart_count, phase, ctx.executor_id)
    if args.pause == phase and ctx.restart_count == 0:
        deadline = time.monotonic() + PAUSE_DEADLINE
        while not (directory / "go").exists():
            assert time.monotonic() < deadline, "the test does not go on"
            time.sleep(0.005)
