"""What a person sees on the driver while a fit runs."""

from __future__ import annotations

import re
import time

from tfos_ml import TFEstimator


def report_two_epochs(args, ctx):
    feed = ctx.get_data_feed()
    for epoch in range(2):
        rows = len(feed.next_batch(200 // ctx.num_workers))
        ctx.report({"loss": 0.5 / (epoch + 1), "rows_here": rows}, epoch=epoch)


def fit(spark, verbose):
    df = spark.range(200).withColumnRenamed("id", "features")
    return TFEstimator(trainFn=report_two_epochs, clusterSize=2, epochs=2, verbose=verbose).fit(df)


def test_a_line_per_epoch_and_where_the_time_went(spark, capsys):
    began = time.monotonic()
    timeline = fit(spark, verbose=2).summary.timeline
    took = time.monotonic() - began
    shown = capsys.readouterr()
    assert list(timeline) == ["checks", "job", "process", "meeting", "rows", "training", "export", "return"]
    assert 0.5 * took < sum(timeline.values()) <= took + 0.01
    assert re.search(r"^TFEstimator\.fit: .*job \d+\.\d s", shown.err, re.MULTILINE)
    lines = shown.out.splitlines()
    assert lines == [
        "Epoch 1/2 [worker:0] loss: 0.5 - rows_here: 100",
        "Epoch 2/2 [worker:0] loss: 0.25 - rows_here: 100",
    ]
