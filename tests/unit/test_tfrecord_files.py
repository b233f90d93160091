"""Files of TFRecords without Spark: compression, damage in each mode, chunks, paths, partitions, columns of samples."""

from __future__ import annotations

import gzip
import logging
import random
import zlib

import pyarrow as pa
import pytest
import tensorflow as tf
from pyarrow import fs

from tfos_ml import errors
from tfos_ml.tfrecord import files, reading
from tfos_ml.tfrecord.feature_types import BYTE_ARRAY, EXAMPLE, SEQUENCE, columns_of
from tfos_ml.tfrecord.framing import framed
from tfos_ml.tfrecord.inference import infer
from tfos_ml.tfrecord.options import DROPMALFORMED, FAILFAST, PERMISSIVE, Options, parsed, paths_of
from tfos_ml.tfrecord.writing import Destination, abandon, commit, prepare, write_rows

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
    aside = [options.corrupt_column] if options.mode == PERMISSIVE else []
    whole = pa.schema([*schema, *((name, pa.binary()) for name in aside)])
    batches = reading.read(file, whole, columns_of(schema, options.record_type), options, {})
    return [row for batch in batches for row in batch.to_pylist()]


@pytest.mark.parametrize("compression", ["", "GZIP", "ZLIB"])
def test_files_of_tensorflow_are_read_however_compressed(tmp_path, compression):
    path = tmp_path / "theirs"
    with tf.io.TFRecordWriter(str(path), tf.io.TFRecordOptions(compression_type=compression)) as writer:
        for n in range(1000):
            writer.write(example(n=n))
    assert [row["n"] for row in rows_of(files.DataFile(str(path), str(path), 0))] == list(range(1000))


@pytest.mark.parametrize("codec", [None, "gzip", "zlib"])
@pytest.mark.parametrize("partition_by", [(), ("part",)])
def test_tensorflow_reads_files_that_are_written(tmp_path, codec, partition_by):
    destination = Destination(str(tmp_path / "out"), Options(EXAMPLE, codec, partition_by=partition_by))
    batch = pa.RecordBatch.from_pydict({"n": range(1000), "part": ["a b/c", None] * 500})
    assert prepare(destination, "error")
    commit(destination, [write_rows([batch], destination, 0)])
    names = [str(path) for path in (tmp_path / "out").rglob("part-*.tfrecord*")]
    kind = {None: "", "gzip": "GZIP", "zlib": "ZLIB"}[codec]
    records = [r.numpy() for name in sorted(names) for r in tf.data.TFRecordDataset(name, compression_type=kind)]
    numbers = [tf.train.Example.FromString(r).features.feature["n"].int64_list.value[0] for r in records]
    assert sorted(numbers) == list(range(1000))
    assert {p.name for p in (tmp_path / "out").iterdir() if p.name[0] == "_"} == {"_SUCCESS"}
    found = files.find([str(tmp_path / "out")])
    if partition_by:
        assert sorted(dict(file.partition)["part"] or "" for file in found.files) == ["", "a b/c"]
        assert {p.name for p in (tmp_path / "out").iterdir()} == {
            "_SUCCESS",
            "part=a b%2Fc",
            "part=__HIVE_DEFAULT_PARTITION__",
        }


def in_parts(content):
    return b"".join(gzip.compress(content[i : i + 10_000]) for i in range(0, len(content), 10_000))


@pytest.mark.parametrize("size", [100, 101, 4096])
@pytest.mark.parametrize("pack", [bytes, gzip.compress, zlib.compress, in_parts])
def test_chunks_of_any_size_give_the_same_records(tmp_path, size, pack):
    lengths = random.Random(size)
    records = [bytes([n % 256]) * lengths.choice([0, 1, 30, 200, 5000]) for n in range(300)]
    path = tmp_path / "f"
    path.write_bytes(pack(bytes(framed(pa.array(records, pa.large_binary())))))
    found, offset = [], 0
    for chunk in reading.chunks(fs.LocalFileSystem(), files.DataFile("/", str(path), 0), None, size):
        assert (chunk.number, chunk.offset, chunk.is_torn) == (len(found), offset, False)
        found += [chunk.data[a:z].tobytes() for a, z in zip(chunk.frames.start, chunk.frames.end, strict=True)]
        offset += chunk.frames.consumed
    assert found == records


