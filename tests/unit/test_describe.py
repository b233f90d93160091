import json

import numpy as np
import pytest

from tfos_ml.data.casting import TensorInfo
from tfos_ml.data.schema import ColumnSpec
from tfos_ml.errors import ModelError, ParamError
from tfos_ml.inference.prediction import LossInfo
from tfos_ml.keras.column_checks import check_class_weight

LABEL = ColumnSpec("label", "y", "label", "float32", 0)


@pytest.fixture(scope="module", autouse=True)
def keras():
    import keras

    return keras


@pytest.fixture
def describe(keras):
    from tfos_ml.keras.inspection import describe

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


@pytest.fixture
def subclassed(keras):
    """A model that has no inputs before it is called."""

    class Own(keras.Model):
        def __init__(self):
            super().__init__(name="own")
            self.dense = keras.layers.Dense(1)

        def call(self, x):
            return self.dense(x)

    model = Own()
    model.compile("sgd", "mse")
    return model


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

    def test_of_named_outputs_have_those_names(self, describe, two_outputs):
        assert list(describe(two_outputs("mse", named=True)).outputs) == ["first", "second"]

    def test_of_a_subclassed_or_unbuilt_model_are_not_known(self, describe, subclassed, keras):
        unbuilt = keras.Sequential([keras.layers.Dense(1)])
        unbuilt.compile("sgd", "mse")
        for model in (subclassed, unbuilt):
            assert describe(model).inputs is None
            assert describe(model).outputs is None


class TestLosses:
    @pytest.mark.parametrize("loss", ["mse", "mean_squared_error"])
    def test_by_name_are_resolved(self, describe, sequential, loss):
        (found,) = describe(sequential(loss=loss)).losses.values()
        assert (found.key, found.from_keras, found.from_logits) == ("meansquarederror", True, False)
        assert found.reduction == "sum_over_batch_size"

    @pytest.mark.parametrize("from_logits", [True, False])
    @pytest.mark.parametrize("name", ["BinaryCrossentropy", "BinaryFocalCrossentropy"])
    def test_as_objects_keep_their_options(self, describe, sequential, keras, name, from_logits):
        loss = getattr(keras.losses, name)(from_logits=from_logits, reduction="sum")
        found = describe(sequential(loss=loss)).losses
        assert found == {"": LossInfo(name, from_logits, "sum", from_keras=True)}

    @pytest.mark.parametrize("name", ["CategoricalCrossentropy", "SparseCategoricalCrossentropy"])
    def test_of_several_classes_tell_logits(self, describe, sequential, keras, name):
        loss = getattr(keras.losses, name)(from_logits=True)
        assert describe(sequential(keras.layers.Dense(3), loss=loss)).losses[""].from_logits

    def test_as_functions_of_keras_are_known(self, describe, sequential, keras):
        (found,) = describe(sequential(loss=keras.losses.binary_crossentropy)).losses.values()
        assert (found.name, found.from_keras) == ("binary_crossentropy", True)

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

    def test_by_output_as_a_list(self, describe, two_outputs):
        found = describe(two_outputs(["mse", "mae"]))
        assert [found.loss_of(name).key for name in ("p", "q")] == ["meansquarederror", "meanabsoluteerror"]

    def test_of_all_outputs_is_that_of_each(self, describe, two_outputs):
        found = describe(two_outputs("mse"))
        assert found.loss_of("p") == found.loss_of("q") == found.losses[""]

    @pytest.mark.parametrize("loss", [["mse", None], {"p": "mse", "q": None}])
    def test_that_an_output_has_none_of_is_none(self, describe, two_outputs, loss):
        found = describe(two_outputs(loss))
        assert found.loss_of("p").key == "meansquarederror"
        assert found.loss_of("q") is None

    def test_may_be_left_to_the_model(self, describe, sequential):
        assert describe(sequential(loss=None)).losses == {}


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


