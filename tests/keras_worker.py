"""One worker of a Keras training without Spark: ``python keras_worker.py OUT RANK PORT[,PORT...] [CASE...]``.

Everything below the Spark task is real: spool, row store, TensorFlow's collectives, Model.fit.
Trains all cases one after another and writes weights and logs to OUT; also holds the cases.
"""

from __future__ import annotations

import json
import os
import sys
import tempfile
from pathlib import Path
from types import SimpleNamespace

os.environ.setdefault("TF_CPP_MIN_LOG_LEVEL", "3")

import numpy as np
import pyarrow as pa
import zoo
from example_programs import EXAMPLES, hub
from keras_layers import LAYERS
from keras_programs import PROGRAMS, TRIED
from optimizer_programs import FAIL, OPTIMIZERS

BATCH, EPOCHS, ROWS = 64, 2, 403


def dense_data():
    random = np.random.RandomState(3)
    x = random.randn(ROWS, 13).astype("f")
    y = (x @ random.randn(13) + 0.1 * random.randn(ROWS)).astype("f")
    return {"x": x, "y": y, "w": random.uniform(0.2, 2, ROWS).astype("f"), "val": np.arange(ROWS) % 7 == 3}


def step_data():
    """Texts of different lengths, with a label and a weight for each step."""
    random = np.random.RandomState(5)
    lengths = random.randint(1, 9, ROWS)
    x = np.where(np.arange(8) < lengths[:, None], random.randint(1, 20_000, (ROWS, 8)), 0)
    w = np.where(x > 0, random.uniform(0.2, 2, x.shape), 0).astype("f")
    return {"x": x, "y": np.where(x > 0, x % 3, 0).astype("f"), "w": w, "val": None, "lengths": lengths}


def two_output_data():
    data = dense_data()
    return {**data, "y": {"a": data["y"], "b": np.abs(data["y"])}, "w": None}


def dense_model(optimizer, loss="mse"):
    import keras

    model = keras.Sequential(
        [
            keras.layers.Input((13,), name="x"),
            keras.layers.Dense(16, activation="tanh", kernel_regularizer=keras.regularizers.L2(1e-3)),
            keras.layers.Dense(1, activity_regularizer=keras.regularizers.L2(1e-3)),
        ]
    )
    model.compile(optimizer, loss, metrics=["mae"], weighted_metrics=["mae"])
    return model


def masked_steps():
    import keras

    x = keras.layers.Input((None,), name="x", dtype="int64")
    hidden = keras.layers.Embedding(20_000, 4, mask_zero=True)(x)
    hidden = keras.layers.LSTM(6, return_sequences=True)(hidden)
    model = keras.Model(x, keras.layers.Dense(3)(hidden))
    loss = keras.losses.SparseCategoricalCrossentropy(from_logits=True)
    metric = keras.metrics.SparseCategoricalCrossentropy(from_logits=True, name="entropy")  # an accuracy could flip
    model.compile(keras.optimizers.Adam(0.01), loss, metrics=[metric])
    return model


def two_outputs():
    import keras

    x = keras.layers.Input((13,), name="x")
    hidden = keras.layers.Dense(8, activation="tanh")(x)
    model = keras.Model(x, [keras.layers.Dense(1, name="a")(hidden), keras.layers.Dense(1, name="b")(hidden)])
    loss = {"a": "mse", "b": keras.losses.MeanAbsoluteError(reduction="sum")}
    model.compile(keras.optimizers.Adam(0.01), loss, loss_weights={"a": 1.0, "b": 0.02}, metrics={"a": ["mae"]})
    return model


def optimizer(name, *args, **options):
    import keras

    return getattr(keras.optimizers, name)(*args, **options)


CASES = {
    "sgd_momentum_clipped": (dense_data, lambda: dense_model(optimizer("SGD", 0.05, momentum=0.9, clipnorm=1.0))),
    "lstm_masked_steps": (step_data, masked_steps),
    "two_outputs": (two_output_data, two_outputs),
    "shuffle": (dense_data, lambda: dense_model(optimizer("Adam", 0.01))),
    **LAYERS,
    **PROGRAMS,
    **OPTIMIZERS,
    **{name: programs[:2] for name, programs in FAIL.items()},
    **TRIED,
    **EXAMPLES,
    **hub.PROGRAMS,
}


def make(case):
    """Data and model of a case, or of a group of the zoo; the model is the same in every process."""
    import keras

    data, model = CASES[case] if case in CASES else zoo.case(case)
    keras.utils.clear_session()  # Keras 3.7 would go on with the random numbers of the case before
    keras.utils.set_random_seed(1)
    return data(), model()


def named(values, name):
    """Columns by name: those of a dict, or one; none of None."""
    if values is None:
        return {}
    return values if isinstance(values, dict) else {name: values}


def row_count(data):
    return len(next(iter(named(data["x"], "x").values())))


def columns_of(data):
    """The columns of a case as Arrow arrays by (name, role), ragged where the case is."""
    lengths = data.get("lengths")

    def arrow(values):
        if lengths is not None and values.ndim == 2:
            return pa.array([row[:n] for row, n in zip(values, lengths, strict=True)])
        kind = pa.string() if values.dtype.kind in "OU" else pa.from_numpy_dtype(values.dtype)
        for _ in values.shape[1:]:
            kind = pa.list_(kind)
        return pa.array(values.tolist(), kind)

    roles = {"feature": ("x", "x"), "label": ("y", "label"), "weight": ("w", "weight")}
    return {
        (name, role): arrow(values)
        for role, (key, single) in roles.items()
        for name, values in named(data[key], single).items()
    }