def damaged_file(tmp_path, where, count=10, bad=4):
    """A file in which one record is damaged, where its data or its length stands, or within which it ends."""
    records = [example(n=n) for n in range(count)]
    file = file_of(tmp_path / "damaged", records)
    begin = sum(len(r) + 16 for r in records[:bad])
    content = bytearray((tmp_path / "damaged").read_bytes())
    if where == "cut":
        content = content[: begin + 14]
    else:
        content[begin + {"data": 14, "length": 1}[where]] ^= 1
    (tmp_path / "damaged").write_bytes(content)
    return file, begin, bytes(content[begin:])


@pytest.mark.parametrize("where", ["data", "length", "cut"])
def test_a_damaged_record_is_an_error_with_file_and_offset(tmp_path, where):
    file, begin, _ = damaged_file(tmp_path, where)
    with pytest.raises(
        errors.CorruptRecordError, match=f"damaged: record 4, at byte {begin} .*DROPMALFORMED"
    ) as caught:
        rows_of(file)
    assert (caught.value.file, caught.value.offset) == (str(tmp_path / "damaged"), begin)


@pytest.mark.parametrize(
    ("where", "kept"), [("data", [0, 1, 2, 3, 5, 6, 7, 8, 9]), ("length", [0, 1, 2, 3]), ("cut", [0, 1, 2, 3])]
)
def test_damaged_records_are_dropped_and_counted(tmp_path, where, kept, caplog):
    file, _, _ = damaged_file(tmp_path, where)
    with caplog.at_level(logging.WARNING, "tfos_ml.tfrecord"):
        assert [row["n"] for row in rows_of(file, mode=DROPMALFORMED)] == kept
    assert [record.getMessage() for record in caplog.records] == [
        f"{tmp_path}/damaged: 1 corrupt records were dropped (mode=DROPMALFORMED)"
    ]


@pytest.mark.parametrize("where", ["data", "length", "cut"])
def test_damaged_records_go_to_a_column(tmp_path, where):
    file, _, rest = damaged_file(tmp_path, where)
    found = rows_of(file, mode=PERMISSIVE)
    corrupt = found[4]["_corrupt_record"]
    assert found[4]["n"] is None
    assert corrupt == (rest[12:-4][: len(corrupt)] if where == "data" else rest)
    others = [row for row in found if row["_corrupt_record"] is None]
    assert [row["n"] for row in others] == ([0, 1, 2, 3, 5, 6, 7, 8, 9] if where == "data" else [0, 1, 2, 3])


def test_records_that_do_not_fit_the_columns_are_treated_as_damaged_ones(tmp_path):
    bad = [example(n=1.5), example(n=[1, 2]), b"\xff\xff"]
    file = file_of(tmp_path / "f", [example(n=0), *bad, example(n=4)])
    with pytest.raises(errors.CorruptRecordError, match=r"record 1, .*'n' is a FloatList.*int64.*Int64List"):
        rows_of(file)
    assert [row["n"] for row in rows_of(file, mode=DROPMALFORMED)] == [0, 4]
    found = rows_of(file, mode=PERMISSIVE)
    assert [row["n"] for row in found] == [0, None, None, None, 4]
    assert [row["_corrupt_record"] for row in found] == [None, *bad, None]


