"""What train functions print and say, on the driver."""

from __future__ import annotations

import sys

import pytest
from conftest import CLUSTER, wait_until

from tfos_ml import TFCluster, TFEstimator, TFParallel


@pytest.fixture
def executors(sessions):
    """A session whose nodes run in processes of other JVMs, so that their output is not the driver's."""
    return sessions.get(CLUSTER)


def speak(args, ctx):
    import logging

    print("printed on stdout")
    print("printed on stderr", file=sys.stderr)
    logging.warning("logged by %s", ctx.job_name)
    ctx.log(f"said by {ctx.worker_num}\nin two lines")


def fit(spark, verbose):
    df = spark.range(8).withColumnRenamed("id", "features")
    return TFEstimator(trainFn=speak, clusterSize=2, verbose=verbose, epochs=1).fit(df)


def test_all_that_nodes_print_or_what_they_say_or_nothing(executors, capsys):
    fit(executors, verbose=2)
    lines = capsys.readouterr().out.splitlines()
    for rank in range(2):
        said = [line for line in lines if line.startswith(f"[worker:{rank}] ") and "TF" not in line]
        assert [line.split("] ", 1)[1] for line in said if "stdout" in line] == ["printed on stdout"]
        assert f"[worker:{rank}] printed on stderr" in said
        assert f"[worker:{rank}] WARNING:root:logged by worker" in said
        assert said.index(f"[worker:{rank}] in two lines") == said.index(f"[worker:{rank}] said by {rank}") + 1
    fit(executors, verbose=1)
    lines = capsys.readouterr().err.splitlines()
    said = [f"[worker:{rank}] {what}" for rank in range(2) for what in ("in two lines", f"said by {rank}")]
    assert sorted(lines) == said
    fit(executors, verbose=0)
    assert capsys.readouterr() == ("", "")


def test_a_running_cluster(executors, capsys, tmp_path):
    def wait_to_be_seen(args, ctx):
        from pathlib import Path

        from conftest import wait_until

        ctx.log("here I am")
        assert wait_until(Path(args, "seen").exists, 60)

    cluster = TFCluster.run(executors, wait_to_be_seen, str(tmp_path), 2)
    shown = ""

    def are_there():
        nonlocal shown
        shown += capsys.readouterr().err
        return shown.count("here I am") == 2

    try:
        assert wait_until(are_there, 60)  # though the driver makes no call
    finally:
        (tmp_path / "seen").touch()
        cluster.shutdown(timeout=60)
    assert sorted(shown.splitlines()) == ["[worker:0] here I am", "[worker:1] here I am"]


def print_much(args, ctx):
    for number in range(20_000):
        print(number)
    print("x" * 5_000)


def test_limits(executors, capsys):
    TFParallel.run(executors, print_much, None, 2, verbose=2)
    lines = capsys.readouterr().err.splitlines()
    assert max(map(len, lines)) < 2_100
    for rank in range(2):
        mine = [line for line in lines if line.startswith(f"[worker:{rank}] ")]
        left_out = sum(int(line.split("(")[1].split()[0].replace(",", "")) for line in mine if "lines left out" in line)
        passed_on = [line for line in mine if "lines left out" not in line]
        assert len(passed_on) < 1_000
        assert len(passed_on) + left_out >= 20_001  # TensorFlow may say something, too
