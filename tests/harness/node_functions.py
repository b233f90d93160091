"""Train functions of the tests without Spark; they need no TensorFlow."""

from __future__ import annotations

import atexit
import ctypes
import os
import resource
import signal
import sys
import time
from argparse import Namespace
from pathlib import Path
from typing import Any

from supervisors import supervisor_of

DEADLINE = 60.0


def die(args: Any, ctx: Any) -> None:
    """End the process by an exit code or a signal, after some last words."""
    print("last words", flush=True)
    if args.how == "sys.exit":
        raise SystemExit(args.number)
    if args.how == "library":
        exit_of_library()
    if args.how == "C exit":
        ctypes.CDLL(None).exit(args.number)
    if args.how == "handler":
        signal.signal(signal.SIGTERM, lambda *_: sys.exit(args.number))
        os.kill(os.getpid(), signal.SIGTERM)
    if args.how == "signal":
        os.kill(os.getpid(), args.number)
        signal.pause()
    os._exit(args.number)


def exit_of_library() -> None:
    """End the program, as command lines do."""
    sys.exit(0)


def leave(args: Any, ctx: Any) -> None:
    """Read all rows, and end as a program does."""
    read(args, ctx)
    if args.call == "exit(0)":
        exit(0)
    sys.exit()


def linger(args: Any, ctx: Any) -> None:
    """Read all rows and return or fail, in a process that does not end."""
    read(args, ctx)
    atexit.register(time.sleep, 1000)
    if args.how == "raise":
        raise ValueError("the user's own mistake")


def starve_at_first(args: Any, ctx: Any) -> None:
    """Let the supervisor of one node open no more files in the first attempt; then read all rows."""
    if ctx.task_index == 1 and ctx.restart_count == 0:
        resource.prlimit(supervisor_of(ctx), resource.RLIMIT_NOFILE, (3, 3))
    read(args, ctx)


def exit_at_first(args: Any, ctx: Any) -> None:
    """Node 1 exits amid its rows in the first attempt, while the other reads."""
    if ctx.restart_count == 0 and ctx.task_index == 1:
        ctx.get_data_feed().next_batch(10)
        die(Namespace(how=args.how, number=0), ctx)
    read(args, ctx)


def read(args: Any, ctx: Any) -> None:
    """Read all rows, and report how many there were, their sum and whether they came in order."""
    feed, rows = ctx.get_data_feed(), []
    while not feed.should_stop():
        rows += [row[0] if isinstance(row, tuple) else row for row in feed.next_batch(500)]
    firsts = [int(row[0]) if hasattr(row, "__len__") else row for row in rows]
    ctx.report({"rows": len(firsts), "sum": sum(firsts), "in_order": firsts == sorted(firsts)})


def report_and_fail(args: Any, ctx: Any) -> None:
    """Report three epochs, and fail at once."""
    for epoch in range(3):
        ctx.report({"loss": 1 / (1 + epoch)}, epoch=epoch)
    raise ValueError("the user's own mistake")


def fail_on_one(args: Any, ctx: Any) -> None:
    """Worker 1 fails while the first waits for it in a barrier, and the last is busy."""
    if ctx.task_index == 1:
        raise ZeroDivisionError("the user's own mistake")
    if ctx.task_index == 2:
        time.sleep(1000)
    ctx.barrier("never reached by all")


def mismatched_barriers(args: Any, ctx: Any) -> None:
    """Node 0 waits in a barrier when the other has returned."""
    ctx.barrier("all")
    if ctx.task_index == 0:
        ctx.barrier("only one")


def never_read(args: Any, ctx: Any) -> None:
    """Neither read nor end."""
    time.sleep(1000)


def watch_spool(args: Any, ctx: Any) -> None:
    """Read all rows, and report the most bytes that waited in files."""
    from tfos_ml.data import spool

    feed, most, rows = ctx.get_data_feed(), 0, 0
    own = f"tfos_ml-spool-*-{supervisor_of(ctx)}-*"
    directories = [path for root in (spool.SHARED_MEMORY, spool.disk_root()) for path in root.glob(own)]
    assert directories
    while not feed.should_stop():
        rows += len(feed.next_batch(500))
        sizes = []
        for file in (file for directory in directories for file in directory.glob("*.arrow")):
            try:
                sizes.append(file.stat().st_size)
            except FileNotFoundError:  # released meanwhile
                pass
        most = max(most, sum(sizes))
    ctx.report({"most": most, "rows": rows})


def stop_early(args: Any, ctx: Any) -> None:
    """Read a little, and want no more: say so, or merely return."""
    feed = ctx.get_data_feed()
    feed.next_batch(10)
    if args.terminates:
        feed.terminate()
        assert feed.should_stop()


# Of clusters


def wait_for_end(ctx: Any) -> None:
    """Wait until the driver says that training has ended."""
    deadline = time.monotonic() + DEADLINE
    while not ctx.should_stop():
        assert time.monotonic() < deadline
        time.sleep(0.05)


def work(args: Any, ctx: Any) -> None:
    """Read what is fed, then work for some seconds, whatever happens; and tell that it was done."""
    if args.get("fed"):
        feed = ctx.get_data_feed()
        while not feed.should_stop():
            feed.next_batch(100)
    time.sleep(args.get(ctx.job_name, 0))
    ctx.report({"done": time.time()})


def return_or_work(args: Any, ctx: Any) -> None:
    """The worker works for ever; the chief returns, and tells."""
    if ctx.job_name == "worker":
        time.sleep(600)
    Path(args["told"]).touch()


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
