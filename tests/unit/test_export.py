import contextlib
import functools
import json
import os
import resource
import shutil
from dataclasses import replace

import keras
import numpy as np
import pytest
import tensorflow as tf

from tfos_ml.data.schema import ColumnSpec, FeedSchema
from tfos_ml.errors import DestinationError, ModelError
from tfos_ml.inference.archive import pack
from tfos_ml.inference.prediction import PREDICTION_SPEC_FILE, PredictionSpec
from tfos_ml.inference.publishing import check_destination, commit, discard, fetch, stage
from tfos_ml.inference.saved_model import (
    SIGNATURE_FILE,
    Signature,
    TensorInfo,
    load,
    parse_signature,
    read_signature,
)
from tfos_ml.worker.export import can_be_served, export_saved_model, is_distributed, prepare
from tfos_ml.worker.prediction_spec import write_prediction_spec

KEY = "serving_default"
FLAT = ColumnSpec("features", "pixels", "feature", "float32", 1)
LABEL = ColumnSpec("label", "label", "label", "int32", 0)
SINGLE = FeedSchema((FLAT, LABEL)), [(4,), ()]
PAIR = (
    FeedSchema(
        (ColumnSpec("left", "l", "feature", "float32", 1), ColumnSpec("right", "r", "feature", "float32", 1), LABEL),
        named_features=True,
    ),
    [(2,), (3,), ()],
)
ROWS = np.arange(12, dtype=np.float32).reshape(3, 4)
LEFT, RIGHT = ROWS[:, :2], ROWS[:, 1:]


def floats(*inner):
    return TensorInfo("float32", (None, *inner))


def publish(source, uri, run_id):
    """What the chief does, and then the driver."""
    stage(source, uri, run_id)
    try:
        commit(uri, run_id)
    except BaseException:
        discard(uri, run_id)
        raise


@pytest.fixture
def export(tmp_path):
    """Exports a model; returns its signature and its outputs for inputs by name."""

    def export(model, columns=SINGLE, signatures=None, key=KEY, **inputs):
        path = str(tmp_path / "saved_model")
        export_saved_model(model, path, *columns, signatures, key)
        function = tf.saved_model.load(path).signatures[key]
        outputs = {name: value.numpy() for name, value in function(**map_constants(inputs)).items()}
        return read_signature(path, key), outputs

    export.path = str(tmp_path / "saved_model")
    return export


def map_constants(inputs):
    return {name: tf.constant(value) for name, value in inputs.items()}


def two_inputs(kind):
    """A functional model that takes two inputs as a dict or as a list, and what it takes."""
    left, right = keras.Input((2,), name="left"), keras.Input((3,), name="right")
    joined = keras.layers.Dense(2, name="joined")(keras.layers.Concatenate()([left, right]))
    return keras.Model({"left": left, "right": right} if kind == "dict" else [left, right], joined)


class Doubling(keras.Model):
    """Subclassed; called with one tensor or a dict of several."""

    def __init__(self, answer=lambda y: y):
        super().__init__()
        self.dense = keras.layers.Dense(2)
        self.answer = answer

    def call(self, inputs):
        if isinstance(inputs, dict):
            inputs = keras.ops.concatenate([inputs["left"], inputs["right"]], axis=1)
        return self.answer(self.dense(inputs))


class Scale(tf.Module):
    def __init__(self, dtype=tf.float32):
        super().__init__()
        self.factor = tf.Variable(3.0, dtype=dtype)

    def __call__(self, features):
        if isinstance(features, dict):
            return {"sum": tf.reduce_sum(features["left"], 1) + tf.reduce_sum(features["right"], 1)}
        return features * self.factor

    @tf.function(input_signature=[tf.TensorSpec((None,), tf.string, "words")])
    def lengths(self, words):
        return {"length": tf.strings.length(words)}


