"""TensorBoard of a cluster: where it listens, and what stays of it."""

from __future__ import annotations

import shutil
from pathlib import Path

from settings import setting
from tracking import free_port

from tfos_ml import TFCluster


def write_a_scalar(args, ctx):
    """Write an event file, and wait until its reader is done."""
    import tensorflow as tf

    with tf.summary.create_file_writer(ctx.log_dir).as_default():
        tf.summary.scalar("loss", 0.5, step=1)
    while not ctx.get_data_feed().should_stop():
        ctx.get_data_feed().next_batch(10)


def test_event_files_stay_and_the_port_is_a_setting(spark):
    (directory,) = spark.sparkContext.parallelize([0], 1).map(lambda _: str(Path.cwd())).collect()
    port, options = free_port(), {"tensorboard": True, "input_mode": TFCluster.InputMode.SPARK}
    with setting(spark, "tensorboardPort", str(port)), TFCluster.run(spark, write_a_scalar, None, 1, **options) as c:
        assert c.tensorboard_url() == f"http://127.0.0.1:{port}/"
        c.train(spark.range(20))
    made = Path(directory, f"tensorboard_{c.cluster_id}")
    assert list(made.glob("events.out.tfevents.*"))
    shutil.rmtree(made)
