import pickle
from concurrent.futures import ThreadPoolExecutor

import numpy as np
import pytest
from elsewhere import run_elsewhere

from tfos_ml.data.casting import TensorInfo
from tfos_ml.errors import ModelError
from tfos_ml.inference.prediction import LossInfo


@pytest.fixture(scope="module", autouse=True)
def keras():
    import keras

    return keras


@pytest.fixture
def describe(keras):
    from tfos_ml.keras.model.inspection import describe

    return describe


@pytest.fixture
def sequential(keras):
    """A compiled sequential model of four inputs."""

    def sequential(*layers, loss="mse", **compiled):
        layers = layers or (keras.layers.Dense(1, name="out"),)
        model = keras.Sequential([keras.layers.Input((4,), name="x"), *layers], name="small")
        model.compile("sgd", loss, **compiled)
        return model

    return sequential


@pytest.fixture
def two_outputs(keras):
    """A functional model of two inputs and two outputs, listed or named."""

    def two_outputs(loss, named=False):
        a, b = keras.layers.Input((4,), name="a"), keras.layers.Input((None,), dtype="int32", name="b")
        hidden = keras.layers.Concatenate()([a, keras.layers.GlobalAveragePooling1D()(keras.layers.Embedding(9, 2)(b))])
        p, q = keras.layers.Dense(1, name="p")(hidden), keras.layers.Dense(3, name="q")(hidden)
        model = keras.Model([a, b], {"first": p, "second": q} if named else [p, q])
        model.compile("sgd", loss)
        return model

    return two_outputs


class TestTensors:
    def test_of_a_sequential_model(self, describe, sequential):
        found = describe(sequential())
        assert found.inputs == {"x": TensorInfo("float32", (None, 4))}
        assert found.outputs == {"out": TensorInfo("float32", (None, 1))}

    def test_of_several_inputs_and_outputs_keep_the_models_order(self, describe, two_outputs):
        found = describe(two_outputs("mse"))
        assert list(found.inputs.items()) == [
            ("a", TensorInfo("float32", (None, 4))),
            ("b", TensorInfo("int32", (None, None))),
        ]
        assert list(found.outputs.items()) == [
            ("p", TensorInfo("float32", (None, 1))),
            ("q", TensorInfo("float32", (None, 3))),
        ]


class TestLosses:
    @pytest.mark.parametrize("from_logits", [True, False])
    @pytest.mark.parametrize("name", ["BinaryCrossentropy", "BinaryFocalCrossentropy"])
    def test_as_objects_keep_their_options(self, describe, sequential, keras, name, from_logits):
        loss = getattr(keras.losses, name)(from_logits=from_logits, reduction="sum")
        found = describe(sequential(loss=loss)).losses
        assert found == {"": LossInfo(name, from_logits, "sum", from_keras=True)}

    def test_of_the_user_are_known_for_such(self, describe, sequential, keras):
        def binary_crossentropy(y, p):
            return y - p

        class Own(keras.losses.Loss):
            def call(self, y, p):
                return y - p

        assert describe(sequential(loss=binary_crossentropy)).losses == {
            "": LossInfo("binary_crossentropy", from_keras=False)
        }
        assert describe(sequential(loss=Own())).losses == {"": LossInfo("Own", from_keras=False)}

    @pytest.mark.parametrize("named", [True, False])
    def test_by_output_as_a_dict(self, describe, two_outputs, keras, named):
        p, q = ("first", "second") if named else ("p", "q")
        found = describe(two_outputs({p: "mse", q: keras.losses.MeanAbsoluteError(reduction="sum")}, named))
        assert found.loss_of(p).key == "meansquarederror"
        assert found.loss_of(q) == LossInfo("MeanAbsoluteError", reduction="sum")