class TestSignatureNames:
    def test_functional_model_has_input_features_and_its_layer_as_output(self, export):
        given = keras.Input((4,), name="anything")
        model = keras.Model(given, keras.layers.Dense(2, name="scores")(given))
        signature, outputs = export(model, features=ROWS)
        assert signature == Signature({"features": floats(4)}, {"scores": floats(2)})
        np.testing.assert_allclose(outputs["scores"], model(ROWS), rtol=1e-6)

    @pytest.mark.parametrize("kind", ["dict", "list"])
    def test_several_inputs_have_the_names_of_the_mapping(self, export, kind):
        model = two_inputs(kind)
        signature, outputs = export(model, PAIR, left=LEFT, right=RIGHT)
        assert signature == Signature({"left": floats(2), "right": floats(3)}, {"joined": floats(2)})
        expected = model({"left": LEFT, "right": RIGHT} if kind == "dict" else [LEFT, RIGHT])
        np.testing.assert_allclose(outputs["joined"], expected, rtol=1e-6)

    def test_subclassed_model(self, export):
        model = Doubling()
        signature, outputs = export(model, features=ROWS)
        assert signature == Signature({"features": floats(4)}, {"output_0": floats(2)})
        np.testing.assert_allclose(outputs["output_0"], model(ROWS), rtol=1e-6)

    def test_plain_module(self, export):
        signature, outputs = export(Scale(), features=ROWS)
        assert signature == Signature({"features": floats(4)}, {"output_0": floats(4)})
        assert outputs["output_0"].tolist() == (3 * ROWS).tolist()

    def test_a_module_in_float64_is_served_in_float64(self, export):
        schema, shapes = SINGLE
        doubles = replace(schema, columns=tuple(replace(column, dtype="float64") for column in schema.columns))
        rows = ROWS.astype("float64")
        signature, outputs = export(Scale(tf.float64), (doubles, shapes), features=rows)
        assert signature.inputs == {"features": TensorInfo("float64", (None, 4))}
        assert outputs["output_0"].tolist() == (3 * rows).tolist()

    def test_signatures_of_the_users_own_are_taken_as_they_are(self, export):
        module = Scale()
        signature, outputs = export(module, signatures=module.lengths, words=["a", "bcd"])
        assert signature == Signature(
            {"words": TensorInfo("string", (None,))}, {"length": TensorInfo("int32", (None,))}
        )
        assert outputs["length"].tolist() == [1, 3]

    def test_an_optimizer_is_saved_where_a_signature_reads_it(self, export, tmp_path):
        model = keras.Sequential([keras.layers.Input((4,)), keras.layers.Dense(1)])
        model.compile("adam", "mse")
        model.optimizer.build(model.trainable_variables)

        @tf.function(input_signature=[tf.TensorSpec([None, 4], name="features")])
        def served(features):
            return {"y": model(features) + keras.ops.cast(model.optimizer.iterations, "float32")}

        _, outputs = export(model, signatures=served, features=ROWS)
        assert outputs["y"] == pytest.approx(model(ROWS).numpy())
        saved = [name for name, _ in tf.train.list_variables(str(tmp_path / "saved_model" / "variables" / "variables"))]
        assert len([name for name in saved if "VARIABLE" in name]) == 8
        model.fit(np.zeros((2, 4), "float32"), np.zeros(2), verbose=0)

    @pytest.mark.parametrize("reads_optimizer", [False, True])
    def test_an_optimizer_is_saved_only_where_the_model_reads_it(self, export, tmp_path, reads_optimizer):
        class Model(keras.Model):
            def __init__(self):
                super().__init__()
                self.dense = keras.layers.Dense(1)

            def call(self, x):
                steps = keras.ops.cast(self.optimizer.iterations, "float32") if reads_optimizer else 1.0
                return self.dense(x) * steps

        model = Model()
        model.compile("adam", "mse")
        model(ROWS)
        model.optimizer.build(model.trainable_variables)
        _, outputs = export(model, features=ROWS)
        assert outputs["output_0"] == pytest.approx(model(ROWS).numpy())
        saved = [name for name, _ in tf.train.list_variables(str(tmp_path / "saved_model" / "variables" / "variables"))]
        assert len([name for name in saved if "VARIABLE" in name]) == 2 + reads_optimizer
        assert "optimizer" in model._trackable_children()