class TestClassWeight:
    @pytest.mark.parametrize(
        ("loss", "units", "label"),
        [
            ("binary_crossentropy", 1, ()),
            ("binary_crossentropy", 1, (None,)),
            ("binary_crossentropy", 1, (1,)),
            ("sparse_categorical_crossentropy", 3, ()),
            ("sparse_categorical_crossentropy", 3, (1,)),
            ("categorical_crossentropy", 3, (3,)),
        ],
    )
    def test_is_of_labels_of_one_class(self, describe, sequential, keras, loss, units, label):
        check_class_weight(LABEL, label, describe(sequential(keras.layers.Dense(units), loss=loss)))

    @pytest.mark.parametrize(
        ("loss", "units", "label"),
        [
            ("binary_crossentropy", 3, (None,)),  # several labels a row
            ("binary_crossentropy", 3, (3,)),
            ("sparse_categorical_crossentropy", 3, (5,)),  # one a position
            ("categorical_crossentropy", 3, (5, 3)),
            ("mse", 1, (8, 8)),  # masks
        ],
    )
    def test_is_refused_for_labels_of_several_positions(self, describe, sequential, keras, loss, units, label):
        with pytest.raises(ParamError, match=r"label column 'y' have the shape .*weightCol"):
            check_class_weight(LABEL, label, describe(sequential(keras.layers.Dense(units), loss=loss)))


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

    def test_normalization_that_changes_nothing_may_be_meant(self, describe, sequential, keras):
        """As that of keras.applications is before its weights are loaded, or after rows of mean 0 and variance 1."""
        standard = keras.layers.Normalization(name="standard", axis=None)
        standard.adapt(np.array([[-1.0, 1.0]]))
        found = describe(sequential(keras.layers.Normalization(name="bare"), standard, keras.layers.Dense(1)))
        assert (found.not_adapted, found.idle_scalers) == ([], ["bare", "standard"])
        found.check_adapted([])

    def test_layers_that_know_their_statistics_may_be_adapted_but_need_not(self, describe, sequential, keras):
        adapted = keras.layers.Normalization(name="adapted")
        adapted.adapt(np.array([[1.0, 2, 3, 4], [5, 6, 7, 9]]))
        given = keras.layers.Normalization(mean=1.0, variance=2.0, name="given")
        found = describe(sequential(adapted, given, keras.layers.Dense(1)))
        assert found.adaptable == ["adapted", "given"]
        assert found.not_adapted == found.idle_scalers == []
        found.check_adapted([])
        found.check_adapted(["given"])

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

    def test_names_of_no_such_layer_are_refused_with_those_there_are(self, describe, sequential, keras):
        found = describe(sequential(keras.layers.Normalization(name="scale"), keras.layers.Dense(1, name="out")))
        with pytest.raises(ModelError, match=r"adaptLayers names \['out'\], .* preprocessing layers are \['scale'\]"):
            found.check_adapted(["out", "scale"])


class TestRefused:
    def test_model_that_is_not_compiled(self, describe, keras):
        with pytest.raises(ModelError, match=r"The model 'bare' is not compiled\. Call model\.compile"):
            describe(keras.Sequential([keras.layers.Dense(1)], name="bare"))

    def test_model_with_several_optimizers(self, describe, subclassed, keras):
        subclassed.critics = keras.optimizers.Adam()
        with pytest.raises(ModelError, match=r"'own' has more than one optimizer \(\['optimizer', 'critics'\]\)"):
            describe(subclassed)

    @pytest.mark.parametrize("value", [None, 3, "model.keras"])
    def test_what_is_no_model(self, describe, value):
        with pytest.raises(ModelError, match=r"must be, or return, a compiled keras\.Model\. Received: <class"):
            describe(value)

    @pytest.mark.parametrize("loss", [{"p": "mse"}, {"p": "mse", "other": "mse"}, {"p": "mse", "q": "mae", "r": "mse"}])
    def test_losses_that_keras_refuses(self, describe, two_outputs, loss):
        model = two_outputs(loss)
        with pytest.raises(ModelError, match=r"refuses the losses or metrics .* Its outputs are \['p', 'q'\]"):
            describe(model)

    def test_metrics_that_keras_refuses(self, describe, two_outputs):
        model = two_outputs("mse")
        model.compile("sgd", "mse", metrics={"p": ["mae"], "other": ["mae"]})
        with pytest.raises(ModelError, match="refuses the losses or metrics .*other"):
            describe(model)

    def test_layer(self, describe, keras):
        with pytest.raises(ModelError, match="Received: <class '.*Dense'>"):
            describe(keras.layers.Dense(1))

    def test_model_of_keras_2(self, describe):
        tf_keras = pytest.importorskip("tf_keras")
        model = tf_keras.Sequential([tf_keras.layers.Dense(1)])
        model.compile("sgd", "mse")
        with pytest.raises(ModelError, match=r"is one of tf_keras \(Keras 2\)\..*TF_USE_LEGACY_KERAS"):
            describe(model)


