"""What a person sees on the driver while a fit runs."""

from __future__ import annotations

import re
import sys
import time

import pytest
from pyspark.sql import functions as F

from tfos_ml import KerasEstimator, TFEstimator
from tfos_ml.common.spark_api import session_thread


def report_two_epochs(args, ctx):
    feed = ctx.get_data_feed()
    for epoch in range(2):
        rows = len(feed.next_batch(200 // ctx.num_workers))
        ctx.report({"loss": 0.5 / (epoch + 1), "rows_here": rows}, epoch=epoch)


def fit(spark, verbose, nodes=2):
    df = spark.range(200).withColumnRenamed("id", "features")
    return TFEstimator(trainFn=report_two_epochs, clusterSize=nodes, epochs=2, verbose=verbose).fit(df)


def have_a_terminal(monkeypatch):
    """Has stderr pass for a terminal; called by the test itself, since pytest changes stderr after its fixtures."""
    monkeypatch.setattr(sys.stderr, "isatty", lambda: True)


def test_progress_bar_shows_rows_epoch_and_loss(spark, capsys, monkeypatch):
    have_a_terminal(monkeypatch)
    fit(spark, verbose=1)
    shown = capsys.readouterr()
    assert shown.out == ""
    assert "Starting 2 nodes" in shown.err
    last = re.split("[\r\n]", shown.err.strip())[-1]
    assert last.startswith("Trained")
    assert "2/2 epochs" in last
    assert "rows=200" in last
    assert "loss=0.25" in last


def test_a_line_per_epoch_and_where_the_time_went(spark, capsys):
    began = time.monotonic()
    timeline = fit(spark, verbose=2).summary.timeline
    took = time.monotonic() - began
    shown = capsys.readouterr()
    assert list(timeline) == ["checks", "job", "process", "meeting", "rows", "training", "export", "return"]
    assert 0.8 * took < sum(timeline.values()) <= took + 0.01
    assert re.search(r"^TFEstimator\.fit: .*job \d+\.\d s", shown.err, re.MULTILINE)
    lines = shown.out.splitlines()
    assert lines == [
        "Epoch 1/2 [worker:0] loss: 0.5 - rows_here: 100",
        "Epoch 2/2 [worker:0] loss: 0.25 - rows_here: 100",
    ]


def test_silence(spark, capsys):
    model = fit(spark, verbose=0, nodes=1)
    shown = capsys.readouterr()
    assert (shown.out, shown.err) == ("", "")
    assert model.summary.history["loss"] == [0.5, 0.25]


def linear():
    import keras

    model = keras.Sequential([keras.layers.Input((1,)), keras.layers.Dense(1)])
    model.compile("sgd", "mse")
    return model


@pytest.mark.chaos
def test_tensorboard_of_a_fit(spark, capsys, tmp_path):
    shown = tmp_path / "shown"

    def wait_until_shown(logs):
        deadline = time.monotonic() + 60
        while not shown.exists() and time.monotonic() < deadline:
            time.sleep(0.05)

    import keras

    df = spark.range(20).select((F.col("id") / 20).alias("features"), F.lit(1.0).alias("label"))
    waiting = keras.callbacks.LambdaCallback(on_train_end=wait_until_shown)
    estimator = KerasEstimator(
        model=linear, callbacks=[waiting], tensorboard=True, logDir=f"{tmp_path}/logs", verbose=2
    )
    fitting = session_thread(spark, lambda: estimator.fit(df))
    fitting.start()
    output = ""
    while fitting.is_alive():
        fitting.join(0.1)
        output += capsys.readouterr().out
        if "TensorBoard at" in output:
            shown.touch()
    assert re.search(r"^TensorBoard at http://127.0.0.1:\d+/$", output, re.MULTILINE)
    assert list(tmp_path.rglob("events.out.tfevents.*"))


def fail(args, ctx):
    raise RuntimeError("no")


def test_failed_fit_does_not_end_on_a_full_bar(spark, capsys, monkeypatch):
    have_a_terminal(monkeypatch)
    with pytest.raises(Exception, match="RuntimeError: no"):
        TFEstimator(trainFn=fail, epochs=3).fit(spark.range(9).withColumnRenamed("id", "features"))
    last = re.split("[\r\n]", capsys.readouterr().err.strip())[-1]
    assert last.startswith("Failed")
    assert "0/3 epochs" in last