class Sampling(keras.layers.Layer):
    """As the encoder of a variational autoencoder has it."""

    def __init__(self):
        super().__init__()
        self.generator = keras.random.SeedGenerator(1)

    def call(self, x):
        return x + 0 * keras.random.normal(keras.ops.shape(x), seed=self.generator)


class Unheld(keras.layers.Layer):
    """Uses a layer that none of its attributes holds."""

    def __init__(self):
        super().__init__()
        layer = keras.layers.Dense(4)
        self.apply = lambda x: layer(x)

    def call(self, x):
        return self.apply(x)


class Counting(keras.layers.Layer):
    def __init__(self):
        super().__init__()
        self.seen = keras.metrics.Mean()

    def call(self, x):
        self.seen.update_state(x)
        return x


def table_of(values):
    keys = tf.range(len(values), dtype=tf.int64)
    return tf.lookup.StaticHashTable(tf.lookup.KeyValueTensorInitializer(keys, tf.constant(values)), -1.0)


def in_lambdas():
    table, factor, keras_factor = table_of([5.0, 6.0, 7.0]), tf.Variable(2.0), keras.Variable(3.0)
    return [
        keras.layers.Lambda(lambda x: x * factor),
        keras.layers.Lambda(lambda x: x * keras_factor),
        keras.layers.Lambda(lambda x: table.lookup(tf.cast(x, tf.int64) % 4)),
    ]


class Cents(keras.Model):
    """Predicts in another unit than that of its loss."""

    def predict_step(self, data):
        return 100.0 * super().predict_step(data)


class Words(keras.Sequential):
    def predict_step(self, data):
        return {"word": tf.gather(["no", "yes"], tf.argmax(super().predict_step(data), -1))}


class Uncalled(keras.Model):
    """Has no ``call``."""

    def __init__(self):
        super().__init__()
        self.decoder = keras.layers.Dense(2)

    def predict_step(self, data):
        return self.decoder(data)


class InPython(keras.Sequential):
    def predict_step(self, data):
        return super().predict_step(data).numpy()


class TestPredictStep:
    """What ``model.predict`` returns is what is exported."""

    @pytest.mark.parametrize("kind", ["one", "dict", "list"])
    def test_takes_inputs_as_predict_gives_them(self, export, kind):
        if kind == "one":
            model = Cents(x := keras.Input((4,)), keras.layers.Dense(2)(x))
        else:
            plain = two_inputs(kind)
            model = Cents(plain.input, plain.output)
        named = {"features": ROWS} if kind == "one" else {"left": LEFT, "right": RIGHT}
        given = {"one": ROWS, "list": [LEFT, RIGHT], "dict": named}[kind]
        _, outputs = export(model, SINGLE if kind == "one" else PAIR, **named)
        (served,) = outputs.values()
        np.testing.assert_allclose(served, model.predict(given, verbose=0), rtol=1e-5)

    def test_can_return_other_outputs_than_the_model(self, export):
        model = Words([keras.Input((4,)), keras.layers.Dense(2)])
        signature, outputs = export(model, features=ROWS)
        assert signature.outputs == {"word": TensorInfo("string", (None,))}
        assert outputs["word"].tolist() == model.predict(ROWS, verbose=0)["word"].tolist()

    def test_can_be_an_attribute_of_the_model_and_need_no_call(self, export):
        uncalled, lent = Uncalled(), keras.Sequential([keras.Input((4,)), keras.layers.Dense(2)])
        lent.predict_step = lambda data: lent(data) + 1.0
        assert can_be_served(uncalled)
        _, outputs = export(lent, features=ROWS)
        np.testing.assert_allclose(next(iter(outputs.values())), lent(ROWS) + 1.0, rtol=1e-6)
        shutil.rmtree(export.path)
        _, outputs = export(uncalled, features=ROWS)
        np.testing.assert_allclose(outputs["output_0"], uncalled.decoder(ROWS), rtol=1e-6)

    def test_that_runs_in_python_is_told_before_the_training(self):
        model = InPython([keras.Input((4,)), keras.layers.Dense(2)])
        assert "numpy" in prepare(model, {"features": floats(4)}, KEY).reason


