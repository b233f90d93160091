"""The parts of ``tfos_ml.compat`` that need no Spark."""

from __future__ import annotations

import os

import pytest

from tfos_ml import errors
from tfos_ml.compat import TFSparkNode, compat, gpu_info, reservation


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
    assert visible(1, given="5,6") == "5"
    with pytest.raises(errors.ClusterConfigError, match=r"num_gpus=3, but of the GPUs \['5'"):
        visible(3, given="5,6")
    monkeypatch.setattr(gpu_info, "_DEVICE", "/nowhere/nvidia")
    assert visible(None) == ""
    gpu_info.assign_gpus(ctx, 1, needs_them=False)


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
