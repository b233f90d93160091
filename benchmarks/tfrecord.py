"""TFRecords read and written in one process, beside TensorFlow and beside a loop over protobuf messages in Python.

Reading is from a file to columns: here Arrow record batches, of TensorFlow tensors (``TFRecordDataset`` and
``parse_example``), in Python lists of each feature. Writing is from columns to a file: here from record batches, beside
``TFRecordWriter`` with Examples that Python builds of the same columns (as lists, made beforehand) and serializes. For
information, beside ``TFRecordWriter`` with records that are serialized already, too, once from columns here, and once
from a column of such records (recordType ByteArray). TensorFlow uses several threads, so rates are by second of CPU
time of the process. Contenders take turns, after one warm-up each.

    python benchmarks/tfrecord.py [--rounds 5] [--rows 100000] [--shapes mixed images tokens texts]
"""

from __future__ import annotations

import argparse
import os
import statistics
import tempfile
import time
from collections.abc import Callable
from pathlib import Path

os.environ.setdefault("TF_CPP_MIN_LOG_LEVEL", "3")
os.environ.setdefault("CUDA_VISIBLE_DEVICES", "")

import numpy as np
import pyarrow as pa
import tensorflow as tf

from tfos_ml.tfrecord.commit import commit
from tfos_ml.tfrecord.encoding import encode
from tfos_ml.tfrecord.feature_types import BYTE_ARRAY, EXAMPLE, columns_of
from tfos_ml.tfrecord.files import DataFile
from tfos_ml.tfrecord.options import Options
from tfos_ml.tfrecord.reading import Reader
from tfos_ml.tfrecord.writing import Destination, write_rows

BATCH = 1000  # records that TensorFlow parses at once


def mixed(rows: int) -> pa.RecordBatch:
    """Ten columns: integers of several sizes, floats, text, arrays of integers."""
    random = np.random.default_rng(0)
    columns = {f"int{i}": pa.array(random.integers(0, 10 ** (2 * i + 1), rows)) for i in range(4)}
    columns |= {f"float{i}": pa.array(random.random(rows, np.float32)) for i in range(4)}
    columns["text"] = pa.array(["x" * n for n in random.integers(3, 40, rows)])
    lengths = random.integers(0, 8, rows)
    offsets = pa.array(np.concatenate([[0], np.cumsum(lengths)]).astype(np.int32))
    columns["ids"] = pa.ListArray.from_arrays(offsets, pa.array(random.integers(0, 100_000, int(lengths.sum()))))
    return pa.RecordBatch.from_pydict(columns)


def images(rows: int) -> pa.RecordBatch:
    """784 floats and a label."""
    random = np.random.default_rng(0)
    offsets = pa.array(np.arange(rows + 1, dtype=np.int32) * 784)
    pixels = pa.ListArray.from_arrays(offsets, pa.array(random.random(rows * 784, np.float32)))
    return pa.RecordBatch.from_pydict({"image": pixels, "label": pa.array(random.integers(0, 10, rows))})


def tokens(rows: int) -> pa.RecordBatch:
    """512 integers, of two and three bytes mostly."""
    random = np.random.default_rng(0)
    offsets = pa.array(np.arange(rows + 1, dtype=np.int32) * 512)
    return pa.RecordBatch.from_pydict(
        {"tokens": pa.ListArray.from_arrays(offsets, pa.array(random.integers(0, 50_000, rows * 512)))}
    )


def texts(rows: int) -> pa.RecordBatch:
    """A line of text, some words, and 2 KB of bytes."""
    random = np.random.default_rng(0)
    lengths = random.integers(0, 12, rows)
    offsets = pa.array(np.concatenate([[0], np.cumsum(lengths)]).astype(np.int32))
    words = pa.array(["w" * n for n in random.integers(2, 12, int(lengths.sum()))])
    columns = {
        "line": pa.array(["x" * n for n in random.integers(20, 400, rows)]),
        "words": pa.ListArray.from_arrays(offsets, words),
        "content": pa.array([random.bytes(n) for n in random.integers(1000, 3000, rows)]),
    }
    return pa.RecordBatch.from_pydict(columns)


SHAPES: dict[str, tuple[Callable[[int], pa.RecordBatch], float, dict[str, object]]] = {
    "mixed": (
        mixed,
        1.0,
        {
            **{f"int{i}": tf.io.FixedLenFeature([], tf.int64) for i in range(4)},
            **{f"float{i}": tf.io.FixedLenFeature([], tf.float32) for i in range(4)},
            "text": tf.io.FixedLenFeature([], tf.string),
            "ids": tf.io.RaggedFeature(tf.int64),
        },
    ),
    "images": (
        images,
        0.2,
        {"image": tf.io.FixedLenFeature([784], tf.float32), "label": tf.io.FixedLenFeature([], tf.int64)},
    ),
    "tokens": (tokens, 0.2, {"tokens": tf.io.FixedLenFeature([512], tf.int64)}),
    "texts": (
        texts,
        0.2,
        {
            "line": tf.io.FixedLenFeature([], tf.string),
            "words": tf.io.RaggedFeature(tf.string),
            "content": tf.io.FixedLenFeature([], tf.string),
        },
    ),
}


def read_here(path: Path, schema: pa.Schema) -> int:
    """Record batches of all columns."""
    options = Options(EXAMPLE)
    file = DataFile(str(path), str(path), path.stat().st_size)
    reader = Reader(file, schema, columns_of(schema, EXAMPLE), options)
    return sum(batch.num_rows for batch in reader.batches())