class TestBatchSize:
    @pytest.mark.parametrize(
        ("shape", "options", "reason"),
        [
            ({"batch_shape": (4, 3, 2)}, {}, "input 'x' has a batch of 4"),
            ({"batch_shape": (4, 3, 2)}, {"stateful": True}, "layer 'guilty' is stateful"),
        ],
    )
    def test_must_be_free(self, describe, keras, shape, options, reason):
        layers = [keras.layers.Input(name="x", **shape), keras.layers.SimpleRNN(2, name="guilty", **options)]
        model = keras.Sequential([*layers, keras.layers.Dense(1)])
        model.compile("sgd", "mse")
        with pytest.raises(ModelError, match=rf"batches of one size only: .*{reason}.*shape=\.\.\."):
            describe(model)


class TestPreprocessing:
    def test_layers_that_were_not_adapted_are_named(self, describe, sequential, keras):
        layers = [keras.layers.Input((1,), dtype="string"), keras.layers.StringLookup(name="words")]
        model = keras.Sequential([*layers, keras.layers.Dense(1)])
        model.compile("sgd", "mse")
        found = describe(model)
        assert found.adaptable == found.not_adapted == ["words"]
        with pytest.raises(ModelError, match=r"Preprocessing layers \['words'\] have not been adapted\. Set adaptLay"):
            found.check_adapted([])
        found.check_adapted(["words"])

    @pytest.mark.parametrize(
        ("kind", "dtype", "needed"),
        [
            ("StringLookup", "string", {"vocabulary": ["a", "b"]}),
            ("IntegerLookup", "int64", {"vocabulary": [1, 2]}),
            ("TextVectorization", "string", {"vocabulary": ["a", "b"]}),
            ("Discretization", "float32", {"bin_boundaries": [0.0, 1.0]}),
        ],
    )
    def test_layers_need_a_vocabulary_or_boundaries(self, describe, keras, kind, dtype, needed):
        for options in ({}, needed):
            known = dict(options) if options or kind != "Discretization" else {"num_bins": 3}
            layer = getattr(keras.layers, kind)(name="layer", **known)
            x = keras.layers.Input((1,), dtype=dtype)
            model = keras.Model(x, layer(x))
            model.compile("sgd", "mse")
            assert describe(model).not_adapted == ([] if options else ["layer"])


def test_the_output_of_a_predict_step_is_not_explained_by_the_loss(keras):
    from tfos_ml.inference.prediction import PredictionSpec
    from tfos_ml.keras.model.inspection import describe

    class Named(keras.Sequential):
        def predict_step(self, data):
            return keras.ops.softmax(super().predict_step(data))

    def spec(kind):
        model = kind([keras.layers.Input((4,)), keras.layers.Dense(3)])
        model.compile("sgd", keras.losses.SparseCategoricalCrossentropy(from_logits=True))
        return describe(model).prediction_spec

    assert spec(keras.Sequential) == PredictionSpec("multiclass", from_logits=True)
    assert spec(Named) == PredictionSpec()


class TestRefused:
    @pytest.mark.parametrize("value", [None, 3, "model.keras"])
    def test_what_is_no_model(self, describe, value):
        with pytest.raises(ModelError, match=r"must be, or return, a compiled keras\.Model\. Received: <class"):
            describe(value)


PROGRAM_OF_ITS_OWN = """
import os, sys
import keras, numpy as np
os.chdir(sys.argv[1])
from tfos_ml.keras.model.source import by_registered_names, registered_in_program, source_of, ModelSource
from tfos_ml.protocol.pickling import dumps

FACTOR = 2.0

@keras.saving.register_keras_serializable("own")
class Scaled(keras.layers.Layer):
    def call(self, x):
        return x * FACTOR

class Summed(keras.layers.Layer):
    def call(self, x):
        return keras.ops.sum(x, axis=-1)

@keras.saving.register_keras_serializable("own")
def error(y, p):
    return y - p

model = keras.Sequential([keras.layers.Input((3,)), Scaled(), Summed()])
model.compile("sgd", error)
model.save("model.keras")
source = source_of(model)

def of(model):
    return float(model.predict(np.ones((1, 3), "f"), verbose=0)[0])

assert by_registered_names({"Scaled": Scaled}) == {"own>Scaled": Scaled}
loading = ModelSource(
    function=lambda: keras.saving.load_model("model.keras", custom_objects={"Summed": Summed}),
    custom_objects=registered_in_program(),
)
made = [lambda: of(source.build_for_process()), lambda: of(model), lambda: 2 * of(loading.build_for_process())]
with open("made", "wb") as file:
    file.write(dumps(made))
"""


