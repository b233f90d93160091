"""What tfos_ml uses of Keras that Keras does not document is there and does what it is used for."""

from __future__ import annotations

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


def test_user_loss(model):
    import keras

    assert {name: getattr(loss, "name", loss) for name, loss in keras_privates.user_loss(model).items()} == {
        "one": "of-one",
        "two": "mae",
    }
    assert keras_privates.user_loss(keras.Sequential()) is None


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


def test_optimizer_variables(model):
    assert [v.path for v in keras_privates.optimizer_variables(model.optimizer)] == [
        v.path for v in model.trainable_variables
    ]


def test_inputs_structure(model):
    assert list(keras_privates.inputs_structure(model)) == ["a", "b"]


def test_mask_of():
    import keras

    assert np.asarray(keras_privates.mask_of(keras.layers.Masking()(np.array([[[0.0], [1.0]]])))).tolist() == [
        [False, True]
    ]
    assert keras_privates.mask_of(np.ones(1)) is None


def test_origin_and_inputs_of_call(model):
    origin = keras_privates.origin_of(model.output["two"])
    assert (origin.operation.name, origin.call, origin.tensor_index) == ("two", 0, 0)
    (joined,) = keras_privates.inputs_of_call(origin.operation, origin.call)
    assert keras_privates.origin_of(joined).operation.name == "joined"
    assert keras_privates.origin_of(np.ones(1)) is None


def test_without_optimizer(model):
    import tensorflow as tf

    def saves_optimizer():
        return any(part is model.optimizer for part in tf.train.TrackableView(model).descendants())

    with keras_privates.without_optimizer(model):
        assert not saves_optimizer()
    assert saves_optimizer()


def test_compiled_with(model):
    import keras

    loss, *metrics = keras_privates.compiled_with(model)
    assert (loss["two"], metrics) == ("mae", [])
    model = keras.Sequential([keras.Input((1,)), keras.layers.Dense(1)])
    model.compile("sgd", "mse", metrics=["mae"], weighted_metrics=["mape"])
    assert keras_privates.compiled_with(model) == ["mse", ["mae"], ["mape"]]


def test_check_compiled(model):
    keras_privates.check_compiled(model, model.output)
    with pytest.raises((KeyError, ValueError), match="two"):
        keras_privates.check_compiled(model, {"one": model.output["one"]})


def test_check_compiled_leaves_no_number_of_a_name_behind():
    import keras

    model = keras.Sequential([keras.Input((1,)), keras.layers.Dense(1)])
    model.compile("sgd", "mse", metrics=["AUC"])
    keras.utils.clear_session()
    keras_privates.check_compiled(model, model.outputs[0])
    assert keras.metrics.AUC().name == "auc"


def test_shapes_built_with(model):
    import keras

    class Own(keras.Model):
        def call(self, x):
            return x["pair"][0]

    own = Own()
    assert keras_privates.shapes_built_with(own) is None
    own({"pair": [np.ones((2, 1)), np.ones((2, 3))]})
    assert keras_privates.shapes_built_with(own) == {"pair": ["(2, 1)", "(2, 3)"]}


def test_silent(capsys):
    import keras

    with keras_privates.silent():
        keras.utils.Progbar(2).update(1)
        assert not keras.config.is_interactive_logging_enabled()
    assert keras.config.is_interactive_logging_enabled()


def test_add_to_archive(tmp_path):
    import keras
    import tensorflow as tf

    initializer = tf.lookup.KeyValueTensorInitializer(tf.constant([1]), tf.constant([5]))
    table = tf.lookup.StaticHashTable(initializer, -1)
    archive = keras.export.ExportArchive()
    archive.add_endpoint("look", table.lookup, [tf.TensorSpec([None], tf.int32)])
    keras_privates.add_to_archive(archive, [table])
    with keras_privates.silent():
        archive.write_out(str(tmp_path))
    assert tf.saved_model.load(str(tmp_path)).look(tf.constant([1, 2])).numpy().tolist() == [5, -1]
