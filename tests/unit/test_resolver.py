"""``SparkClusterResolver`` beside TensorFlow's own resolvers: the same inputs, the same answers."""

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
SPEC_NAMES = ["empty", "alone", "workers", "ps", "gaps"]
LAYERS = [None, "grpc"]
TASKS = [(None, None), ("worker", 0), ("worker", 7), ("evaluator", 0)]
CALLS = [
    {},
    {"rpc_layer": None},
    {"rpc_layer": "x"},
    {"task_type": "worker"},
    {"task_id": 0},
    {"task_type": "worker", "task_id": 0},
    {"task_type": "worker", "task_id": 0, "rpc_layer": "x"},
    {"task_type": "ps", "task_id": 0},
    {"task_type": "worker", "task_id": 9},
]


@pytest.fixture
def three(monkeypatch):
    """Our resolver and TensorFlow's two, made of the same inputs."""

    def three(spec, task, rpc_layer):
        (task_type, task_id), config = task, {"cluster": spec, "rpc_layer": rpc_layer}
        if task_type is not None:
            config["task"] = {"type": task_type, "index": task_id}
        monkeypatch.setenv("TF_CONFIG", json.dumps(config))
        inputs = {"task_type": task_type, "task_id": task_id, "rpc_layer": rpc_layer}
        cluster = tf.train.ClusterSpec(spec)
        return (
            SparkClusterResolver(cluster, **inputs),
            SimpleClusterResolver(cluster, **inputs),
            TFConfigClusterResolver(),
        )

    return three


def answer(resolver, **call):
    try:
        return resolver.master(**call)
    except ValueError as error:
        return f"ValueError: {error}"


@pytest.mark.parametrize("rpc_layer", LAYERS, ids=repr)
@pytest.mark.parametrize("task", TASKS, ids=str)
@pytest.mark.parametrize("spec", SPECS, ids=SPEC_NAMES)
def test_master_is_what_tensorflow_says(three, spec, task, rpc_layer):
    """TensorFlow's two differ: the simple one knows a task only if asked for it, the other knows of none if alone."""
    for call in CALLS:
        ours, simple, tf_config = (answer(resolver, **call) for resolver in three(spec, task, rpc_layer))
        if "task_type" in call and "task_id" in call:
            assert ours == simple, call
        elif task == (None, None) and not call.keys() & {"task_type", "task_id"}:
            assert ours == "", call  # theirs: "grpc://" without an address, or an error
        else:
            assert ours == tf_config, call


@pytest.mark.parametrize("rpc_layer", LAYERS, ids=repr)
@pytest.mark.parametrize("task", TASKS, ids=str)
@pytest.mark.parametrize("spec", SPECS, ids=SPEC_NAMES)
def test_all_else_is_what_tensorflow_says(three, spec, task, rpc_layer):
    def facts(resolver):
        known = (resolver.task_type, resolver.task_id, resolver.rpc_layer, resolver.environment or "")
        return resolver.cluster_spec().as_dict(), known

    ours, simple, tf_config = three(spec, task, rpc_layer)
    assert facts(ours) == facts(simple) == facts(tf_config)
    assert ours.num_accelerators() == simple.num_accelerators() == {}
    if answer(tf_config).startswith("ValueError"):  # it asks for its address first
        return
    assert ours.num_accelerators() == dict(tf_config.num_accelerators())


def test_an_empty_rpc_layer_is_none(three):
    assert {resolver.master("worker", 1) for resolver in three(WORKERS, ("worker", 0), "")} == {"b:2"}


def test_an_rpc_layer_that_is_asked_for_as_empty_is_none(three):
    ours, _, tf_config = three(WORKERS, ("worker", 1), "grpc")
    assert ours.master(rpc_layer="") == tf_config.master(rpc_layer="") == "b:2"


def test_task_and_layer_can_be_set(three):
    resolvers = three(WORKERS, (None, None), None)
    for resolver in resolvers:
        resolver.task_type, resolver.task_id, resolver.rpc_layer = "worker", 1, "x"
    ours, _, tf_config = (resolver.master() for resolver in resolvers)
    assert ours == tf_config == "x://b:2"
    assert {(r.task_type, r.task_id, r.rpc_layer) for r in resolvers} == {("worker", 1, "x")}


@pytest.mark.parametrize("spec", SPECS, ids=SPEC_NAMES)
@pytest.mark.parametrize("form", [dict, tf.train.ClusterSpec, lambda spec: tf.train.ClusterSpec(spec).as_cluster_def()])
def test_a_cluster_comes_in_any_form_that_tensorflow_has(spec, form):
    found = SparkClusterResolver(form(spec), "worker", 0).cluster_spec()
    assert isinstance(found, tf.train.ClusterSpec)
    assert found.as_dict() == tf.train.ClusterSpec(spec).as_dict()


def test_a_job_may_be_any_sequence():
    assert SparkClusterResolver({"worker": ("a:1", "b:2")}).cluster_spec() == {"worker": {0: "a:1", 1: "b:2"}}


@pytest.mark.parametrize(
    ("spec", "what"),
    [
        ({"worker": "a:1"}, "job 'worker' is 'a:1'"),  # a sequence of one-letter addresses to Python
        ({"worker": 3}, "job 'worker' is 3"),
        ({"worker": [1]}, "job 'worker' is .1."),
        ({1: ["a:1"]}, "Received: {1: "),
        (["a:1"], r"Received: \['a:1'\]"),
        (None, "Received: None"),
    ],
)
def test_what_is_no_cluster_is_said(spec, what):
    with pytest.raises(errors.InputTypeError, match=f"cluster_spec must be .*{what}"):
        SparkClusterResolver(spec, "worker", 0)


def test_accelerators_and_environment_that_are_given():
    given = {"num_accelerators": {"GPU": 8}, "environment": "lab", "task_type": "worker", "task_id": 0}
    cluster = tf.train.ClusterSpec(WORKERS)
    ours, simple = SparkClusterResolver(cluster, **given), SimpleClusterResolver(cluster, **given)
    assert ours.num_accelerators() == simple.num_accelerators() == {"GPU": 8}
    assert ours.num_accelerators("worker", 1) == simple.num_accelerators("worker", 1)
    assert ours.environment == simple.environment == "lab"


def test_accelerators_are_counted_as_tensorflow_will_see_them_and_without_starting_it(monkeypatch):
    gpus = ["GPU:0", "GPU:1"]
    parts = {"GPU:0": ["half", "half"], "GPU:1": None}
    monkeypatch.setattr(tf.config, "get_visible_devices", lambda kind: gpus if kind == "GPU" else [])
    monkeypatch.setattr(tf.config, "get_logical_device_configuration", parts.get)
    monkeypatch.setattr(tf.config, "list_logical_devices", lambda kind=None: pytest.fail("this starts TensorFlow"))
    assert SparkClusterResolver(WORKERS, "worker", 0).num_accelerators() == {"GPU": 3}
