import pickle
from concurrent.futures import ThreadPoolExecutor

import keras
import numpy as np
import pytest
from elsewhere import run_elsewhere

from tfos_ml.errors import ModelError
from tfos_ml.inference.prediction import LossInfo, PredictionSpec
from tfos_ml.keras.model.global_config import GlobalConfig
from tfos_ml.keras.model.inspection import describe
from tfos_ml.keras.model.source import save_instance, source_of


def sequential(*layers, loss="mse"):
    """A compiled model of four inputs."""
    model = keras.Sequential([keras.layers.Input((4,)), *layers, keras.layers.Dense(1)])
    model.compile("sgd", loss)
    return model


def test_losses_of_the_user_are_known_for_such():
    def binary_crossentropy(y, p):
        return y - p

    class Own(keras.losses.Loss):
        def call(self, y, p):
            return y - p

    assert describe(sequential(loss=binary_crossentropy)).losses == {
        "": LossInfo("binary_crossentropy", from_keras=False)
    }
    assert describe(sequential(loss=Own())).losses == {"": LossInfo("Own", from_keras=False)}


@pytest.mark.parametrize(
    ("kind", "dtype", "needed"),
    [
        ("StringLookup", "string", {"vocabulary": ["a", "b"]}),
        ("Discretization", "float32", {"bin_boundaries": [0.0, 1.0]}),
    ],
)
def test_layers_need_a_vocabulary_or_boundaries(kind, dtype, needed):
    for options in ({}, needed):
        known = dict(options) if options or kind != "Discretization" else {"num_bins": 3}
        layer = getattr(keras.layers, kind)(name="layer", **known)
        x = keras.layers.Input((1,), dtype=dtype)
        model = keras.Model(x, layer(x))
        model.compile("sgd", "mse")
        found = describe(model)
        assert found.not_adapted == ([] if options else ["layer"])
        found.check_adapted(["layer"])
        if not options:
            with pytest.raises(ModelError, match=r"layers \['layer'\] have not been adapted\. Set adaptLayers"):
                found.check_adapted([])


def test_the_output_of_a_predict_step_is_not_explained_by_the_loss():
    class Named(keras.Sequential):
        def predict_step(self, data):
            return keras.ops.softmax(super().predict_step(data))

    def spec(kind):
        model = kind([keras.layers.Input((4,)), keras.layers.Dense(3)])
        model.compile("sgd", keras.losses.SparseCategoricalCrossentropy(from_logits=True))
        return describe(model).prediction_spec

    assert spec(keras.Sequential) == PredictionSpec("multiclass", from_logits=True)
    assert spec(Named) == PredictionSpec()


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
    def test_state_that_keras_does_not_save_goes_along(self):
        """In the middle of a training, with the states of the optimizer and of the random generator."""
        x = np.random.RandomState(0).randint(0, 6, (48, 6)).astype("f")
        y = x.sum(1)
        inner = keras.Sequential([keras.layers.Embedding(6, 4), keras.layers.EinsumDense("abc,cd->abd", (6, 3))])
        layers = [keras.layers.Input((6,)), inner, keras.layers.Conv1D(2, 2), keras.layers.Flatten()]
        layers += [keras.layers.Dense(8, "relu"), keras.layers.Dropout(0.3), keras.layers.Dense(1)]  # which draws
        model = keras.Sequential(layers)
        for layer in [*inner.layers, model.layers[1]]:
            layer.enable_lora(2)
        model.layers[3].kernel.trainable = False
        model.compile(keras.optimizers.Adam(0.05), "mse")
        options = {"batch_size": 8, "epochs": 2, "shuffle": False, "verbose": 0}
        model.fit(x, y, **options)
        again, before = source_of(model).build(), model.get_weights()
        expected = model.fit(x, y, **options).history["loss"]
        np.testing.assert_allclose(again.fit(x, y, **options).history["loss"], expected, rtol=1e-5)
        changed = [not np.array_equal(a, b) for a, b in zip(before, model.get_weights(), strict=True)]
        assert [v.trainable for v in again.weights] == changed

    def test_a_class_with_a_compile_of_its_own_is_compiled_as_it_was(self):
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
    def test_what_a_process_cannot_import_goes_along(self, tmp_path, monkeypatch):
        """Of a model, and of one that a model function captures; and what the program has registered."""
        run_elsewhere(PROGRAM_OF_ITS_OWN, str(tmp_path))
        monkeypatch.chdir(tmp_path)
        assert [load() for load in pickle.loads((tmp_path / "made").read_bytes())] == [6.0, 6.0, 12.0]

    def test_one_name_of_two_classes_is_refused(self):
        def layer(units):
            class Own(keras.layers.Dense):
                pass

            return Own(units)

        with pytest.raises(ModelError, match=r"Different classes or functions .* one name, \['Own'\]"):
            source_of(sequential(layer(2), layer(1)))

    def test_a_class_whose_compile_takes_more_than_a_file_has_is_refused(self):
        class Sampled(keras.Sequential):
            def compile(self, *args, sampler="greedy", **options):
                super().compile(*args, **options)

        model = Sampled([keras.layers.Input((4,)), keras.layers.Dense(1)])
        model.compile("sgd", "mse", sampler="top")
        with pytest.raises(
            ModelError, match=r"Sampled.compile has arguments of its own, \['sampler'\].*Pass a function"
        ):
            source_of(model)

    def test_model_that_cannot_be_serialised_is_refused_with_the_way_out(self):
        class Stuck(keras.layers.Dense):
            def get_config(self):
                raise NotImplementedError("no config of mine")

        with pytest.raises(ModelError, match=r"cannot be saved \(NotImplementedError: .*KerasEstimator\(model=make_"):
            save_instance(sequential(Stuck(1)))


def test_settings_of_keras_go_along():
    config = keras.config
    config.set_dtype_policy(config.dtype_policy())
    begin = GlobalConfig.current()
    config.set_epsilon(1e-3)
    config.set_image_data_format("channels_first")
    config.set_dtype_policy("mixed_bfloat16")
    try:
        sent = GlobalConfig.current()
        begin.apply()
        sent.apply()
        assert keras.layers.Dense(1).compute_dtype == "bfloat16"
        assert keras.layers.Conv2D(1, 1).data_format == "channels_first"
        assert config.epsilon() == 1e-3
        with ThreadPoolExecutor(1) as pool:  # that of a search, whose policy Keras does not know
            assert pool.submit(GlobalConfig.current, sent).result() == sent
    finally:
        begin.apply()
