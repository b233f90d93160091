"""What tfos_ml uses of Keras that Keras does not document is there and does what it is used for."""

from __future__ import annotations

from concurrent.futures import ThreadPoolExecutor

import numpy as np
import pytest

from tfos_ml.worker import keras_privates


@pytest.fixture(scope="module")
def model():
    import keras

    inputs = {"a": keras.Input((2,), name="a"), "b": keras.Input((2,), name="b")}
    joined = keras.layers.Concatenate(name="joined")([inputs["a"], inputs["b"]])
    heads = {"one": keras.layers.Dense(1, name="one")(joined), "two": keras.layers.Dense(2, name="two")(joined)}
    model = keras.Model(inputs, heads)
    model.compile(optimizer="sgd", loss={"one": keras.losses.MeanSquaredError(name="of-one"), "two": "mae"})
    rows = {"a": np.ones((3, 2)), "b": np.ones((3, 2))}
    model.fit(rows, {"one": np.ones((3, 1)), "two": np.ones((3, 2))}, verbose=0)
    return model


def test_symbolic_build():
    import keras
    import tensorflow as tf

    model = keras.Sequential([keras.layers.Dense(1)])
    model.compile(optimizer="adam", loss="mse", metrics=["mae"])
    keras_privates.symbolic_build(model, (tf.TensorSpec([None, 2]), tf.TensorSpec([None, 1])))
    assert (model.built, model.optimizer.built, len(model.trainable_variables)) == (True, True, 2)
    assert keras_privates.losses_of_outputs(keras_privates.compiled_loss(model))


def test_the_global_dtype_policy_is_read_without_setting_it():
    def policies():
        keras.config.set_floatx("float64")
        try:
            return (
                keras_privates.global_dtype_policy(),
                keras.config.dtype_policy(),
                keras_privates.global_dtype_policy(),
            )
        finally:
            keras.config.set_floatx("float32")

    import keras

    with ThreadPoolExecutor(1) as fresh:  # Keras keeps it by thread
        before, read, after = fresh.submit(policies).result()
    assert before is None
    assert after is read
    assert read.name == "float64"


def test_is_validation_of_fit():
    import keras

    calls = []

    class Watched(keras.Sequential):
        def evaluate(self, *args, **kwargs):
            calls.append(keras_privates.is_validation_of_fit(kwargs))
            return super().evaluate(*args, **kwargs)

    rows = np.ones((3, 2)), np.ones((3, 1))
    model = Watched([keras.Input((2,)), keras.layers.Dense(1)])
    model.compile("sgd", "mse")
    model.fit(*rows, validation_data=rows, verbose=0)
    model.evaluate(*rows, verbose=0)
    assert calls == [True, False]


def test_losses_of_outputs_are_those_that_are_computed(model):
    compiled = keras_privates.compiled_loss(model)
    plain = keras_privates.losses_of_outputs(compiled)
    zeros, ones = {"one": np.zeros((3, 1)), "two": np.zeros((3, 2))}, {"one": np.ones((3, 1)), "two": np.ones((3, 2))}
    assert [callable(entry.loss) for entry in plain] == [True, True]
    assert plain[0].loss.name == "of-one"
    assert float(compiled(zeros, ones)) == 2.0
    try:
        keras_privates.set_losses_of_outputs(compiled, [e._replace(loss=lambda t, p, w=None: 21.0) for e in plain])
        assert float(compiled(zeros, ones)) == 42.0
    finally:
        keras_privates.set_losses_of_outputs(compiled, plain)


def test_all_layers_are_those_of_nested_models_each_once():
    import keras

    shared = keras.layers.Dense(2, name="shared")
    inner = keras.Sequential([keras.Input((2,)), shared], name="inner")
    inputs = keras.Input((2,), name="x")
    model = keras.Model(inputs, [inner(inputs), shared(inputs)], name="outer")
    layers = keras_privates.all_layers(model)
    assert [sum(each is one for each in layers) for one in (model, inner, shared)] == [1, 1, 1]


def test_check_compiled(model):
    keras_privates.check_compiled(model, model.output)
    with pytest.raises((KeyError, ValueError), match="two"):
        keras_privates.check_compiled(model, {"one": model.output["one"]})


def test_silent(capsys):
    import keras

    with keras_privates.silent():
        keras.utils.Progbar(2).update(1)
        assert not keras.config.is_interactive_logging_enabled()
    assert keras.config.is_interactive_logging_enabled()


def test_written_variables_are_found_in_branches_and_beside_those_that_are_read():
    import tensorflow as tf

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
    found = keras_privates.written_variables(graph, graph.variables, operations)
    assert [names[id(v)] for v in found] == ["branch", "written"]
    assert len(keras_privates.written_variables(graph, graph.variables)) == 3


def test_compiled_parts_are_others_after_compile(model):
    import keras

    model = keras.models.clone_model(model)
    model.compile("sgd", "mse", metrics=["mae"])
    before = keras_privates.compiled_parts(model)
    assert keras_privates.compiled_parts(model) == before
    model.compile("sgd", "mse", metrics=["mae"])
    assert all(a is not b for a, b in zip(keras_privates.compiled_parts(model), before, strict=True))