class TestWhatFunctionsUse:
    """Variables and tables, whether the model knows of them or not; all classes of Keras are in ``test_zoo.py``."""

    def test_is_saved(self, export):
        cells = keras.layers.RNN([keras.layers.LSTMCell(4, dropout=0.2)])  # which have seeds of their own
        layers = [*in_lambdas(), Sampling(), Unheld(), Counting(), keras.layers.Reshape((2, 2)), cells]
        given = keras.Input((4,))
        model = keras.Model(given, functools.reduce(lambda x, layer: layer(x), layers, given))
        _, outputs = export(model, features=ROWS)
        np.testing.assert_allclose(next(iter(outputs.values())), model(ROWS, training=False), rtol=1e-5, atol=1e-6)

    def test_python_is_refused(self, tmp_path):
        model = keras.Sequential(
            [
                keras.Input((4,)),
                keras.layers.Lambda(lambda x: tf.ensure_shape(tf.numpy_function(np.abs, [x], tf.float32), x.shape)),
            ]
        )
        with pytest.raises(ModelError, match="calls Python"):
            export_saved_model(model, str(tmp_path / "m"), *SINGLE, None, KEY)


NAMES = ["class", "from", "self", "a b", "a_b", "sepal length (cm)", "od280/od315_of_diluted_wines", "1st", "größe"]
NAMES += ["_c0", "a.b", "A", "a", "args", "inputs", "name"]


class Named(keras.Model):
    """Each input, times a weight and its number, under the same name."""

    def __init__(self):
        super().__init__()
        self.weight = self.add_weight(shape=(), initializer="ones", name="weight")

    def call(self, inputs):
        return {name: inputs[name] * self.weight * i for i, name in enumerate(NAMES)}


class TestNamesAreData:
    def test_any_names_of_inputs_and_outputs(self, tmp_path):
        columns = FeedSchema(tuple(ColumnSpec(n, n, "feature", "float32", 0) for n in NAMES), named_features=True)
        export_saved_model(Named(), str(tmp_path), columns, [()] * len(NAMES), None, KEY)
        text = (tmp_path / SIGNATURE_FILE).read_bytes()
        signature = parse_signature(text, KEY)
        assert set(signature.inputs) == set(signature.outputs) == set(NAMES)
        outputs = load(tmp_path, KEY, "serve")(**{name: tf.constant([1.0, 2.0]) for name in NAMES})
        assert {name: value.numpy().tolist() for name, value in outputs.items()} == {
            name: [1.0 * i, 2.0 * i] for i, name in enumerate(NAMES)
        }

    def test_parts_of_nested_inputs_are_named_by_their_paths(self, export):
        parts = {"pair": [keras.Input((2,)), keras.Input((3,))], "one": keras.Input((1,), name="one")}
        model = keras.Model(parts, {"y": [keras.layers.Concatenate()([*parts["pair"], parts["one"]])]})
        tensors = {"pair/0": LEFT, "pair/1": RIGHT, "one": LEFT[:, :1]}
        schema = FeedSchema(tuple(ColumnSpec(n, n, "feature", "float32", 1) for n in tensors), named_features=True)
        path = export.path
        export_saved_model(model, path, schema, [(2,), (3,), (1,)], None, KEY)
        outputs = load(path, KEY, "serve")(**map_constants(tensors))
        assert outputs["y/0"].numpy().tolist() == np.concatenate([LEFT, RIGHT, LEFT[:, :1]], axis=1).tolist()


