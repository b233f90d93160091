"""What a program of TensorFlowOnSpark's users sees, as JSON.

``python scenarios.py <package> <directory> [<scenario> ...]``, with ``tensorflowonspark`` in an environment of its
own, and with ``tfos_ml.compat``. There are two executors with a slot each, since TensorFlowOnSpark needs one for each
node, and no others.
"""

from __future__ import annotations

import importlib
import json
import os
import sys
from argparse import Namespace
from pathlib import Path
from types import SimpleNamespace
from typing import Any

MASTER = "local-cluster[2,1,1024]"


def write(directory: str, name: str, value: Any) -> None:
    """What a node has to say, for the driver: the executors share its filesystem."""
    path = Path(directory, name)
    path.with_suffix(".partial").write_text(json.dumps(value))
    path.with_suffix(".partial").rename(path)


def read_all(directory: Path) -> list[Any]:
    """What all nodes have said, sorted."""
    return sorted(json.loads(path.read_text()) for path in directory.iterdir())


def number(args, ctx):
    write(args.directory, f"{ctx.worker_num}-{os.getpid()}", [ctx.worker_num, ctx.num_workers])


def parallel(package, sc, directory):
    """Numbers of independent instances, with and without a barrier."""
    found = {}
    for barrier in (True, False):
        place = directory / str(barrier)
        place.mkdir()
        package.TFParallel.run(sc, number, Namespace(directory=str(place)), 2, use_barrier=barrier)
        found[f"use_barrier={barrier}"] = read_all(place)
    return found


def data_feed(ctx, train_mode):
    """The feed of a node, by the package that the executors run."""
    return importlib.import_module(os.environ["TFOS_PACKAGE"] + ".TFNode").DataFeed(ctx.mgr, train_mode)


def count_rows(args, ctx):
    feed, rows = data_feed(ctx, train_mode=True), 0
    while not feed.should_stop():
        rows += len(feed.next_batch(7))
    write(args.directory, str(ctx.executor_id), rows)


def train(package, sc, directory):
    """Rows that all nodes together have read."""
    found = {}
    for name, epochs in {"once": 1, "thrice": 3, "zero": 0}.items():
        place = directory / name
        place.mkdir()
        cluster = package.TFCluster.run(
            sc, count_rows, Namespace(directory=str(place)), 2, 0, input_mode=package.TFCluster.InputMode.SPARK
        )
        cluster.train(sc.parallelize(range(120), 4), epochs)
        cluster.shutdown(grace_secs=5)
        found[name] = sum(read_all(place))
    return found


def square(args, ctx):
    feed = data_feed(ctx, train_mode=False)
    while not feed.should_stop():
        batch = feed.next_batch(10)
        if len(batch) > 0:
            feed.batch_results([value**2 for value in batch])


def inference(package, sc, directory):
    """Results of rows, in order."""
    cluster = package.TFCluster.run(sc, square, Namespace(), 2, 0, input_mode=package.TFCluster.InputMode.SPARK)
    found = cluster.inference(sc.parallelize(range(50), 5)).collect()
    cluster.shutdown()
    return found


def work_on(args, ctx):
    import time

    ends = time.monotonic() + args.seconds
    while time.monotonic() < ends:
        time.sleep(0.1)
    write(args.directory, f"{ctx.job_name}-{ctx.task_index}", [ctx.job_name, ctx.task_index])


def export_late(args, ctx):
    feed = data_feed(ctx, train_mode=True)
    while not feed.should_stop():
        feed.next_batch(10)
    work_on(args, ctx)


def serve_or_work(args, ctx):
    if ctx.job_name == "ps":
        import threading

        threading.Event().wait()
    work_on(args, ctx)


def shutdown(package, sc, directory):
    """Which map functions had come to their end when ``shutdown`` returned."""
    modes = package.TFCluster.InputMode
    runs = {
        "works on after run": (work_on, modes.TENSORFLOW, 0, {}),
        "works longer than grace_secs": (work_on, modes.TENSORFLOW, 0, {"grace_secs": 1}),
        "without a limit": (work_on, modes.TENSORFLOW, 0, {"timeout": -1}),
        "exports within grace_secs": (export_late, modes.SPARK, 0, {"grace_secs": 12}),
        "ends parameter servers": (serve_or_work, modes.TENSORFLOW, 1, {}),
    }
    found = {}
    for name, (map_fun, mode, num_ps, options) in runs.items():
        place = directory / name.replace(" ", "-")
        place.mkdir()
        args = Namespace(directory=str(place), seconds=6)
        cluster = package.TFCluster.run(sc, map_fun, args, 2, num_ps, input_mode=mode)
        if mode == modes.SPARK:
            cluster.train(sc.parallelize(range(20), 2), 1)
        cluster.shutdown(**options)
        found[name] = read_all(place)
    return found


def show_roles(args, ctx):
    spec = {job: len(tasks) for job, tasks in ctx.cluster_spec.items()}
    role = [ctx.job_name, ctx.task_index, ctx.executor_id, ctx.num_workers, spec]
    write(args.directory, str(ctx.executor_id), role)
    if ctx.job_name == "ps":
        import threading

        threading.Event().wait()


def roles(package, sc, directory):
    """Job name, index, number, ``num_workers`` and the sizes of all jobs, of each node."""
    found = {}
    for name, (num_ps, options) in {
        "workers": (0, {}),
        "chief": (0, {"master_node": "chief"}),
        "ps": (1, {}),
        "ps and master": (1, {"master_node": "master"}),
        "evaluator": (0, {"master_node": "chief", "eval_node": True}),
    }.items():
        place = directory / name.replace(" ", "-")
        place.mkdir()
        args = Namespace(directory=str(place))
        package.TFCluster.run(sc, show_roles, args, 2, num_ps, **options).shutdown()
        found[name] = sorted(json.dumps(role, sort_keys=True) for role in read_all(place))
    return found


SCENARIOS = (parallel, train, inference, shutdown, roles)


def main(name: str, directory: str, *names: str) -> None:
    """Run all scenarios, or those that are named, and write what each has found as JSON."""
    package = SimpleNamespace(
        **{module: importlib.import_module(f"{name}.{module}") for module in ("TFCluster", "TFNode", "TFParallel")}
    )
    from pyspark import SparkConf, SparkContext

    conf = SparkConf().setMaster(MASTER).set("spark.ui.enabled", "false").set("spark.executorEnv.TFOS_PACKAGE", name)
    sc = SparkContext(conf=conf)
    sc.setLogLevel("ERROR")
    found = {}
    for scenario in SCENARIOS if not names else [s for s in SCENARIOS if s.__name__ in names]:
        place = Path(directory, scenario.__name__)
        place.mkdir()
        found[scenario.__name__] = scenario(package, sc, place)
    Path(directory, "found.json").write_text(json.dumps(found, indent=1, sort_keys=True))
    sc.stop()


if __name__ == "__main__":
    main(*sys.argv[1:])