class TestSource:
    def test_lambdas_go_along_with_what_they_refer_to(self, sequential, keras):
        import cloudpickle

        from tfos_ml.keras.model.source import source_of

        factor = 3.0
        layers = keras.layers
        model = sequential(
            layers.Lambda(lambda x: keras.ops.square(x) * factor, output_shape=lambda shape: shape),
            layers.Dense(2, kernel_initializer="ones", activation=lambda x: np.float32(factor) * x),
            loss=lambda y, p: keras.ops.mean(keras.ops.abs(y - p) * factor, axis=-1),
            metrics=[lambda y, p: keras.ops.mean(y - p)],
        )
        source = cloudpickle.loads(cloudpickle.dumps(source_of(model)))
        again = source.build()
        x, y = np.ones((2, 4), "f"), np.ones((2, 2), "f")
        np.testing.assert_allclose(again.predict(x, verbose=0), np.full((2, 2), 36.0))
        assert again.evaluate(x, y, verbose=0) == [pytest.approx(105.0), pytest.approx(-35.0)]
        assert model.layers[0].function.__name__ == "<lambda>"

    @pytest.mark.parametrize("change", ["lora", "frozen"])
    def test_state_that_keras_does_not_save_goes_along(self, keras, change):
        """In the middle of a training, with the states of the optimizer and of the random generator."""
        from tfos_ml.keras.model.source import source_of

        x = np.random.RandomState(0).randint(0, 6, (48, 6)).astype("f")
        y = x.sum(1)
        inner = keras.Sequential([keras.layers.Embedding(6, 4), keras.layers.EinsumDense("abc,cd->abd", (6, 3))])
        layers = [keras.layers.Input((6,)), inner, keras.layers.Conv1D(2, 2), keras.layers.Flatten()]
        layers += [keras.layers.Dense(8, "relu"), keras.layers.Dropout(0.3), keras.layers.Dense(1)]  # which draws
        model = keras.Sequential(layers)
        if change == "lora":
            for layer in [*inner.layers, model.layers[1], model.layers[3]]:
                layer.enable_lora(2)
        else:
            model.layers[3].kernel.trainable = False
        model.compile(keras.optimizers.Adam(0.05), "mse")
        options = {"batch_size": 8, "epochs": 2, "shuffle": False, "verbose": 0}
        model.fit(x, y, **options)
        again, before = source_of(model).build(), model.get_weights()
        expected = model.fit(x, y, **options).history["loss"]
        np.testing.assert_allclose(again.fit(x, y, **options).history["loss"], expected, rtol=1e-5)
        changed = [not np.array_equal(a, b) for a, b in zip(before, model.get_weights(), strict=True)]
        assert [v.trainable for v in again.weights] == changed

    def test_a_class_with_a_compile_of_its_own_is_compiled_as_it_was(self, keras):
        from tfos_ml.keras.model.source import source_of

        @keras.saving.register_keras_serializable("tests")
        class Filled(keras.Sequential):
            """Compiles itself with defaults, as the tasks of KerasHub do."""

            def __init__(self, *args, **options):
                super().__init__(*args, **options)
                self.compile()

            def compile(self, optimizer="adam", loss="mse", **options):
                super().compile(optimizer, loss, **options)

        model = Filled([keras.layers.Input((4,)), keras.layers.Dense(1)])
        model.compile(keras.optimizers.SGD(0.5, momentum=0.9), keras.losses.MeanAbsoluteError("sum"), metrics=["mse"])
        x, y = np.ones((4, 4), "f"), np.ones((4, 1), "f")
        model.fit(x, y, verbose=0)
        again = source_of(model).build()
        for _ in range(2):
            expected = model.fit(x, y, verbose=0).history
            assert again.fit(x, y, verbose=0).history == expected
        assert again.optimizer.get_config() == model.optimizer.get_config()

    @pytest.mark.slow
    def test_what_a_process_cannot_import_goes_along(self, keras, tmp_path, monkeypatch):
        """Of a model, and of one that a model function captures; and what the program has registered."""
        run_elsewhere(PROGRAM_OF_ITS_OWN, str(tmp_path))
        monkeypatch.chdir(tmp_path)
        assert [load() for load in pickle.loads((tmp_path / "made").read_bytes())] == [6.0, 6.0, 12.0]

    def test_one_name_of_two_classes_is_refused(self, sequential, keras):
        from tfos_ml.keras.model.source import source_of

        def layer(units):
            class Own(keras.layers.Dense):
                pass

            return Own(units)

        with pytest.raises(ModelError, match=r"Different classes or functions .* one name, \['Own'\]"):
            source_of(sequential(layer(2), layer(1)))

    def test_a_class_whose_compile_takes_more_than_a_file_has_is_refused(self, keras):
        from tfos_ml.keras.model.source import source_of

        class Sampled(keras.Sequential):
            def compile(self, *args, sampler="greedy", **options):
                super().compile(*args, **options)

        model = Sampled([keras.layers.Input((4,)), keras.layers.Dense(1)])
        model.compile("sgd", "mse", sampler="top")
        with pytest.raises(
            ModelError, match=r"Sampled.compile has arguments of its own, \['sampler'\].*Pass a function"
        ):
            source_of(model)

    def test_model_that_cannot_be_serialised_is_refused_with_the_way_out(self, sequential, keras):
        from tfos_ml.keras.model.source import save_instance

        class Stuck(keras.layers.Dense):
            def get_config(self):
                raise NotImplementedError("no config of mine.\nmore")

        with pytest.raises(ModelError) as caught:
            save_instance(sequential(Stuck(1)))
        text = str(caught.value)
        assert text.startswith("The model cannot be saved (NotImplementedError: ")
        assert "KerasEstimator(model=make_model)" in text