def test_a_variable_of_a_strategy_anywhere_in_a_model_makes_it_distributed():
    model = tf.Module()
    model.parts = [Scale()]
    with tf.distribute.MirroredStrategy(["CPU:0"]).scope():
        model.extra = {"a": [tf.Variable(1.0)]}
    assert is_distributed(model)


class TestErrors:
    def test_module_that_cannot_be_called_needs_signatures(self, tmp_path):
        with pytest.raises(ModelError, match=r"A Module cannot be called, so it needs signatures="):
            export_saved_model(tf.Module(), str(tmp_path / "m"), *SINGLE, None, KEY)

    def test_directory_without_a_model_is_named(self, tmp_path):
        with pytest.raises(ModelError, match=f"There is no SavedModel in {tmp_path}"):
            read_signature(tmp_path)

    def test_wrong_key_is_answered_with_the_keys_there_are(self, export, tmp_path):
        signature, _ = export(Scale(), features=ROWS)
        with pytest.raises(ModelError, match=r"has no signature 'scale'\. It has: \['serving_default'\]"):
            read_signature(tmp_path / "saved_model", "scale")
        text = (tmp_path / "saved_model" / SIGNATURE_FILE).read_bytes()
        assert parse_signature(text, KEY) == signature
        assert parse_signature(text, "other") is None


@pytest.fixture
def source(tmp_path):
    """What a SavedModel looks like."""
    made = tmp_path / "source"
    (made / "variables").mkdir(parents=True)
    (made / "assets").mkdir()
    (made / "saved_model.pb").write_bytes(b"graph")
    (made / "variables" / "variables.data").write_bytes(bytes(1 << 20))
    return made


def contents(directory):
    return {str(p.relative_to(directory)): p.read_bytes() if p.is_file() else None for p in directory.rglob("*")}


@contextlib.contextmanager
def full_disk(room):
    """No file may grow beyond `room` bytes: writing fails as on a full disk."""
    soft, hard = resource.getrlimit(resource.RLIMIT_FSIZE)
    resource.setrlimit(resource.RLIMIT_FSIZE, (room, hard))
    try:
        yield
    finally:
        resource.setrlimit(resource.RLIMIT_FSIZE, (soft, hard))


class TestPublish:
    @pytest.mark.parametrize(("scheme", "target"), [("", "with space/ü/"), ("file://", "with%20space/%C3%BC")])
    def test_whole_model_appears_at_the_target(self, source, tmp_path, scheme, target):
        assert check_destination(f"{scheme}{tmp_path}/out/{target}") is None
        publish(str(source), f"{scheme}{tmp_path}/out/{target}", "run1")
        written = tmp_path / "out" / "with space" / "ü"
        assert contents(written) == contents(source)
        assert list(written.parent.iterdir()) == [written]

    def test_failed_copy_leaves_nothing(self, source, tmp_path):
        target = tmp_path / "out" / "model"
        target.parent.mkdir()
        with full_disk(room=1 << 16), pytest.raises(OSError, match="too large"):
            publish(str(source), str(target), "run1")
        assert list(target.parent.iterdir()) == []

    def test_what_another_run_has_published_meanwhile_is_kept(self, source, tmp_path):
        target = tmp_path / "out"
        target.mkdir()
        (target / "theirs").write_text("kept")
        with pytest.raises(Exception):  # noqa: B017, PT011  (which one is not promised)
            publish(str(source), str(target), "run1")
        assert contents(target) == {"theirs": b"kept"}
        assert not list(tmp_path.glob("*.partial-*"))

    def test_of_several_attempts_only_the_one_that_the_driver_commits_counts(self, source, tmp_path):
        target = tmp_path / "out"
        for run_id in ("cut off", "restarted"):
            stage(str(source), str(target), run_id)
        commit(str(target), "restarted")
        stage(str(source), str(target), "late")
        assert contents(target) == contents(source)
        with pytest.raises(DestinationError, match="is not empty any more"):
            commit(str(target), "late")
        assert contents(target) == contents(source)

    def test_what_the_driver_cannot_write_is_a_typed_error(self, source, tmp_path):
        parent = tmp_path / "taken"
        stage(str(source), f"{parent}/out", "run1")
        (parent / "out").write_text("a file by now")
        with pytest.raises(DestinationError, match="The driver cannot publish to exportDir='.*taken/out': .*"):
            commit(f"{parent}/out", "run1")
        assert (parent / "out").read_text() == "a file by now"

    @pytest.mark.parametrize("what", ["nothing", "a file"])
    def test_fetching_what_is_no_directory_is_an_error(self, tmp_path, what):
        if what == "a file":
            (tmp_path / "model").write_text("x")
        with pytest.raises(ModelError, match=f"The driver finds no SavedModel at exportDir='{tmp_path}/model'"):
            fetch(str(tmp_path / "model"), str(tmp_path / "back"))


