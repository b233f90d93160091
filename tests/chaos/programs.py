"""The driver: ``python programs.py <settings>``. Runs what users write, one program after the other, in one session.

One JSON object a line on stdin begins a program, or has something done meanwhile; one on stdout says how it ended.
"""

from __future__ import annotations

import json
import os
import queue
import re
import sys
import threading
import time
from collections.abc import Callable
from functools import partial
from pathlib import Path
from typing import Any

import nodes
import planted
import resumed_model
from pyspark.java_gateway import ensure_callback_server_started
from pyspark.sql import DataFrame, SparkSession
from trained_rows import note_steps

from tfos_ml import InputMode, KerasEstimator, TFCluster, TFEstimator, TFModel, TFParallel, errors, tfrecord
from tfos_ml.protocol.node_task import NodeTask
from tfos_ml.stages import cluster_estimator
from tfos_ml.tfcluster import start as cluster_start

SILENCE = 6.0  # seconds after which a process that gives no sign of life counts as stuck; users have 120


def numbers(spark: SparkSession, run: dict[str, Any], args: dict[str, Any], column: str = "features") -> DataFrame:
    """The ids of the rows, which come in two parts if something is to happen meanwhile."""
    df = spark.range(0, run["rows"], 1, run["partitions"]).withColumnRenamed("id", column)
    if any("-input-" in hold for hold in args["holds"]) or any(f["phase"] == "input" for f in run["faults"]):
        df = df.mapInArrow(nodes.hold_input(args), df.schema)
    return df


def fit(spark: SparkSession, run: dict[str, Any], args: dict[str, Any], train: Callable[..., Any]) -> dict[str, Any]:
    """Fit a train function of one's own."""
    estimator = TFEstimator(
        trainFn=train,
        tfArgs=args,
        clusterSize=run["nodes"],
        epochs=run["epochs"],
        maxRestarts=run["restarts"],
        batchSize=7,
        exportDir=f"{args['directory']}/disk/published/model",
        verbose=0,
    )
    summary = estimator.fit(numbers(spark, run, args)).summary
    return {"rows": summary.rows, "run_ids": sorted({report["run_id"] for report in summary.nodes})}


def network(args: dict[str, Any]) -> Any:
    if "TF_CONFIG" in os.environ:
        if args["planted"]:
            planted.plant(args["planted"])
        nodes.moment_of_keras(args, "build")
    return resumed_model.network(notes=args["directory"])


def fit_keras(spark: SparkSession, run: dict[str, Any], args: dict[str, Any]) -> dict[str, Any]:
    params: dict[str, Any] = {}
    if "modelDir" in run["options"]:
        params.update(modelDir=args["state"], checkpointSteps=3)
    if "elastic" in run["options"]:
        params.update(minClusterSize=1)
    if "cacheDir" in run["options"]:
        params.update(cacheDir=f"{args['directory']}/disk/cache")
    estimator = KerasEstimator(
        model=partial(network, args),
        callbacks=[note_steps(), *resumed_model.stateful_callbacks(), nodes.moments(args)],
        clusterSize=run["nodes"],
        maxRestarts=run["restarts"],
        exportDir=f"{args['directory']}/disk/published/model",
        validationIndicatorCol="held",
        epochs=resumed_model.EPOCHS,
        batchSize=resumed_model.BATCH,
        shuffle=False,
        verbose=0,
        **params,
    )
    summary = estimator.fit(spark.read.parquet(args["rows"]).coalesce(1)).summary
    return {"rows": summary.rows + summary.validationRows, "history": summary.history}


def elements(spark: SparkSession, run: dict[str, Any], args: dict[str, Any]) -> Any:
    return spark.sparkContext.range(run["rows"], numSlices=run["partitions"]).mapPartitions(nodes.hold_elements(args))