def read_tensorflow(path: Path, spec: dict[str, object]) -> int:
    """Tensors of all columns."""
    rows = 0
    for batch in tf.data.TFRecordDataset(str(path)).batch(BATCH).map(lambda r: tf.io.parse_example(r, spec)):
        rows += int(next(iter(batch.values())).shape[0])
    return rows


def read_python(path: Path, schema: pa.Schema) -> int:
    """A list of values of each feature, by protobuf's messages."""
    kinds = _kinds(schema)
    rows = 0
    for record in tf.compat.v1.io.tf_record_iterator(str(path)):  # a dataset is slower, one by one
        features = tf.train.Example.FromString(record).features.feature
        for name, (field, _) in kinds.items():
            list(getattr(features[name], field).value)
        rows += 1
    return rows


def _kinds(schema: pa.Schema) -> dict[str, tuple[str, type]]:
    found = {}
    for field in schema:
        item = field.type.value_type if pa.types.is_list(field.type) else field.type
        if pa.types.is_integer(item):
            found[field.name] = ("int64_list", tf.train.Int64List)
        elif pa.types.is_floating(item):
            found[field.name] = ("float_list", tf.train.FloatList)
        else:
            found[field.name] = ("bytes_list", tf.train.BytesList)
    return found


def write_here(path: Path, batch: pa.RecordBatch, record_type: str = EXAMPLE) -> int:
    """A file, committed as by Spark's tasks."""
    destination = Destination(str(path), Options(record_type), overwrite=True)
    written = write_rows([batch.slice(i, 10_000) for i in range(0, batch.num_rows, 10_000)], destination, 0)
    commit(destination, [written])
    return written.rows


def write_python(path: Path, rows: list[dict[str, object]], schema: pa.Schema) -> int:
    """``TFRecordWriter`` with Examples that Python builds."""
    kinds = _kinds(schema)
    with tf.io.TFRecordWriter(str(path)) as writer:
        for row in rows:
            features = {}
            for name, (field, kind) in kinds.items():
                value = row[name]
                values = value if isinstance(value, list) else [value]
                if kind is tf.train.BytesList:
                    values = [value.encode() if isinstance(value, str) else value for value in values]
                features[name] = tf.train.Feature(**{field: kind(value=values)})
            writer.write(tf.train.Example(features=tf.train.Features(feature=features)).SerializeToString())
    return len(rows)


def write_serialized(path: Path, records: list[bytes]) -> int:
    """``TFRecordWriter`` with records that are there."""
    with tf.io.TFRecordWriter(str(path)) as writer:
        for record in records:
            writer.write(record)
    return len(records)


def compare(title: str, contenders: dict[str, Callable[[], int]], rounds: int) -> None:
    """Print records by CPU second, and the first contender's ratio to each other one, round by round."""
    taken: dict[str, list[float]] = {name: [] for name in contenders}
    rows = 0
    for number in range(rounds + 1):
        for name, run in contenders.items():
            start = time.process_time()
            rows = run()
            if number:  # the first is the warm-up
                taken[name].append(time.process_time() - start)
    first, *_ = contenders
    print(f"\n{title}, {rows:,} records, {rounds} rounds, medians by second of CPU time:")
    for name, times in taken.items():
        line = f"  {name:26} {rows / statistics.median(times):>12,.0f} records/s"
        if name != first:
            ratios = sorted(other / ours for other, ours in zip(times, taken[first], strict=True))
            line += f"   here: {statistics.median(ratios):.2f} times ({ratios[0]:.2f} to {ratios[-1]:.2f})"
        print(line, flush=True)


def measure(name: str, rows: int, rounds: int, directory: Path) -> None:
    """All contenders for records of one shape."""
    make, share, spec = SHAPES[name]
    batch = make(int(rows * share))
    records = encode(batch.columns, columns_of(batch.schema, EXAMPLE), EXAMPLE)
    serialized = records.to_pylist()
    path = directory / name
    write_serialized(path, serialized)
    print(f"\n{name}: {path.stat().st_size / batch.num_rows:,.0f} bytes a record", end="")
    compare(
        f"Reading {name}",
        {
            "here": lambda: read_here(path, batch.schema),
            "TensorFlow": lambda: read_tensorflow(path, spec),
            "loop over protobuf": lambda: read_python(path, batch.schema),
        },
        rounds,
    )
    values = batch.to_pylist()
    compare(
        f"Writing {name} from columns",
        {
            "here": lambda: write_here(directory / "ours", batch),
            "TFRecordWriter of Examples": lambda: write_python(directory / "theirs", values, batch.schema),
            "TFRecordWriter, serialized": lambda: write_serialized(directory / "theirs", serialized),
        },
        rounds,
    )
    raw = pa.RecordBatch.from_arrays([records.cast(pa.binary())], ["byteArray"])
    compare(
        f"Writing {name} that is serialized",
        {
            "here": lambda: write_here(directory / "ours", raw, BYTE_ARRAY),
            "TFRecordWriter": lambda: write_serialized(directory / "theirs", serialized),
        },
        rounds,
    )


if __name__ == "__main__":
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--rounds", type=int, default=5)
    parser.add_argument("--rows", type=int, default=100_000)
    parser.add_argument("--shapes", nargs="+", choices=list(SHAPES), default=list(SHAPES))
    arguments = parser.parse_args()
    with tempfile.TemporaryDirectory(prefix="bench-tfrecord-") as scratch:
        for shape in arguments.shapes:
            measure(shape, arguments.rows, arguments.rounds, Path(scratch))