def test_description_survives_json(describe, two_outputs, keras):
    from tfos_ml.keras.inspection import ModelDescription

    unbuilt = keras.Sequential([keras.layers.Normalization(), keras.layers.Dropout(0.1), keras.layers.Dense(1)])
    unbuilt.compile("sgd", None)
    for model in (two_outputs(["mse", keras.losses.CategoricalCrossentropy(from_logits=True)]), unbuilt):
        found = describe(model)
        assert ModelDescription.from_json(json.loads(json.dumps(found.to_json()))) == found


class TestSource:
    def test_saved_model_is_built_again_as_it_was(self, sequential):
        from tfos_ml.keras.model_source import ModelSource, save_instance

        model = sequential(metrics=["mae"])
        again = ModelSource(archive=save_instance(model)).build()
        assert again is not model
        assert again.compiled
        for one, other in zip(model.get_weights(), again.get_weights(), strict=True):
            np.testing.assert_array_equal(one, other)

    def test_function_gets_its_arguments(self, sequential, keras):
        from tfos_ml.keras.model_source import ModelSource

        source = ModelSource(function=lambda units: sequential(keras.layers.Dense(units)), arguments={"units": 7})
        assert source.build().output_shape == (None, 7)

    def test_lambdas_go_along_with_what_they_refer_to(self, sequential, keras):
        import cloudpickle

        from tfos_ml.keras.model_source import source_of

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

    def test_model_that_cannot_be_serialized_is_refused_with_the_way_out(self, sequential, keras):
        from tfos_ml.keras.model_source import save_instance

        class Stuck(keras.layers.Dense):
            def get_config(self):
                raise NotImplementedError("no config of mine.\nmore")

        with pytest.raises(ModelError) as caught:
            save_instance(sequential(Stuck(1)))
        text = str(caught.value)
        assert text.startswith("The model cannot be saved (NotImplementedError: ")
        assert "KerasEstimator(model=make_model)" in text

    def test_model_that_only_its_process_could_load_is_refused(self, sequential, keras):
        from tfos_ml.keras.model_source import ModelSource, save_instance

        class Unknown(keras.layers.Dense):
            pass

        archive = save_instance(sequential(Unknown(1, name="out")))
        with pytest.raises(ModelError, match="The nodes cannot load the model"):
            ModelSource(archive=archive).build()
        rebuilt = ModelSource(archive=archive, custom_objects={"Unknown": Unknown}).build()
        assert isinstance(rebuilt.layers[-1], Unknown)


class TestAllKeras:
    @pytest.fixture
    def names_only_keras(self, sequential):
        from tfos_ml.keras.model_source import is_all_keras, source_of

        return lambda *layers, **options: is_all_keras(source_of(sequential(*layers, **options)))

    def test_is_true_of_kerass_own_layers_losses_and_metrics(self, names_only_keras, keras):
        inner = keras.Sequential([keras.layers.Dense(2, kernel_regularizer="l2", activation="gelu")])
        layers = [inner, keras.layers.Dense(1, kernel_initializer=keras.initializers.GlorotNormal(seed=1))]
        loss = keras.losses.BinaryCrossentropy(from_logits=True)
        assert names_only_keras(*layers, loss=loss, metrics=["mae", keras.metrics.AUC()])
        assert names_only_keras(loss="mse", metrics=["accuracy"])

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

        assert not names_only_keras(Own(1))
        assert not names_only_keras(keras.Sequential([Own(1)]))
        assert not names_only_keras(loss=own)
        assert not names_only_keras(metrics=[OwnMean(name="own")])
        assert not names_only_keras(keras.layers.Dense(1, activation=act))

    def test_is_false_of_a_layer_of_the_main_program_of_which_keras_notes_no_module(self, names_only_keras, keras):
        own = type("Own", (keras.layers.Layer,), {"__module__": "__main__", "call": lambda self, x: 2 * x})
        assert not names_only_keras(own())
