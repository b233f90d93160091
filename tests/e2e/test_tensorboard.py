"""TensorBoard of a cluster: where it listens, and what stays of it."""

from __future__ import annotations

import shutil
from pathlib import Path

import pytest
from conftest import LOCAL, wait_until
from tracking import free_port

from tfos_ml import TFCluster, errors


def write_a_scalar(args, ctx):
    """Write an event file, and wait until its reader is done."""
    import tensorflow as tf

    with tf.summary.create_file_writer(ctx.log_dir).as_default():
        tf.summary.scalar("loss", 0.5, step=1)
    while not ctx.get_data_feed().should_stop():
        ctx.get_data_feed().next_batch(10)


@pytest.fixture
def working_directory(sessions):
    """Where executors of a local session run; without what this test leaves there."""
    spark = sessions.get(LOCAL)
    (directory,) = spark.sparkContext.parallelize([0], 1).map(lambda _: str(Path.cwd())).collect()
    yield Path(directory)
    for made in Path(directory).glob("tensorboard_*"):
        shutil.rmtree(made)


def test_event_files_stay_and_the_port_is_a_setting(spark, working_directory):
    port = free_port()
    spark.conf.set("spark.tfos_ml.tensorboardPort", str(port))
    try:
        with TFCluster.run(spark, write_a_scalar, None, 1, tensorboard=True, input_mode=TFCluster.InputMode.SPARK) as c:
            assert c.tensorboard_url() == f"http://127.0.0.1:{port}/"
            c.train(spark.range(20))
    finally:
        spark.conf.unset("spark.tfos_ml.tensorboardPort")
    assert list((working_directory / f"tensorboard_{c.cluster_id}").glob("events.out.tfevents.*"))


def test_a_chief_that_has_ended_is_told_at_once(spark, working_directory):
    with TFCluster.run(spark, lambda args, ctx: None, None, 1, tensorboard=True) as cluster:
        assert wait_until(lambda: not cluster._control.nodes.unfinished(), 60)
        with pytest.raises(errors.ReservationTimeoutError, match="The chief has ended before its TensorBoard"):
            cluster.tensorboard_url()