def dealt(rows, rank, size, uneven):
    """The rows of a worker; if they are dealt unevenly, the first has about twice as many as the others."""
    if not uneven:
        return rows[rank::size]
    owners = np.random.RandomState(6).randint(0, size + 1, len(rows)) % size
    return rows[owners == rank]


def worker_context(data, rank, size, shuffle, directory):
    """What fit_model asks of a NodeContext, over a spool with the rows of one worker."""
    from tfos_ml.data import spool
    from tfos_ml.data.arrow import fixed_shape, list_extents
    from tfos_ml.data.schema import ROW_COLUMN, ColumnSpec, FeedSchema
    from tfos_ml.protocol.node_task import NodeSettings
    from tfos_ml.worker.export import prepare
    from tfos_ml.worker.log_upload import LogUpload
    from tfos_ml.worker.row_store import RowStore

    columns = columns_of(data)
    specs, shapes = [], []
    for (name, role), values in columns.items():
        kind, ndim = values.type, 0
        while pa.types.is_list(kind):
            kind, ndim = kind.value_type, ndim + 1
        dtype = "string" if pa.types.is_string(kind) else kind.to_pandas_dtype().__name__
        specs.append(ColumnSpec(name, name, role, dtype, ndim))
        shapes.append(fixed_shape(list_extents(values), ndim))
    schema = FeedSchema(tuple(specs), *(isinstance(data[key], dict) for key in "xyw"))
    rows = row_count(data)
    table = pa.RecordBatch.from_arrays(
        [*columns.values(), pa.array(np.arange(rows))], [*(f"c{i}" for i in range(len(specs))), ROW_COLUMN]
    )
    validates = np.zeros(rows, bool) if data["val"] is None else data["val"]
    stores = {}
    for name, chosen in (("train", ~validates), ("validation", validates)):
        mine = dealt(np.flatnonzero(chosen), rank, size, data.get("uneven", False))
        chunks = []
        writer = spool.SpoolWriter(directory, name, chunks.append)
        writer.write(table.take(pa.array(mine)))
        writer.flush()
        stores[name] = RowStore(chunks, schema, shapes, np.array([rows]))
    logs = []
    served = []

    def prepare_export(model, inputs):
        served.append(prepare(model, inputs, "exported"))
        return "" if rank else getattr(served[0], "reason", "")

    node = SimpleNamespace(
        schema=schema,
        settings=NodeSettings(shuffle=shuffle, seed=11, validates=bool(validates.any())),
        rows=SimpleNamespace(store=stores.__getitem__, shuffle_notice=lambda: ""),
        log_upload=LogUpload(str(directory.disk), None),
        prepare_export=prepare_export,
        note_position=lambda position, is_saved: None,
    )
    return SimpleNamespace(
        _node=node,
        row_count=int((~validates).sum()),
        validation_row_count=int(validates.sum()),
        batch_size=data.get("batch", BATCH),
        epochs=data.get("epochs", EPOCHS),
        is_chief=rank == 0,
        checkpoint_dir=None,
        restart_count=0,
        run_id="run",
        logs=logs,
        report=lambda values, epoch: logs.append(values),
        summarize=lambda facts: [print(f"NOTICE {w}", flush=True) for w in facts["warnings"]],
        served=served,
        log=logs.append,
    )


def main(arguments):
    from tfos_ml.data import spool
    from tfos_ml.keras.build import KerasFit
    from tfos_ml.keras.collectives.group import WorkerGroup
    from tfos_ml.keras.model.inspection import describe
    from tfos_ml.keras.model.source import ModelSource
    from tfos_ml.keras.training import fit_model

    _, out, rank, ports, *cases = arguments
    rank, ports, cases = int(rank), ports.split(","), cases or list(CASES)
    size = len(ports)
    if size > 1:
        cluster = {"worker": [f"127.0.0.1:{p}" for p in ports]}
        os.environ["TF_CONFIG"] = json.dumps({"cluster": cluster, "task": {"type": "worker", "index": rank}})
    addresses = [f"127.0.0.1:{p}" for p in ports]
    communication = os.environ.get("TFOS_ML_TEST_COMMUNICATION", "auto")
    group = WorkerGroup.start(rank, addresses, 600.0, communication, secret=b"of these tests")
    tempfile.tempdir = out  # for directories that cases make
    for case in cases:
        data, model = make(case)
        source = ModelSource(function=lambda case=case: make(case)[1])
        with tempfile.TemporaryDirectory(prefix="tfos_ml-test-") as directory:
            ctx = worker_context(
                data, rank, size, case == "shuffle", spool.SpoolDirectories(Path(directory), Path(directory))
            )
            task = KerasFit(
                source,
                describe(model),
                callbacks=data.get("callbacks", list)(),
                class_weight=data.get("class_weight", {}),
                has_local_statistics=data.get("has_local_statistics", False),
            )
            model = fit_model(task, ctx, group)
        # NumPy's files cannot hold bfloat16.
        weights = {
            f"w{i}": w if w.dtype.isbuiltin == 1 else w.astype(np.float32) for i, w in enumerate(model.get_weights())
        }
        np.savez(f"{out}/{case}-{size}-{rank}.npz", **weights)
        if rank == 0:
            Path(f"{out}/{case}-{size}.json").write_text(json.dumps(ctx.logs))
            if data.get("serves"):
                ctx.served[0].write(f"{out}/{case}-{size}-served")
        print(case, "done", flush=True)


if __name__ == "__main__":
    main(sys.argv[1:])
    sys.stdout.flush()
    os._exit(0)
