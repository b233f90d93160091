"""Training that begins before the last rows are there: as if it had waited for them."""

from __future__ import annotations

import uuid
from pathlib import Path

import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq
import pytest
from conftest import wait_until
from direct_rows import partition_bytes
from object_store import ACCESS_KEY, SECRET_KEY, ObjectStore
from pyspark.sql import functions as F
from settings import setting

from tfos_ml import KerasEstimator, TFEstimator, errors

WIDTH = 32
ROWS, PARTITIONS = 60_000, 4  # more than a MiB for each node in the first of them
SECONDS = 60.0


@pytest.fixture(scope="module", autouse=True)
def keras():
    """Keras on the driver; it changes the environment when it is imported, which is not ours to undo."""
    import keras

    return keras


@pytest.fixture(scope="module")
def store():
    store = ObjectStore()
    yield store
    store.close()


@pytest.fixture
def spark(sessions, store):
    store.heal()
    return sessions.get(
        "local[2]",
        spark_hadoop_fs_s3a_endpoint=store.endpoint,
        spark_hadoop_fs_s3a_endpoint_region="us-east-1",
        spark_hadoop_fs_s3a_access_key=ACCESS_KEY,
        spark_hadoop_fs_s3a_secret_key=SECRET_KEY,
    )


def rows(spark, label="cast(id % 3 as int)"):
    """Rows that nodes read from the store only."""
    values = F.expr(f"transform(sequence(1, {WIDTH}), i -> cast(sin(id * i) as float))")
    return spark.range(0, ROWS, 1, PARTITIONS).select(
        values.alias("features"), F.expr(label).alias("label"), (1 + F.col("id") % 5).alias("weight")
    )


def hold_back_last(store, directory: Path, nodes: int):
    """Give the last rows of the cached ones only when so many nodes have taken a step."""

    def is_refused(method, path):
        if method != "GET" or f"part-{PARTITIONS - 1:05}" not in path:
            return False
        return not wait_until(lambda: len(list(directory.glob("step-*"))) == nodes, SECONDS)

    store.fail(is_refused, 503)


def callbacks(directory: Path):
    """Tell of the first step of each node, and of the weights at the end."""
    import keras

    class Tell(keras.callbacks.Callback):
        def __init__(self):
            super().__init__()
            self.name = uuid.uuid4().hex

        def on_train_batch_end(self, batch, logs=None):
            import os

            if batch == 0:
                (directory / f"step-{os.getpid()}").touch()

    class Save(keras.callbacks.Callback):
        chief_only = True

        def on_train_end(self, logs=None):
            np.savez(str(directory / "weights.npz"), *self.model.get_weights())

    return [Tell(), Save()]


def classifier(ragged=False):
    import keras

    keras.utils.set_random_seed(1)
    inputs = keras.layers.Input((None,) if ragged else (WIDTH,))
    hidden = keras.layers.Reshape((-1, 1))(inputs) if ragged else inputs
    hidden = keras.layers.GlobalAveragePooling1D()(hidden) if ragged else hidden
    hidden = keras.layers.Dense(8, "tanh")(hidden)
    model = keras.Model(inputs, keras.layers.Dense(3, "softmax")(hidden))
    model.compile(keras.optimizers.Adam(0.01), "sparse_categorical_crossentropy", metrics=["accuracy"])
    return model


def unbuilt_classifier():
    """Of which nobody knows the outputs before it sees rows."""
    import keras

    model = keras.Sequential([keras.layers.Dense(3, "softmax")])
    model.compile("sgd", "sparse_categorical_crossentropy")
    return model


def estimator(directory: Path, **params):
    fixed = {"batchSize": 700, "epochs": 2, "seed": 3, "shuffle": False, "verbose": 0}
    model = params.pop("model", None) or classifier()
    return KerasEstimator(model=model, callbacks=callbacks(directory), **{**fixed, **params})


def outcome(directory: Path, fitted):
    """All that must not depend on when rows came."""
    with np.load(directory / "weights.npz") as saved:
        weights = [saved[name].tobytes() for name in saved.files]
    summary = fitted.summary
    counts = [getattr(summary, name) for name in ("rows", "validationRows", "skippedRows", "steps")]
    return weights, fitted.summary.history, counts


def write(directory: Path, lengths, label=lambda ids: ids % 3):
    """A file of rows for each array of lengths of their arrays."""
    directory.mkdir()
    first = 0
    for number, each in enumerate(lengths):
        ids = np.arange(first, first + len(each))
        values = np.sin(np.arange(sum(each)) + first).astype(np.float32)
        lists = pa.ListArray.from_arrays(pa.array(np.concatenate([[0], np.cumsum(each)]), pa.int32()), values)
        table = pa.table({"features": lists, "label": label(ids)})
        pq.write_table(table, directory / f"{number}.parquet", row_group_size=5000)
        first += len(each)
    return directory


def both_ways(spark, files, directory, **params):
    """What comes of rows that Spark feeds, and that nodes read themselves."""
    found = []
    for path in ("spark", "direct"):
        place = directory / path
        place.mkdir()
        with partition_bytes(spark, 1 << 20):
            fitted = estimator(place, inputPath=path, **params).fit(spark.read.parquet(str(files)))
        found.append(fitted)
    assert outcome(directory / "spark", found[0]) == outcome(directory / "direct", found[1])
    return found


CACHED = {"inputPath": "direct", "cacheDir": "s3a://bucket/early"}
WEIGHTED = {"validationSplit": 0.2, "weightCol": "weight", "classWeight": {0: 1.0, 2: 3.0}, "epochs": 3}