def start(spark: SparkSession, run: dict[str, Any], args: dict[str, Any], function: Callable[..., Any]) -> TFCluster:
    """A cluster that is fed."""
    return TFCluster.run(
        spark.sparkContext,
        function,
        {**args, "exports": False},
        run["nodes"],
        input_mode=InputMode.SPARK,
        reservation_timeout=60,
    )


def feed(spark: SparkSession, run: dict[str, Any], args: dict[str, Any]) -> dict[str, Any]:
    with start(spark, run, args, nodes.read_feed) as cluster:
        cluster.train(elements(spark, run, args), num_epochs=run["epochs"], feed_timeout=60)
    return {"rows": cluster.summary["rows"], "run_ids": sorted({node["run_id"] for node in cluster.summary["nodes"]})}


def infer(spark: SparkSession, run: dict[str, Any], args: dict[str, Any]) -> dict[str, Any]:
    with start(spark, run, args, nodes.answer) as cluster:
        try:
            return {"answers": cluster.inference(elements(spark, run, args), feed_timeout=60).collect()}
        except Exception:  # Spark's; the cluster knows why
            cluster.shutdown()
            raise


def parallel(spark: SparkSession, run: dict[str, Any], args: dict[str, Any]) -> dict[str, Any]:
    return {"answers": TFParallel.run(spark.sparkContext, nodes.instance, args, run["nodes"], verbose=0)}


def stream(spark: SparkSession, run: dict[str, Any], args: dict[str, Any]) -> dict[str, Any]:
    """Feed a cluster by a stream, a file at a time."""
    files = f"{args['directory']}/input"
    spark.range(0, run["rows"], 1, 3).write.parquet(files)
    df = spark.readStream.schema("id long").option("maxFilesPerTrigger", "1").parquet(files)
    held = df.mapInArrow(nodes.hold_input(args), "id long")
    with start(spark, run, args, nodes.read_feed) as cluster:
        writing = held.writeStream.option("checkpointLocation", f"{args['directory']}/checkpoint")
        cluster.shutdown(writing.trigger(availableNow=True).foreachBatch(cluster.feed_batch).start())
    return {"rows": cluster.summary["rows"], "run_ids": sorted({node["run_id"] for node in cluster.summary["nodes"]})}


def score(spark: SparkSession, run: dict[str, Any], args: dict[str, Any]) -> dict[str, Any]:
    df = numbers(spark, run, args).selectExpr("features as id", "cast(features as float) as features")
    scored = TFModel(exportDir=args["model"]).transform(df)
    return {"answers": [[row.id, row.prediction] for row in scored.collect()]}


def score_stream(spark: SparkSession, run: dict[str, Any], args: dict[str, Any]) -> dict[str, Any]:
    """Transform a stream into files; who finds that it has failed starts it again, once."""
    files, scored = f"{args['directory']}/input", f"{args['directory']}/scored"
    spark.range(0, run["rows"], 1, 3).selectExpr("id", "cast(id as float) as features").write.parquet(files)
    for last in (False, True):
        df = spark.readStream.schema("id long, features float").option("maxFilesPerTrigger", "1").parquet(files)
        held = df.mapInArrow(nodes.hold_input(args), df.schema)
        query = (
            TFModel(exportDir=args["model"])
            .transform(held)
            .writeStream.trigger(availableNow=True)
            .option("checkpointLocation", f"{args['directory']}/checkpoint")
            .format("parquet")
            .start(scored)
        )
        try:
            query.awaitTermination()
            break
        except Exception:
            if last:
                raise
    return {"answers": [[row.id, row.prediction] for row in spark.read.parquet(scored).orderBy("id").collect()]}


def records(spark: SparkSession, run: dict[str, Any], args: dict[str, Any]) -> dict[str, Any]:
    path = f"{args['directory']}/disk/records"
    tfrecord.save_as_tfrecords(numbers(spark, run, args, "id"), path)
    return {"answers": sorted(row.id for row in tfrecord.load_tfrecords(spark, path, schema="id long").collect())}


