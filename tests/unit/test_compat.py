"""The parts of ``tfos_ml.compat`` that need no Spark."""

from __future__ import annotations

import argparse
import doctest
import getpass
import json
import os
from types import SimpleNamespace

import pytest

from tfos_ml import errors
from tfos_ml.compat import TFNode, TFSparkNode, compat, gpu_info, map_functions, reservation

USER = getpass.getuser()


@pytest.mark.parametrize(
    ("default", "path", "expected"),
    [
        ("hdfs://nn:8020", "gs://bucket/x", "gs://bucket/x"),
        ("hdfs://nn:8020/", "/x", "hdfs://nn:8020/x"),
        ("hdfs://nn:8020", "x", f"hdfs://nn:8020/user/{USER}/x"),
        ("file://", "x", "file:///path/to/cwd/x"),
        ("s3a://bucket", "x", "s3a://bucket/x"),
    ],
)
def test_hdfs_path(default, path, expected):
    assert TFNode.hdfs_path(SimpleNamespace(defaultFS=default, working_dir="/path/to/cwd"), path) == expected
    assert TFSparkNode.TFNodeContext(defaultFS=default, working_dir="/path/to/cwd").absolute_path(path) == expected


@pytest.mark.parametrize("module", [TFNode, TFSparkNode])
def test_examples(module):
    assert doctest.testmod(module).failed == 0


def test_a_context_counts_those_that_train():
    spec = {"ps": ["a:1"], "chief": ["a:2"], "worker": ["b:1", "b:2"], "evaluator": ["c:1"]}
    ctx = TFSparkNode.TFNodeContext(3, "worker", 1, spec)
    assert (ctx.worker_num, ctx.num_workers, ctx.tmp_socket) == (3, 3, None)
    assert gpu_info.local_index(ctx) == 1
    with pytest.raises(errors.ParamError, match="not fed"):
        ctx.get_data_feed()
    with pytest.raises(AttributeError, match="nonsense"):
        ctx.nonsense  # noqa: B018
    with pytest.raises(errors.RemovedError, match=r"compat\.export_saved_model"):
        ctx.export_saved_model(object(), "/x", "serve", {})


def configured(monkeypatch, cluster, **others):
    task = {"type": "worker", "index": 0}
    monkeypatch.setenv("TF_CONFIG", json.dumps({"cluster": cluster, "task": task}))
    map_functions._set_tf_config(TFSparkNode.TFNodeContext(0, "worker", 0, {**cluster, **others}))
    return os.environ.get("TF_CONFIG")


def test_tf_config_is_there_if_there_is_a_chief(monkeypatch):
    workers = {"worker": ["a:1", "b:1"]}
    assert configured(monkeypatch, workers) is None
    config = json.loads(configured(monkeypatch, {"chief": ["a:1"], "worker": ["b:1"]}, evaluator=["c:1"]))
    assert config["environment"] == "cloud"
    assert set(config["cluster"]) == {"chief", "worker"}
    monkeypatch.setenv("TF_CONFIG", json.dumps({"cluster": {"worker": ["elsewhere:1"]}}))  # a user's own
    map_functions._set_tf_config(TFSparkNode.TFNodeContext(0, "worker", 0, workers))
    assert "elsewhere" in os.environ["TF_CONFIG"]


def test_gpus_of_a_node(monkeypatch, tmp_path):
    """On a host with four GPUs."""
    for number in range(4):
        (tmp_path / f"nvidia{number}").touch()
    (tmp_path / "nvidiactl").touch()
    monkeypatch.setattr(gpu_info, "_DEVICE", f"{tmp_path}/nvidia")
    ctx = TFSparkNode.TFNodeContext(1, "worker", 1, {"worker": ["a:1", "a:2"]})

    def visible(wanted, given=""):
        monkeypatch.setenv(gpu_info.VISIBLE, given)
        gpu_info.assign_gpus(ctx, wanted)
        return os.environ[gpu_info.VISIBLE]

    assert visible(None) == "1"
    assert visible(2) == "2,3"
    assert visible(0) == ""
    assert visible(None, given="5,6") == "5,6"
    assert visible(1, given="5,6") == "5"
    for given, gpus in (("5,6", "5"), ("", "0")):
        with pytest.raises(errors.ClusterConfigError, match=rf"num_gpus=3, but of the GPUs \['{gpus}'"):
            visible(3, given)
    monkeypatch.setattr(gpu_info, "_DEVICE", "/nowhere/nvidia")
    assert visible(None) == ""
    with pytest.raises(errors.ClusterConfigError, match=r"num_gpus=1, but of the GPUs \[\] 0 are left"):
        visible(1)
    gpu_info.assign_gpus(ctx, 1, needs_them=False)
    assert gpu_info.num_gpus(argparse.Namespace(num_gpus=2)) == gpu_info.num_gpus({"num_gpus": "2"}) == 2
    assert gpu_info.num_gpus(["--num_gpus", "2"]) is gpu_info.num_gpus(None) is None


def test_client_takes_an_address_with_a_token():
    assert reservation.Client(("grpc://a:1", "secret")).server_addr.location == "grpc://a:1"
    for wrong in (("a", 1), None, "text", 5):
        with pytest.raises(errors.ParamError, match="server_addr") as raised:
            reservation.Client(wrong)
        assert "text" not in str(raised.value).split("Received")[1]


def test_keras_models_are_exported_with_the_names_of_keras_2(tmp_path):
    import keras
    import tensorflow as tf

    def names(model):
        compat.export_saved_model(model, f"file://{tmp_path}/{model.name}", is_chief=True)
        function = tf.saved_model.load(f"{tmp_path}/{model.name}").signatures["serving_default"]
        return sorted(function.structured_input_signature[1]), sorted(function.structured_outputs)

    layers = [keras.layers.Input((3,)), keras.layers.Dense(2, name="first"), keras.layers.Dense(1, name="last")]
    assert names(keras.Sequential(layers)) == (["first_input"], ["last"])
    one, two = keras.Input((3,)), keras.Input((2,), name="named")
    joined = keras.layers.Concatenate()([one, two])
    outputs = [keras.layers.Dense(1, name="a")(joined), keras.layers.Dense(1, name="b")(joined)]
    assert names(keras.Model([one, two], outputs)) == (["input_1", "named"], ["a", "b"])
    compat.export_saved_model(keras.Sequential(layers), str(tmp_path / "not the chief's"))
    assert not (tmp_path / "not the chief's").exists()