@pytest.mark.parametrize("mode", [FAILFAST, DROPMALFORMED, PERMISSIVE])
def test_compressed_files_that_are_cut(tmp_path, mode, caplog):
    whole = gzip.compress(
        bytes(framed(pa.array([random.Random(n).randbytes(500) for n in range(100)], pa.large_binary())))
    )
    (tmp_path / "f.gz").write_bytes(whole[: len(whole) // 2])
    file = files.DataFile(f"{tmp_path}/f.gz", f"{tmp_path}/f.gz", 0)
    schema = pa.schema([("byteArray", pa.binary())])
    if mode == FAILFAST:
        with pytest.raises(errors.CorruptRecordError, match=r"f\.gz: record \d\d, .*compressed file ends too early"):
            rows_of(file, schema, record_type=BYTE_ARRAY, mode=mode)
        return
    with caplog.at_level(logging.WARNING, "tfos_ml.tfrecord"):
        found = rows_of(file, schema, record_type=BYTE_ARRAY, mode=mode)
    assert len(caplog.records) == (mode == DROPMALFORMED)
    assert len([row for row in found if row.get("_corrupt_record") is not None]) == (mode == PERMISSIVE)
    whole_ones = [row["byteArray"] for row in found if row["byteArray"] is not None]
    assert whole_ones == [random.Random(n).randbytes(500) for n in range(len(whole_ones))]
    assert len(whole_ones) > 10


def test_paths_directories_and_patterns(tmp_path):
    for name in ("a/one", "a/two", "b/one", "b/_hidden", "b/.hidden", "_temporary/x/one"):
        file_of(tmp_path / name, [b""])

    def names(*paths):
        return [file.path.removeprefix(f"{tmp_path}/") for file in files.find([f"{tmp_path}/{p}" for p in paths]).files]

    assert names("") == ["a/one", "a/two", "b/one"]
    assert names("*/one") == names("{a,b}/one") == names("[ab]/on?") == names("a/one", "b/one") == ["a/one", "b/one"]
    assert names("a") == ["a/one", "a/two"]
    assert [f.path for f in files.find([f"file://{tmp_path}/b"]).files] == [f"{tmp_path}/b/one"]
    for missing in ("c", "c*", "a/one/x"):
        with pytest.raises(errors.EmptyDataError, match="nothing at"):
            names(missing)


def test_partitions_must_be_the_same_for_all_files(tmp_path):
    file_of(tmp_path / "x=1" / "y=2" / "f", [b""])
    file_of(tmp_path / "x=1" / "g", [b""])
    with pytest.raises(errors.ShapeError, match=r"\['x'\]"):
        files.find([str(tmp_path)]).partition_names  # noqa: B018


@pytest.mark.parametrize(
    ("values", "expected"),
    [
        (["1", "-2", None], "integer"),
        (["1", "3000000000"], "long"),
        (["1", "2.5"], "double"),
        (["1", "a"], "string"),
        ([None], "string"),
        (["9" * 30], "double"),
    ],
)
def test_types_of_partition_columns(values, expected):
    assert files.partition_type(values) == expected


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
    with pytest.raises(errors.EmptyDataError, match="no TFRecords in 1 files"):
        infer(found[1:2], Options(EXAMPLE))
    found.append(file_of(tmp_path / "4", [example(n=b"text")]))
    with pytest.raises(errors.ColumnTypeError, match=r"'n' is .*(Int64List|BytesList) in .*give a schema"):
        infer(found, Options(EXAMPLE))


def test_columns_of_sequence_examples(tmp_path):
    lists = tf.train.FeatureLists(
        feature_list={
            "frames": tf.train.FeatureList(feature=[feature(1, 2), feature(3)]),
            "words": tf.train.FeatureList(feature=[feature(b"a"), feature(b"b")]),
        }
    )
    context = tf.train.Features(feature={"id": feature(7)})
    message = tf.train.SequenceExample(context=context, feature_lists=lists).SerializeToString()
    file = file_of(tmp_path / "f", [message, tf.train.SequenceExample(context=context).SerializeToString()])
    schema = infer([file], Options(SEQUENCE))
    assert schema == pa.schema(
        [("frames", pa.list_(pa.list_(pa.int64()))), ("id", pa.int64()), ("words", pa.list_(pa.string()))]
    )
    assert rows_of(file, schema, record_type=SEQUENCE) == [
        {"frames": [[1, 2], [3]], "id": 7, "words": ["a", "b"]},
        {"frames": None, "id": 7, "words": None},
    ]


def test_files_that_are_no_tfrecords(tmp_path):
    (tmp_path / "f").write_text("a,b\n1,2\n" * 100)
    with pytest.raises(errors.CorruptRecordError, match="no record that is whole"):
        infer([files.DataFile(str(tmp_path), f"{tmp_path}/f", 800)], Options(EXAMPLE))


# Writing


def test_nothing_is_seen_before_the_commit_and_nothing_left_after_abandoning(tmp_path):
    out = tmp_path / "out"
    destination = Destination(str(out), Options(EXAMPLE))
    batch = pa.RecordBatch.from_pydict({"n": [1]})
    write_rows([batch], destination, 0)
    assert not files.find([str(out)]).files
    abandon(destination)
    assert list(out.iterdir()) == []


def test_a_task_that_fails_deletes_its_files(tmp_path):
    def batches():
        yield pa.RecordBatch.from_pydict({"n": [1]})
        raise RuntimeError("no more")

    destination = Destination(str(tmp_path / "out"), Options(EXAMPLE))
    with pytest.raises(RuntimeError, match="no more"):
        write_rows(batches(), destination, 0)
    assert not [path for path in tmp_path.rglob("*") if path.is_file()]


def test_more_partitions_than_files_may_be_open(tmp_path):
    destination = Destination(str(tmp_path / "out"), Options(EXAMPLE, partition_by=("p",)))
    batch = pa.RecordBatch.from_pydict({"n": range(400), "p": [i % 100 for i in range(400)]})
    commit(destination, [write_rows([batch, batch], destination, 0)])
    found = files.find([str(tmp_path / "out")]).files
    numbers = [(file.partition[0][1], row["n"]) for file in found for row in rows_of(file)]
    assert sorted(numbers) == sorted([(str(i % 100), i) for i in range(400)] * 2)


@pytest.mark.parametrize("mode", ["append", "overwrite", "ignore", "error"])
def test_modes(tmp_path, mode):
    out = tmp_path / "out"

    def save(number, mode, schema=None):
        destination = Destination(
            str(out),
            Options(EXAMPLE),
            overwrite=mode == "overwrite",
            schema={"schema": schema or "n", "recordType": EXAMPLE, "partitionBy": []},
        )
        if prepare(destination, mode):
            commit(destination, [write_rows([pa.RecordBatch.from_pydict({"n": [number]})], destination, 0)])

    save(1, "error")
    if mode == "error":
        with pytest.raises(errors.DestinationError, match="exists already"):
            save(2, mode)
    else:
        save(2, mode)
    numbers = sorted(row["n"] for file in files.find([str(out)]).files for row in rows_of(file))
    assert numbers == {"append": [1, 2], "overwrite": [2], "ignore": [1], "error": [1]}[mode]
    assert (out / "_SUCCESS").exists()
    if mode == "append":
        with pytest.raises(errors.DestinationError, match="holds other columns"):
            save(3, mode, "other")


def test_options():
    found = parsed({"RECORDTYPE": "sequenceexample", "compression": "org.apache.hadoop.io.compress.GzipCodec"})
    assert (found.record_type, found.codec, found.mode) == (SEQUENCE, "gzip", FAILFAST)
    assert (
        parsed({"binaryFeatures": "a, b"}).binary_features == parsed({"binaryFeatures": '["a", "b"]'}).binary_features
    )
    for options, message in (
        ({"recordtypes": "Example"}, "no option 'recordtypes'. Did you mean recordType"),
        ({"mode": "strict"}, "mode is 'strict', and takes one of: FAILFAST"),
        ({"sampleRecords": "0"}, "whole number above 0"),
        ({"codec": "snappy"}, "takes one of: gzip"),
    ):
        with pytest.raises(errors.ParamError, match=message):
            parsed(options)
    assert paths_of({"paths": '["a", "b"]'}) == ["a", "b"]
    with pytest.raises(errors.ParamError, match="needs a path"):
        paths_of({})