PROGRAMS: dict[str, Callable[..., dict[str, Any]]] = {
    "fit": partial(fit, train=nodes.read_feed),
    "dataset": partial(fit, train=nodes.read_dataset),
    "keras": fit_keras,
    "feed": feed,
    "infer": infer,
    "parallel": parallel,
    "stream": stream,
    "score": score,
    "score stream": score_stream,
    "records": records,
}


def told(error: BaseException) -> dict[str, Any]:
    """An error, as the checker judges it."""
    return {
        "error": type(error).__name__,
        "typed": isinstance(error, errors.TfosMlError),
        "message": str(error),
        "node": f"{error.role}:{error.index}" if isinstance(error, errors.NodeError) and error.role else None,
    }


def run_one(spark: SparkSession, run: dict[str, Any], args: dict[str, Any]) -> dict[str, Any]:
    """Run a program to its end; how it ended, and what runs now."""
    try:
        outcome: dict[str, Any] = {"result": PROGRAMS[run["program"]](spark, run, args)}
    except BaseException as error:
        outcome = told(error)
    outcome["ended"] = time.monotonic()
    return outcome


def active_jobs(spark: SparkSession) -> list[int]:
    """Spark's jobs that run; none that a client of Connect knows of."""
    context = getattr(spark, "_sc", None)
    return list(context.statusTracker().getActiveJobsIds()) if context else []


def look(spark: SparkSession) -> dict[str, Any]:
    """What this process has; without threads of py4j's and of PySpark's client, which have no names and stay."""
    names = [re.sub(r"\d+", "N", thread.name) for thread in threading.enumerate()]
    return {"threads": sorted({*names} - {"Thread-N (run)", "ThreadPoolExecutor-N_N"}), "jobs": active_jobs(spark)}


def cancel(spark: SparkSession) -> None:
    """What a user does in Spark's UI, or with a client of Connect."""
    if getattr(spark, "_sc", None) is None:
        spark.interruptAll()
    else:
        spark.sparkContext.cancelAllJobs()


def main(settings: dict[str, str], answers: Any) -> None:
    for module in (cluster_estimator, cluster_start):
        module.NodeTask = partial(NodeTask, heartbeat_timeout=SILENCE)  # type: ignore[misc, assignment]
    remote = settings.pop("spark.remote", None)
    builder = SparkSession.builder.remote(remote) if remote else SparkSession.builder.appName("tfos_ml chaos")
    spark = builder.config(map=settings).getOrCreate()
    if getattr(spark, "_sc", None) is not None:
        ensure_callback_server_started(spark.sparkContext._gateway)  # of streams; Spark keeps it from its first use on
    requests: queue.SimpleQueue[dict[str, Any] | None] = queue.SimpleQueue()

    def read() -> None:
        for line in sys.stdin:
            request = json.loads(line)
            if request["do"] == "cancel":
                cancel(spark)
            else:
                requests.put(request)
        requests.put(None)

    threading.Thread(target=read, name="requests", daemon=True).start()
    print(json.dumps({"pid": os.getpid()}), file=answers, flush=True)
    while True:
        try:
            request = requests.get()
            if request is None:
                return
            run = request["do"] == "run"
            answer = run_one(spark, request["run"], request["args"]) if run else look(spark)
            print(json.dumps(answer), file=answers, flush=True)
        except KeyboardInterrupt:  # which came late
            continue


if __name__ == "__main__":
    import faulthandler
    import signal

    faulthandler.register(signal.SIGUSR1, all_threads=True)
    signal.signal(signal.SIGINT, signal.default_int_handler)  # which a shell's job in the background would not have
    output = os.fdopen(os.dup(1), "w")
    os.dup2(2, 1)  # whatever else prints goes to the log
    sys.path.insert(0, str(Path(__file__).parent))
    main(json.loads(sys.argv[1]), output)
