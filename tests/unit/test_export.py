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
from tfos_ml.inference.publishing import commit, discard, stage
from tfos_ml.inference.saved_model import TensorInfo, load, read_signature
from tfos_ml.worker.export import export_saved_model, prepare
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


@pytest.fixture
def export(tmp_path):
    """Exports a model; returns its signature and its outputs for inputs by name."""

    def export(model, columns=SINGLE, signatures=None, key=KEY, **inputs):
        path = str(tmp_path / "saved_model")
        export_saved_model(model, path, *columns, signatures, key)
        function = tf.saved_model.load(path).signatures[key]
        outputs = {name: value.numpy() for name, value in function(**map_constants(inputs)).items()}
        return read_signature(path, key), outputs

    return export


def map_constants(inputs):
    return {name: tf.constant(value) for name, value in inputs.items()}


class Scale(tf.Module):
    def __init__(self, dtype=tf.float32):
        super().__init__()
        self.factor = tf.Variable(3.0, dtype=dtype)

    def __call__(self, features):
        return features * self.factor


class TestSignatureNames:
    def test_a_module_in_float64_is_served_in_float64(self, export):
        schema, shapes = SINGLE
        doubles = replace(schema, columns=tuple(replace(column, dtype="float64") for column in schema.columns))
        rows = ROWS.astype("float64")
        signature, outputs = export(Scale(tf.float64), (doubles, shapes), features=rows)
        assert signature.inputs == {"features": TensorInfo("float64", (None, 4))}
        assert outputs["output_0"].tolist() == (3 * rows).tolist()

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


class InPython(keras.Sequential):
    def predict_step(self, data):
        return super().predict_step(data).numpy()


class TestPredictStep:
    """What ``model.predict`` returns is what is exported."""

    def test_takes_inputs_as_predict_gives_them(self, export):
        inputs = [keras.Input((2,), name="left"), keras.Input((3,), name="right")]
        model = Cents(inputs, keras.layers.Dense(2)(keras.layers.Concatenate()(inputs)))
        _, outputs = export(model, PAIR, left=LEFT, right=RIGHT)
        (served,) = outputs.values()
        np.testing.assert_allclose(served, model.predict([LEFT, RIGHT], verbose=0), rtol=1e-5)

    def test_can_return_other_outputs_than_the_model(self, export):
        model = Words([keras.Input((4,)), keras.layers.Dense(2)])
        signature, outputs = export(model, features=ROWS)
        assert signature.outputs == {"word": TensorInfo("string", (None,))}
        assert outputs["word"].tolist() == model.predict(ROWS, verbose=0)["word"].tolist()

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
        in_numpy = keras.layers.Lambda(lambda x: tf.ensure_shape(tf.numpy_function(np.abs, [x], tf.float32), x.shape))
        model = keras.Sequential([keras.Input((4,)), in_numpy])
        with pytest.raises(ModelError, match="calls Python"):
            export_saved_model(model, str(tmp_path / "m"), *SINGLE, None, KEY)


def test_parts_of_nested_inputs_are_named_by_their_paths(tmp_path):
    parts = {"pair": [keras.Input((2,)), keras.Input((3,))], "one": keras.Input((1,), name="one")}
    model = keras.Model(parts, {"y": [keras.layers.Concatenate()([*parts["pair"], parts["one"]])]})
    tensors = {"pair/0": LEFT, "pair/1": RIGHT, "one": LEFT[:, :1]}
    schema = FeedSchema(tuple(ColumnSpec(n, n, "feature", "float32", 1) for n in tensors), named_features=True)
    export_saved_model(model, str(tmp_path), schema, [(2,), (3,), (1,)], None, KEY)
    outputs = load(str(tmp_path), KEY, "serve")(**map_constants(tensors))
    assert outputs["y/0"].numpy().tolist() == np.concatenate([LEFT, RIGHT, LEFT[:, :1]], axis=1).tolist()


def test_wrong_key_is_answered_with_the_keys_there_are(export, tmp_path):
    export(Scale(), features=ROWS)
    with pytest.raises(ModelError, match=r"has no signature 'scale'\. It has: \['serving_default'\]"):
        read_signature(tmp_path / "saved_model", "scale")


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
    def test_failed_copy_leaves_nothing(self, source, tmp_path):
        target = tmp_path / "out" / "model"
        target.parent.mkdir()
        with full_disk(room=1 << 16), pytest.raises(OSError, match="too large"):
            stage(str(source), str(target), "run1")
        discard(str(target), "run1")
        assert list(target.parent.iterdir()) == []

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


def test_same_content_is_packed_into_the_same_bytes(source, tmp_path):
    """Whenever it was written, and with whatever rights."""
    copy = tmp_path / "copy"
    shutil.copytree(source, copy)
    os.chmod(copy / "saved_model.pb", 0o600)
    for path in copy.rglob("*"):
        os.utime(path, (1e9, 1e9))
    packed = [pack(str(directory), tmp_path).read_bytes() for directory in (source, copy)]
    assert packed[0] == packed[1]
    (copy / "saved_model.pb").write_bytes(b"grapf")
    assert pack(str(copy), tmp_path).read_bytes() != packed[0]


class TestMeaning:
    """What is written beside the SavedModel of a train function, so that its output is a class or a number."""

    @pytest.mark.parametrize("package", ["keras", "tf_keras"])
    def test_follows_the_compiled_loss_of_either_keras(self, tmp_path, package):
        of = pytest.importorskip(package)
        model = of.Sequential([of.layers.Input((4,)), of.layers.Dense(1)])
        model.compile("sgd", of.losses.BinaryCrossentropy(from_logits=True))
        assert self.written(tmp_path, model) == PredictionSpec("binary", from_logits=True)

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
