"""Train functions of the tests on clusters of processes; without TensorFlow, and in step with the test by files."""

from __future__ import annotations

import json
import os
import time
from pathlib import Path
from typing import Any

from supervisors import supervisor_of

DEADLINE = 120.0


def touch(args: Any, ctx: Any, name: str, content: Any = None) -> None:
    """Tell the test something; the file appears whole."""
    path = Path(args.directory) / f"{name}-{ctx.job_name}-{ctx.task_index}-{ctx.restart_count}.json"
    partial = path.with_suffix(f".{os.getpid()}")
    partial.write_text(json.dumps(content))
    partial.replace(path)


def wait_for_file(path: Path) -> None:
    """Wait until the test has made a file."""
    deadline = time.monotonic() + DEADLINE
    while not path.exists():
        if time.monotonic() > deadline:
            raise TimeoutError(f"the test has not made {path}")
        time.sleep(0.05)


def export_text(ctx: Any, content: Any) -> None:
    """Export a file in place of a SavedModel, for which TensorFlow would have to be loaded."""
    from tfos_ml.protocol.messages import Exported

    directory = Path(ctx._directory) / "saved_model"
    (directory / "assets").mkdir(parents=True)  # as any SavedModel has
    (directory / "content.json").write_text(json.dumps(content))
    ctx._channel.send(Exported(str(directory)))


def count_rows(args: Any, ctx: Any) -> None:
    """Read the feed, tell how many rows there were, and export that."""
    touch(args, ctx, f"started-{os.getpid()}")
    feed, rows = ctx.get_data_feed(), 0
    while not feed.should_stop():
        rows += len(feed.next_batch(1000))
    touch(args, ctx, "read", rows)
    ctx.report({"rows_here": rows}, epoch=0)
    export_text(ctx, rows)


def read_all(args: Any, ctx: Any) -> None:
    """Read the feed."""
    feed = ctx.get_data_feed()
    while not feed.should_stop():
        feed.next_batch(1000)


def wait_until_told(args: Any, ctx: Any) -> None:
    """Tell that it runs, and end once the test has said "go"."""
    touch(args, ctx, "running", {"pid": os.getpid(), "supervisor": supervisor_of(ctx)})
    wait_for_file(Path(args.directory) / "go")


def export_two_mib(args: Any, ctx: Any) -> None:
    """Export two MiB."""
    export_text(ctx, os.urandom(1 << 20).hex())


def wait_at_first(args: Any, ctx: Any) -> None:
    """As :func:`wait_until_told` in the first attempt; the number of the attempt is what is exported."""
    for _ in ctx.dataset():
        pass
    if ctx.restart_count == 0:
        wait_until_told(args, ctx)
    export_text(ctx, ctx.restart_count)


def linear():
    """A Keras model of one weight and one bias."""
    import keras

    model = keras.Sequential([keras.layers.Input((1,)), keras.layers.Dense(1, kernel_initializer="zeros")])
    model.compile(keras.optimizers.Adam(0.1), "mse")
    return model


def slow_steps(directory: str) -> Any:
    """A callback that tells of the first step, and makes steps last long enough for the test to interfere."""
    import keras

    class SlowSteps(keras.callbacks.Callback):
        chief_only = True

        def on_train_batch_end(self, batch: int, logs: Any = None) -> None:
            (Path(directory) / "trains").touch()
            time.sleep(0.3)

    return SlowSteps()