@pytest.mark.parametrize(
    ("workers", "params"),
    [pytest.param(1, {}, marks=pytest.mark.chaos), (2, WEIGHTED)],
    ids=["one worker", "two, weighted, a split"],
)
def test_the_first_steps_are_taken_before_the_last_rows_can_be_read(spark, store, tmp_path, workers, params):
    df = rows(spark)
    waited = outcome(tmp_path, estimator(tmp_path, clusterSize=workers, **params).fit(df))
    began = tmp_path / "began"
    began.mkdir()
    hold_back_last(store, began, workers)
    fitted = estimator(began, clusterSize=workers, **CACHED, **params).fit(df)
    assert outcome(began, fitted) == waited
    timeline = fitted.summary.timeline
    assert list(timeline)[-5:] == ["tracing", "rows and training", "training", "export", "return"]
    assert timeline["rows and training"] > 0
    assert not fitted.summary.warnings


def tell_of_first_batch(args, ctx):
    rows = 0
    for features, _ in ctx.dataset(batch_size=700, shuffle=False, wait=False):
        (args["directory"] / f"step-{ctx.task_index}").touch()
        rows += len(features)
    (args["directory"] / f"rows-{ctx.task_index}-{rows}").touch()


def test_datasets_that_do_not_wait_begin_before_the_last_rows_can_be_read(spark, store, tmp_path):
    hold_back_last(store, tmp_path, 2)
    params = {"trainFn": tell_of_first_batch, "tfArgs": {"directory": tmp_path}, "clusterSize": 2, "verbose": 0}
    with pytest.warns(errors.NothingExportedWarning):
        TFEstimator(**params, **CACHED).fit(rows(spark).select("features", "label"))
    assert sorted(path.name for path in tmp_path.glob("rows-*")) == [f"rows-{i}-{ROWS // 2}" for i in (0, 1)]


MIXED = [[WIDTH] * 40_000, [WIDTH - 1] * 5, [WIDTH] * 7000]  # the first chunk has rows of one shape


@pytest.mark.parametrize("workers", [1, pytest.param(2, marks=pytest.mark.chaos)])
@pytest.mark.filterwarnings("ignore:Training had begun before all rows were there")
def test_rows_of_another_shape_have_the_fit_begin_again_and_wait(spark, tmp_path, workers):
    files = write(tmp_path / "files", MIXED)
    fed, direct = both_ways(spark, files, tmp_path, clusterSize=workers, model=classifier(ragged=True))
    (notice,) = direct.summary.warnings
    assert notice.startswith("Training had begun before all rows were there, and began again to wait for them: ")
    assert "'features' has rows of" in notice
    assert direct.summary.timeline["failed attempts"] > 0
    assert not fed.summary.warnings


FEW = {  # so wide that they are not waited for
    "one row": [[], [1_300_000]],
    "one row group": [[1500] * 900],
    "uneven": [[WIDTH] * 32_001, [], [WIDTH], [WIDTH] * 5000],
}


@pytest.mark.chaos
@pytest.mark.parametrize("name", FEW)
def test_nodes_with_few_rows_or_none(spark, tmp_path, name):
    files = write(tmp_path / "files", FEW[name])
    _, direct = both_ways(spark, files, tmp_path, clusterSize=2, batchSize=64, model=classifier(ragged=True))
    assert not direct.summary.warnings


@pytest.mark.chaos
def test_rows_that_go_to_disk(spark, tmp_path):
    files = write(tmp_path / "files", [[WIDTH] * 40_000, [WIDTH] * 40_000])
    with setting(spark, "spoolMemory", "2m"):
        _, direct = both_ways(spark, files, tmp_path, clusterSize=2, validationSplit=0.1, epochs=3)
    assert not direct.summary.warnings


@pytest.mark.chaos
def test_a_checkpoint_is_gone_on_from_as_if_it_had_waited(spark, tmp_path):
    files = write(tmp_path / "files", [[WIDTH] * 30_000, [WIDTH] * 3000])
    df = spark.read.parquet(str(files))
    fed = estimator(tmp_path, inputPath="spark", clusterSize=2).fit(df)
    undisturbed = outcome(tmp_path, fed)
    for first, second in (("direct", "spark"), ("spark", "direct")):
        kept = {"modelDir": str(tmp_path / f"state-{first}"), "clusterSize": 2}
        estimator(tmp_path, inputPath=first, epochs=1, **kept).fit(df)
        resumed = estimator(tmp_path, inputPath=second, **kept).fit(df)
        assert outcome(tmp_path, resumed)[:2] == undisturbed[:2]
        assert not resumed.summary.warnings


@pytest.mark.parametrize(
    ("kind", "last", "told"),
    [
        (errors.NullValueError, "null", "'label' has . null value"),
        (errors.LabelRangeError, "9", "A label is 9, but the model tells 3 classes apart.*'label' from 0 to 9"),
    ],
)
def test_what_is_wrong_with_the_last_rows_is_told_when_training_has_begun(spark, store, tmp_path, kind, last, told):
    """By the node that has them, and not by the one that loses it."""
    df = rows(spark, f"if(id < {ROWS - 2}, cast(id % 3 as int), {last})")
    params = {"clusterSize": 2, **CACHED, "model": unbuilt_classifier}
    with pytest.raises(kind, match=told):
        estimator(tmp_path, **params, shuffle=True).fit(df)
    began = tmp_path / "began"
    began.mkdir()
    hold_back_last(store, began, 2)
    with pytest.raises(kind, match=told):
        estimator(began, **params).fit(df)
    assert len(list(began.glob("step-*"))) == 2
