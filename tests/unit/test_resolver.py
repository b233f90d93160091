"""``SparkClusterResolver`` beside TensorFlow's own resolvers: the same inputs, the same answers."""

import itertools
import json

import pytest
import tensorflow as tf

from tfos_ml import SparkClusterResolver, errors

SimpleClusterResolver = tf.distribute.cluster_resolver.SimpleClusterResolver
TFConfigClusterResolver = tf.distribute.cluster_resolver.TFConfigClusterResolver

ALONE = {"worker": ["a:1"]}
WORKERS = {"worker": ["a:1", "b:2"]}
WITH_PS = {"ps": ["p:1"], "chief": ["c:2"], "worker": ["a:3"]}
WITH_GAPS = {"worker": {"0": "b:2", "3": "c:3"}}  # as JSON has it
SPECS = [{}, ALONE, WORKERS, WITH_PS, WITH_GAPS]
TASKS = [(None, None), ("worker", 0), ("worker", 7), ("evaluator", 0)]
CALLS = [
    {},
    {"rpc_layer": None},
    {"task_type": "worker"},
    {"task_id": 0},
    {"task_type": "worker", "task_id": 0, "rpc_layer": "x"},
    {"task_type": "ps", "task_id": 0},
    {"task_type": "worker", "task_id": 9},
]


def answer(resolver, call):
    try:
        return resolver.master(**call)
    except ValueError as error:
        return f"ValueError: {error}"


def test_master_is_what_tensorflow_says(monkeypatch):
    """TensorFlow's two differ: the simple one knows a task only if asked for it, the other knows of none if alone."""
    for spec, task, rpc_layer, call in itertools.product(SPECS, TASKS, [None, "grpc"], CALLS):
        config = {"cluster": spec, "rpc_layer": rpc_layer}
        if task != (None, None):
            config["task"] = {"type": task[0], "index": task[1]}
        monkeypatch.setenv("TF_CONFIG", json.dumps(config))
        inputs = {"task_type": task[0], "task_id": task[1], "rpc_layer": rpc_layer}
        ours = answer(SparkClusterResolver(tf.train.ClusterSpec(spec), **inputs), call)
        if "task_type" in call and "task_id" in call:
            assert ours == answer(SimpleClusterResolver(tf.train.ClusterSpec(spec), **inputs), call), call
        elif task == (None, None) and not call.keys() & {"task_type", "task_id"}:
            assert ours == "", call  # theirs: "grpc://" without an address, or an error
        else:
            assert ours == answer(TFConfigClusterResolver(), call), call


@pytest.mark.parametrize(
    ("spec", "what"),
    [
        ({"worker": "a:1"}, "job 'worker' is 'a:1'"),  # a sequence of one-letter addresses to Python
        (["a:1"], r"Received: \['a:1'\]"),
    ],
)
def test_what_is_no_cluster_is_said(spec, what):
    with pytest.raises(errors.InputTypeError, match=f"cluster_spec must be .*{what}"):
        SparkClusterResolver(spec, "worker", 0)


def test_accelerators_are_counted_as_tensorflow_will_see_them_and_without_starting_it(monkeypatch):
    gpus = ["GPU:0", "GPU:1"]
    parts = {"GPU:0": ["half", "half"], "GPU:1": None}
    monkeypatch.setattr(tf.config, "get_visible_devices", lambda kind: gpus if kind == "GPU" else [])
    monkeypatch.setattr(tf.config, "get_logical_device_configuration", parts.get)
    monkeypatch.setattr(tf.config, "list_logical_devices", lambda kind=None: pytest.fail("this starts TensorFlow"))
    assert SparkClusterResolver(WORKERS, "worker", 0).num_accelerators() == {"GPU": 3}