def test_same_content_is_packed_into_the_same_bytes(source, tmp_path):
    """Whenever and by whom it was written, with whatever rights, and linked or copied."""
    copy = tmp_path / "copy"
    (copy / "assets").mkdir(parents=True)
    (copy / "variables").mkdir(mode=0o700)
    (copy / "variables" / "variables.data").write_bytes(bytes(1 << 20))
    (tmp_path / "graph").write_bytes(b"graph")
    os.link(tmp_path / "graph", copy / "saved_model.pb")
    os.chmod(copy / "saved_model.pb", 0o600)
    for path in copy.rglob("*"):
        os.utime(path, (1e9, 1e9))
    if os.getuid() == 0:
        os.chown(copy / "saved_model.pb", 12345, 12345)
    packed = [pack(str(directory), tmp_path).read_bytes() for directory in (source, copy)]
    assert packed[0] == packed[1]
    (copy / "saved_model.pb").write_bytes(b"grapf")
    assert pack(str(copy), tmp_path).read_bytes() != packed[0]


class TestMeaning:
    """What is written beside the SavedModel of a train function, so that its output is a class or a number."""

    @pytest.mark.parametrize(
        ("package", "loss", "units", "expected"),
        [
            ("keras", "mse", 1, PredictionSpec()),
            ("keras", "BinaryCrossentropy", 1, PredictionSpec("binary", from_logits=True)),
            ("keras", None, 3, PredictionSpec()),
            ("tf_keras", "sparse_categorical_crossentropy", 3, PredictionSpec("multiclass")),
        ],
    )
    def test_follows_the_compiled_loss_of_either_keras(self, tmp_path, package, loss, units, expected):
        of = pytest.importorskip(package)
        model = of.Sequential([of.layers.Input((4,)), of.layers.Dense(units)])
        if loss is not None:
            model.compile("sgd", loss if loss.islower() else getattr(of.losses, loss)(from_logits=True))
        assert self.written(tmp_path, model) == expected

    def test_is_just_a_tensor_for_own_signatures_and_a_predict_step(self, tmp_path):
        class Own(keras.Sequential):
            def predict_step(self, data):
                return 2 * self(data)

        for number, model in enumerate([Own(), keras.Sequential()]):
            model.add(keras.layers.Input((4,)))
            model.add(keras.layers.Dense(1))
            model.compile("sgd", "bce")
            serve = tf.function(model, input_signature=[tf.TensorSpec([None, 4])])
            assert self.written(tmp_path / str(number), model, serve if number else None) == PredictionSpec()

    def written(self, path, model, signatures=None):
        export_saved_model(model, str(path), *SINGLE, signatures, KEY)
        write_prediction_spec(str(path), model, KEY, signatures is not None)
        return PredictionSpec(**json.loads((path / PREDICTION_SPEC_FILE).read_text()))
