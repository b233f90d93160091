"""The parts of ``tfos_ml.compat`` that need no Spark."""

from __future__ import annotations

import argparse
import doctest
import getpass
import json
import os
import stat
from types import SimpleNamespace

import pytest

from tfos_ml import errors
from tfos_ml.compat import TFNode, TFSparkNode, compat, gpu_info, gpus, map_functions, pipeline, reservation, util

USER = getpass.getuser()


@pytest.mark.parametrize(
    ("default", "path", "expected"),
    [
        ("hdfs://nn:8020", "hdfs://other/x", "hdfs://other/x"),
        ("hdfs://nn:8020", "gs://bucket/x", "gs://bucket/x"),
        ("hdfs://nn:8020", "/x", "hdfs://nn:8020/x"),
        ("hdfs://nn:8020/", "/x", "hdfs://nn:8020/x"),
        ("viewfs:///", "/x", "viewfs:///x"),
        ("file://", "/x", "file:///x"),
        ("hdfs://nn:8020", "x", f"hdfs://nn:8020/user/{USER}/x"),
        ("viewfs://", "x", f"viewfs:///user/{USER}/x"),
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
    assert gpus.local_index(ctx) == 1
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


@pytest.fixture
def nvidia_smi(tmp_path, monkeypatch):
    """A host with four GPUs, of which number 1 is busy."""
    listed = "\\n".join(f"GPU {i}: A Card Of Some Name (UUID: GPU-{i})" for i in range(4))
    program = tmp_path / "nvidia-smi"
    program.write_text(f'#!/bin/sh\ncase "$*" in --list-gpus) printf "{listed}\\n";; *) echo GPU-1;; esac\n')
    program.chmod(program.stat().st_mode | stat.S_IEXEC)
    monkeypatch.setenv("PATH", str(tmp_path), prepend=os.pathsep)
    monkeypatch.setattr(gpu_info, "RETRY_SECONDS", 0.0)
    monkeypatch.delenv(gpus.VISIBLE, raising=False)


@pytest.mark.usefixtures("nvidia_smi")
def test_free_gpus():
    assert gpu_info.is_gpu_available()
    assert set(gpu_info.get_gpus(3).split(",")) == {"0", "2", "3"}
    assert [gpu_info.get_gpus(1, i) for i in range(4)] == ["0", "2", "3", "0"]
    assert gpu_info.get_gpus(2, 1, format=gpu_info.AS_LIST) == ["2", "3"]
    with pytest.raises(errors.ClusterConfigError, match="4 GPUs are wanted, but only 3"):
        gpu_info.get_gpus(4)
    with pytest.raises(errors.ParamError, match="format"):
        gpu_info.get_gpus(1, format="tuple")


@pytest.mark.usefixtures("nvidia_smi")
def test_gpus_of_a_node(monkeypatch):
    ctx = TFSparkNode.TFNodeContext(1, "worker", 1, {"worker": ["a:1", "a:2"]})

    def visible(wanted, given=""):
        monkeypatch.setenv(gpus.VISIBLE, given)
        gpus.assign_gpus(ctx, wanted)
        return os.environ[gpus.VISIBLE]

    assert visible(None) == "2"
    assert visible(0) == ""
    assert visible(None, given="5,6") == "5,6"
    assert visible(1, given="5,6") == "5"
    with pytest.raises(errors.ClusterConfigError, match="num_gpus=3"):
        visible(3, given="5,6")
    assert gpus.num_gpus(argparse.Namespace(num_gpus=2)) == gpus.num_gpus({"num_gpus": "2"}) == 2
    assert gpus.num_gpus(["--num_gpus", "2"]) is gpus.num_gpus(None) is None


def test_a_host_without_gpus(monkeypatch, tmp_path):
    monkeypatch.setenv("PATH", str(tmp_path))
    monkeypatch.setenv(gpus.VISIBLE, "")
    ctx = TFSparkNode.TFNodeContext()
    assert not gpu_info.is_gpu_available()
    gpus.assign_gpus(ctx, None)
    gpus.assign_gpus(ctx, 1, needs_them=False)
    with pytest.raises(errors.ClusterConfigError, match="num_gpus=1, but this node has 0"):
        gpus.assign_gpus(ctx, 1)
    util.single_node_env(1)
    assert os.environ[gpus.VISIBLE] == ""


def test_util(tmp_path):
    (tmp_path / "program").touch()
    assert util.find_in_path(f"/nowhere{os.pathsep}{tmp_path}", "program") == f"{tmp_path}/program"
    assert util.find_in_path("/nowhere", "program") is False
    assert util.get_ip_address().count(".") == 3
    assert util._index_on_host(2, ["a:1", "b:1", "a:2"]) == 1


def test_namespace():
    given = pipeline.Namespace({"a": 1, "b": "x"})
    assert (list(given), repr(given), "a" in given) == (["a", "b"], "Namespace(a=1, b='x')", True)
    assert pipeline.Namespace(given) == given == pipeline.Namespace(argparse.Namespace(a=1, b="x"))
    listed = pipeline.Namespace(["--a", "1"])
    assert (list(listed), repr(listed), listed == ["--a", "1"]) == (["--a", "1"], "['--a', '1']", True)
    with pytest.raises(errors.ParamError, match="Received"):
        pipeline.Namespace("text")


def test_yield_batch():
    rows = [(i, bytearray(b"x")) for i in range(5)]
    assert list(pipeline.yield_batch([*rows[:3], None, rows[4]], 2, 2)) == [[[0, 1], [b"x", b"x"]], [[2], [b"x"]]]
    assert list(pipeline.yield_batch([], 2)) == []


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


def test_auto_shard_is_off():
    import tensorflow as tf

    options = tf.data.Options()
    compat.disable_auto_shard(options)
    assert options.experimental_distribute.auto_shard_policy == tf.data.experimental.AutoShardPolicy.OFF
    assert compat.is_gpu_available() is bool(tf.config.list_physical_devices("GPU"))
