"""What tfos_ml uses of Keras that Keras does not document is there and does what it is used for."""

from __future__ import annotations

import ast
import contextlib
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

import keras
import numpy as np
import pytest
import tensorflow as tf

import tfos_ml
from tfos_ml.keras import privates

FOLDERS = ["keras", "worker", "inference"]
ELSEWHERE = {  # of Python, TensorFlow and NodeContext
    *("_current_frames", "_exit", "_replace", "_run_exitfuncs"),
    *("_collective_ops_server_def", "_initialized", "_input_workers_with_options", "_trackable_children"),
    "_node",
}


@pytest.fixture(scope="module")
def model():
    inputs = {"a": keras.Input((2,), name="a"), "b": keras.Input((2,), name="b")}
    joined = keras.layers.Concatenate(name="joined")([inputs["a"], inputs["b"]])
    heads = {"one": keras.layers.Dense(1, name="one")(joined), "two": keras.layers.Dense(2, name="two")(joined)}
    model = keras.Model(inputs, heads)
    model.compile(optimizer="sgd", loss={"one": keras.losses.MeanSquaredError(name="of-one"), "two": "mae"})
    rows = {"a": np.ones((3, 2)), "b": np.ones((3, 2))}
    model.fit(rows, {"one": np.ones((3, 1)), "two": np.ones((3, 2))}, verbose=0)
    return model


def test_symbolic_build():
    model = keras.Sequential([keras.layers.Dense(1)])
    model.compile(optimizer="adam", loss="mse", metrics=["mae"])
    privates.symbolic_build(model, (tf.TensorSpec([None, 2]), tf.TensorSpec([None, 1])))
    assert (model.built, model.optimizer.built, len(model.trainable_variables)) == (True, True, 2)
    assert privates.losses_of_outputs(model)


def test_what_saving_learns_of_classes_is_kept(model, tmp_path):
    from keras.src.saving import saving_lib

    model.save_weights(tmp_path / "a.weights.h5")
    privates.keep_saving_skipsets()
    for name in ("Layer", "Functional", "Optimizer"):
        assert saving_lib.get_attr_skipset(name) is saving_lib.get_attr_skipset(name)


def test_the_global_dtype_policy_is_read_without_setting_it():
    def policies():
        keras.config.set_floatx("float64")
        try:
            return (privates.global_dtype_policy(), keras.config.dtype_policy(), privates.global_dtype_policy())
        finally:
            keras.config.set_floatx("float32")

    with ThreadPoolExecutor(1) as fresh:  # Keras keeps it by thread
        before, read, after = fresh.submit(policies).result()
    assert before is None
    assert after is read
    assert read.name == "float64"


def test_is_validation_of_fit():
    calls = []

    class Watched(keras.Sequential):
        def evaluate(self, *args, **kwargs):
            calls.append(privates.is_validation_of_fit(kwargs))
            return super().evaluate(*args, **kwargs)

    rows = np.ones((3, 2)), np.ones((3, 1))
    model = Watched([keras.Input((2,)), keras.layers.Dense(1)])
    model.compile("sgd", "mse")
    model.fit(*rows, validation_data=rows, verbose=0)
    model.evaluate(*rows, verbose=0)
    assert calls == [True, False]


def test_losses_of_outputs_are_those_that_are_computed(model):
    compiled, plain = model._compile_loss, privates.losses_of_outputs(model)
    zeros, ones = {"one": np.zeros((3, 1)), "two": np.zeros((3, 2))}, {"one": np.ones((3, 1)), "two": np.ones((3, 2))}
    assert [callable(loss) for loss in plain] == [True, True]
    assert plain[0].name == "of-one"
    assert float(compiled(zeros, ones)) == 2.0
    with privates.replaced_losses(model, lambda loss, i: lambda t, p, w=None: 21.0 + i):
        assert float(compiled(zeros, ones)) == 43.0
    assert privates.losses_of_outputs(model) == plain


def test_means_of_the_losses_of_several_outputs(model):
    assert [metric.name for metric in privates.metrics_of_losses(model)] == ["one_loss", "two_loss"]
    assert [mean.name for mean in privates.means_of_losses(model)] == ["loss", "one_loss", "two_loss"]


def test_all_layers_are_those_of_nested_models_each_once():
    shared = keras.layers.Dense(2, name="shared")
    inner = keras.Sequential([keras.Input((2,)), shared], name="inner")
    inputs = keras.Input((2,), name="x")
    model = keras.Model(inputs, [inner(inputs), shared(inputs)], name="outer")
    layers = privates.all_layers(model)
    assert [sum(each is one for each in layers) for one in (model, inner, shared)] == [1, 1, 1]


def test_check_compiled(model):
    privates.check_compiled(model, model.output)
    with pytest.raises((KeyError, ValueError), match="two"):
        privates.check_compiled(model, {"one": model.output["one"]})


