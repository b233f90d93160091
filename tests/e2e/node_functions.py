"""Train functions of clusters whose nodes end at different times; they need no TensorFlow."""

from __future__ import annotations

import time
from typing import Any

DEADLINE = 60.0


def wait_for_end(ctx: Any) -> None:
    """Wait until the driver says that training has ended."""
    deadline = time.monotonic() + DEADLINE
    while not ctx.should_stop():
        assert time.monotonic() < deadline
        time.sleep(0.05)


def work(args: Any, ctx: Any) -> None:
    """Work for some seconds, whatever happens; and tell that it was done."""
    time.sleep(args.get(ctx.job_name, 0))
    ctx.report({"done": time.time()})


def work_or_serve(args: Any, ctx: Any) -> None:
    """The worker works on after the chief; the server tells when it may end."""
    if ctx.job_name == "ps":
        ctx.wait()
        ctx.report({"ended": time.time()})
        return
    if ctx.job_name == "worker":
        wait_for_end(ctx)
    work(args, ctx)


def never_look(args: Any, ctx: Any) -> None:
    """An evaluator that never looks whether training has ended."""
    while ctx.job_name == "evaluator":
        time.sleep(0.1)


def evaluate_once_more(args: Any, ctx: Any) -> None:
    """An evaluator whose last look takes a while."""
    if ctx.job_name == "evaluator":
        wait_for_end(ctx)
        work(args, ctx)
