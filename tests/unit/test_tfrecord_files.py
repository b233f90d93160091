"""Files of TFRecords without Spark: compression, damage, chunks, paths, partitions, columns of samples."""

from __future__ import annotations

import gzip
import random
import zlib

import pyarrow as pa
import pytest
import tensorflow as tf

from tfos_ml import errors
from tfos_ml.tfrecord import files, reading
from tfos_ml.tfrecord.commit import abandon
from tfos_ml.tfrecord.feature_types import BYTE_ARRAY, EXAMPLE, columns_of
from tfos_ml.tfrecord.framing import framed
from tfos_ml.tfrecord.options import Options
from tfos_ml.tfrecord.schema_inference import infer
from tfos_ml.tfrecord.writing import Destination, write_rows

NUMBERS = pa.schema([("n", pa.int64())])


def feature(*values):
    if isinstance(values[0], int):
        return tf.train.Feature(int64_list=tf.train.Int64List(value=values))
    if isinstance(values[0], float):
        return tf.train.Feature(float_list=tf.train.FloatList(value=values))
    return tf.train.Feature(bytes_list=tf.train.BytesList(value=values))


def example(**values):
    found = {name: feature(*(v if isinstance(v, list) else [v])) for name, v in values.items()}
    return tf.train.Example(features=tf.train.Features(feature=found)).SerializeToString()


def file_of(path, records):
    path.parent.mkdir(parents=True, exist_ok=True)
    path.write_bytes(bytes(framed(pa.array(records, pa.large_binary()))))
    return files.DataFile(str(path), str(path), path.stat().st_size)


def rows_of(file, schema=NUMBERS, **options):
    options = Options(**{"record_type": EXAMPLE, **options})
    reader = reading.Reader(file, schema, columns_of(schema, options.record_type), options)
    return [row for batch in reader.batches() for row in batch.to_pylist()]


def in_parts(content):
    return b"".join(gzip.compress(content[i : i + 10_000]) for i in range(0, len(content), 10_000))


@pytest.mark.parametrize("size", [101, 4096])
@pytest.mark.parametrize("pack", [bytes, zlib.compress, in_parts])
def test_chunks_of_any_size_give_the_same_records(tmp_path, size, pack):
    lengths = random.Random(size)
    records = [bytes([n % 256]) * lengths.choice([0, 1, 30, 200, 5000]) for n in range(300)]
    path = tmp_path / "f"
    path.write_bytes(pack(bytes(framed(pa.array(records, pa.large_binary())))))
    found, offset = [], 0
    for chunk in reading.chunks(files.DataFile("/", str(path), 0), None, size):
        assert (chunk.number, chunk.offset, chunk.torn) == (len(found), offset, "")
        found += [chunk.data[a:z].tobytes() for a, z in zip(chunk.frames.start, chunk.frames.end, strict=True)]
        offset += chunk.frames.consumed
    assert found == records


@pytest.mark.parametrize("where", ["data", "length", "cut"])
def test_a_damaged_record_is_an_error_with_file_and_offset(tmp_path, where):
    """Its data or its length is changed, or the file ends within it."""
    records, path = [example(n=n) for n in range(10)], tmp_path / "damaged"
    file, begin = file_of(path, records), sum(len(r) + 16 for r in records[:4])
    content = bytearray(path.read_bytes())
    if where == "cut":
        content = content[: begin + 14]
    else:
        content[begin + {"data": 14, "length": 1}[where]] ^= 1
    path.write_bytes(content)
    with pytest.raises(errors.CorruptRecordError, match=f"damaged: record 4, at byte {begin} ") as caught:
        rows_of(file)
    assert (caught.value.file, caught.value.offset) == (str(path), begin)


def test_compressed_files_that_are_cut(tmp_path):
    whole = gzip.compress(
        bytes(framed(pa.array([random.Random(n).randbytes(500) for n in range(100)], pa.large_binary())))
    )
    (tmp_path / "f.gz").write_bytes(whole[: len(whole) // 2])
    file = files.DataFile(f"{tmp_path}/f.gz", f"{tmp_path}/f.gz", 0)
    schema = pa.schema([("byteArray", pa.binary())])
    with pytest.raises(errors.CorruptRecordError, match=r"f\.gz: record \d\d, .*compressed file ends too early"):
        rows_of(file, schema, record_type=BYTE_ARRAY)


def test_paths_directories_and_patterns(tmp_path):
    for name in ("a/one", "a/two", "b/one", "b/_hidden", "b/.hidden", "_temporary/x/one"):
        file_of(tmp_path / name, [b""])

    def names(*paths):
        return [file.path.removeprefix(f"{tmp_path}/") for file in files.find([f"{tmp_path}/{p}" for p in paths]).files]

    assert names("") == ["a/one", "a/two", "b/one"]
    assert names("*/one") == names("[ab]/on?") == names("a/one", "b/one") == ["a/one", "b/one"]
    assert names("a") == ["a/one", "a/two"]
    assert [f.path for f in files.find([f"file://{tmp_path}/b"]).files] == [f"{tmp_path}/b/one"]
    for missing in ("c", "c*", "a/one/x"):
        with pytest.raises(errors.EmptyDataError, match="no TFRecords at"):
            names(missing)


def test_columns_are_told_from_all_files(tmp_path):
    found = [
        file_of(tmp_path / "1", [example(n=1, x=1, t=b"a", only=1.0)]),
        file_of(tmp_path / "2", []),
        file_of(tmp_path / "3", [example(n=[1, 2], x=0.5, t="ü".encode(), b=b"\xff"), b""]),
    ]
    schema = infer(found, Options(EXAMPLE))
    assert dict(zip(schema.names, schema.types, strict=True)) == {
        "b": pa.binary(),
        "n": pa.list_(pa.int64()),
        "only": pa.float32(),
        "t": pa.string(),
        "x": pa.float64(),
    }
    assert infer(found, Options(EXAMPLE, binary_features=("t",))).field("t").type == pa.binary()
    with pytest.raises(errors.EmptyDataError, match="no record in 1 files"):
        infer(found[1:2], Options(EXAMPLE))
    found.append(file_of(tmp_path / "4", [example(n=b"text")]))
    with pytest.raises(errors.ColumnTypeError, match=r"'n' is .*(Int64List|BytesList) in .*pass a schema"):
        infer(found, Options(EXAMPLE))


# Writing


def test_nothing_is_seen_before_the_commit_and_nothing_left_after_abandoning(tmp_path):
    out = tmp_path / "out"
    destination = Destination(str(out), Options(EXAMPLE))
    batch = pa.RecordBatch.from_pydict({"n": [1]})
    write_rows([batch], destination, 0)
    assert not files.find([str(out)]).files
    abandon(destination)
    assert list(out.iterdir()) == []