def test_written_variables_are_found_in_branches_and_beside_those_that_are_read():
    read, written, in_a_branch, skipped = (tf.Variable(float(i)) for i in range(4))

    def step():
        first = len(tf.compat.v1.get_default_graph().get_operations())
        skipped.assign(read + 1.0)
        operations.append(range(first, len(tf.compat.v1.get_default_graph().get_operations())))
        tf.cond(read > 0.0, lambda: in_a_branch.assign_add(1.0), lambda: in_a_branch)
        written.assign(2.0 * read)

    operations: list[range] = []
    graph = tf.function(step).get_concrete_function().graph
    names = {id(v): name for name, v in {"read": read, "written": written, "branch": in_a_branch}.items()}
    found = privates.written_variables(graph, graph.variables, operations)
    assert [names[id(v)] for v in found] == ["branch", "written"]
    assert len(privates.written_variables(graph, graph.variables)) == 3


def test_compiled_parts_are_others_after_compile(model):
    model = keras.models.clone_model(model)
    model.compile("sgd", "mse", metrics=["mae"])
    before = privates.compiled_parts(model)
    assert privates.compiled_parts(model) == before
    model.compile("sgd", "mse", metrics=["mae"])
    assert all(a is not b for a, b in zip(privates.compiled_parts(model), before, strict=True))


def test_what_a_model_was_compiled_with(model):
    model = keras.models.clone_model(model)
    model.compile("sgd", {"one": "mse", "two": "mae"}, metrics={"one": ["mae"]}, weighted_metrics={"two": ["mse"]})
    assert privates.compiled_with(model) == [{"one": "mse", "two": "mae"}, {"one": ["mae"]}, {"two": ["mse"]}]


def test_the_variables_of_an_optimizer_are_those_that_it_was_built_with(model):
    given = list(reversed(model.trainable_variables))
    optimizer = type(model.optimizer)()
    optimizer.build(given)
    assert all(a is b for a, b in zip(privates.optimizer_variables(optimizer), given, strict=True))


def test_vocabularies_with_line_ends_go_into_the_configuration(tmp_path):
    words = ["a\nb", "c", ""]
    model = keras.Sequential([keras.Input((), dtype="string"), keras.layers.StringLookup()])
    model.layers[-1].set_vocabulary(words)
    assert privates.vocabulary_of(model.layers[-1]) == words
    with privates.with_vocabularies_in_config(model):
        model.save(tmp_path / "model.keras")
    assert model.layers[-1].get_config()["vocabulary"] is None
    assert privates.vocabulary_of(keras.saving.load_model(tmp_path / "model.keras").layers[-1]) == words


def test_what_a_loss_reduces_is_noted_last_with_its_mask():
    class Outer(keras.losses.Loss):
        def call(self, y, p):
            return keras.losses.MeanAbsoluteError(reduction="sum")(y, p) * tf.ones(3)

    masked = keras.layers.Masking()(tf.constant([[[1.0], [0.0]]]))
    with privates.noted_reductions() as noted:
        result = keras.losses.MeanSquaredError()(tf.zeros([1, 2, 1]), masked)
        Outer()(tf.zeros([1, 1]), tf.ones([1, 1]), tf.ones(3))
    (mean, inner, outer), ones = noted, tf.ones([1, 2])
    assert mean.result is result
    assert [each.reduction for each in noted] == ["sum_over_batch_size", "sum", "sum_over_batch_size"]
    assert (inner.sample_weight, outer.values.shape, outer.sample_weight.shape) == (None, (3,), (3,))
    sums = [float(mean.again(ones, None, how, "float64")) for how in ("sum", mean.reduction)]
    assert sums == pytest.approx([1.0, 1.0])


def test_random_functions_are_those_that_layers_call():
    drawn = []
    plain = privates.random_functions()["dropout"]

    def dropout(inputs, rate, noise_shape=None, seed=None):
        drawn.append(noise_shape)
        return plain(inputs, rate, noise_shape, seed)

    layer, rows = keras.layers.Dropout(0.5, noise_shape=(None, 1)), np.ones((3, 2), "f")
    with privates.replaced_random_functions({"dropout": dropout}):
        layer(rows, training=True)
    layer(rows, training=True)
    assert drawn == [(None, 1)]


def test_the_seed_of_a_draw_is_that_of_keras():
    ours, theirs = keras.random.SeedGenerator(5), keras.random.SeedGenerator(5)
    drawn = tf.random.stateless_uniform([3], privates.drawn_seed(ours))
    np.testing.assert_array_equal(drawn, keras.random.uniform([3], seed=theirs))
    assert int(ours.state[1]) == int(theirs.state[1]) == 1