def test_settings_of_keras_go_along(keras):
    from tfos_ml.keras.model.global_config import GlobalConfig

    config = keras.config
    config.set_dtype_policy(config.dtype_policy())
    begin = GlobalConfig.current()
    config.set_floatx("float64")
    config.set_epsilon(1e-3)
    config.set_image_data_format("channels_first")
    config.set_dtype_policy("mixed_bfloat16")
    try:
        sent = GlobalConfig.current()
    finally:
        begin.apply()
    try:
        sent.apply()
        assert keras.layers.Dense(1).compute_dtype == "bfloat16"
        assert keras.layers.Conv2D(1, 1).data_format == "channels_first"
        assert (config.floatx(), config.epsilon()) == ("float64", 1e-3)
        with ThreadPoolExecutor(1) as pool:  # that of a search, whose policy Keras does not know
            assert pool.submit(GlobalConfig.current, sent).result() == sent
    finally:
        begin.apply()


class TestAllKeras:
    @pytest.fixture
    def names_only_keras(self, sequential):
        from tfos_ml.keras.model.source import source_of

        return lambda *layers, **options: not source_of(sequential(*layers, **options)).custom_objects

    def test_is_false_of_a_users_layer_loss_metric_or_activation(self, names_only_keras, keras):
        class Own(keras.layers.Dense):
            pass

        def own(y, p):
            return keras.ops.abs(y - p)

        class OwnMean(keras.metrics.Mean):
            pass

        @keras.saving.register_keras_serializable("tests_of_describe")
        def act(x):
            return x

        assert names_only_keras(keras.layers.Dense(1, activation="relu", kernel_regularizer="l2"))
        assert not names_only_keras(Own(1))
        assert not names_only_keras(keras.Sequential([Own(1)]))
        assert not names_only_keras(loss=own)
        assert not names_only_keras(metrics=[OwnMean(name="own")])
        assert not names_only_keras(keras.layers.Dense(1, activation=act))