def test_states_of_seed_generators():
    model = keras.Sequential([keras.Input((2,)), keras.layers.Dropout(0.5), keras.layers.Dense(1)])
    assert [state.path for state in privates.seed_states(model)] == [model.layers[0].seed_generator.state.path]
    before = np.asarray(privates.global_seed_state())
    keras.random.normal([2])
    assert (np.asarray(privates.global_seed_state()) != before).any()


def test_names_that_keras_writes_are_noted():
    class Own(keras.layers.Layer):
        pass

    model = keras.Sequential([keras.Input((2,)), Own(), keras.layers.Dense(1, "relu")])
    with privates.names_noted() as named:
        keras.saving.serialize_keras_object(model)
    assert named == {"Own": [Own]}
    assert not privates.is_of_keras(Own)
    assert privates.is_of_keras(keras.layers.Dense)


def test_the_matrices_of_lora_and_kernels_without_their_product():
    layer = keras.layers.Dense(2, name="dense")
    model = keras.Sequential([keras.Input((3,)), layer])
    layer.enable_lora(1)
    kernel = np.asarray(layer.get_weights()[0])
    a, b = privates.adapters(model)
    a.assign(np.ones(a.shape))
    b.assign(np.ones(b.shape))
    store: dict[str, object] = {}
    with privates.with_unmerged_adapters(model):
        layer.save_own_variables(store)
    np.testing.assert_array_equal(store["0"], kernel)
    assert layer.lora_enabled
    gradients = []
    for context in (contextlib.nullcontext(), privates.with_lean_adapters(model)):
        with tf.GradientTape() as tape, context:
            loss = tf.reduce_sum(model(np.ones((2, 3), "f")) ** 2)
        gradients.append(tape.gradient(loss, [v.value for v in model.trainable_variables]))
    for plain, lean in zip(*gradients, strict=True):
        np.testing.assert_array_equal(lean, plain)


def test_moments_are_those_with_which_batches_are_normalized():
    layer, rows = keras.layers.BatchNormalization(epsilon=0.0, center=False), tf.constant([[1.0], [3.0]])
    layer.build(rows.shape)
    plain = np.asarray(layer(rows, training=True))
    with privates.replaced_moments(
        layer, lambda moments: lambda inputs, mask: (inputs[0], 4 * moments(inputs, mask)[1])
    ):
        np.testing.assert_allclose(layer(rows, training=True), (plain + 1) / 2)
    np.testing.assert_array_equal(layer(rows, training=True), plain)


def test_the_functions_of_losses_and_metrics_with_their_options():
    loss, metric = keras.losses.CosineSimilarity(axis=1), keras.metrics.CosineSimilarity(axis=2)
    assert [privates.is_of_keras(privates.function_of(part)) for part in (loss, metric)] == [True, True]
    assert [privates.options_of(part)["axis"] for part in (loss, metric)] == [1, 2]
    assert (privates.function_of(keras.metrics.Sum()), privates.options_of(keras.metrics.Sum())) == (None, {})


def foreign_privates(path):
    """Names with an underscore of objects that a module does not define, and imports of Keras's inner modules."""
    tree = ast.parse(path.read_text())
    nodes = list(ast.walk(tree))
    own = {node.name for node in nodes if isinstance(node, ast.FunctionDef | ast.ClassDef)}
    used = {
        f"import {node.module}"
        for node in nodes
        if isinstance(node, ast.ImportFrom) and "keras.src" in f"{node.module}"
    }
    for node in nodes:
        names = [node.attr] if isinstance(node, ast.Attribute) else []
        if isinstance(node, ast.Attribute) and isinstance(node.value, ast.Name) and node.value.id in ("self", "cls"):
            own.add(node.attr)
            continue
        if isinstance(node, ast.Call) and getattr(node.func, "id", "") in ("getattr", "setattr", "hasattr", "delattr"):
            names = [node.args[1].value] if isinstance(node.args[1], ast.Constant) else []
        used |= {name for name in names if name.startswith("_") and not name.startswith("__")}
    return used - own


def test_no_other_module_uses_what_keras_does_not_document():
    root = Path(tfos_ml.__file__).parent
    paths = [path for folder in FOLDERS for path in sorted((root / folder).rglob("*.py"))]
    found = {str(path.relative_to(root)): foreign_privates(path) - ELSEWHERE for path in paths}
    assert [name for name, used in found.items() if used] == ["keras/privates.py"], found


def test_a_keras_that_nobody_has_tried_is_told():
    told = {version: bool(privates.untried(version)) for version in ("3.7.0", "3.15.9", "3.99.0", "4.0.0")}
    assert told == {"3.7.0": False, "3.15.9": False, "3.99.0": True, "4.0.0": True}


def test_the_installed_keras_has_been_tried():
    assert privates.untried(keras.__version__) is None
