"""What crosses the socket pair comes out as it went in, and what does not fit is a typed error."""

import dataclasses
import json
from typing import get_args

import pytest
from node_tasks import make_start

from tfos_ml import errors
from tfos_ml.data.schema import ColumnConstraint, ColumnSpec, FeedSchema
from tfos_ml.data.spool import Chunk
from tfos_ml.protocol import messages as m
from tfos_ml.protocol.codec import MessageError, decode, encode
from tfos_ml.protocol.failure import Failure
from tfos_ml.protocol.settings import NodeSettings, Telemetry

COUNTS = m.RowCounts("AAAA", rows={"train": 3, "validation": 1}, skipped=2, extents=[[[1, 2]], []])
SETTINGS = NodeSettings(
    model_dir="hdfs://nn/models", pad_value=-1.5, files=["a", "b"], queues=["input"], telemetry=Telemetry(5, 0.5, 2)
)
SCHEMA = FeedSchema(
    (ColumnSpec("x", "a.b", "feature", "float32", 2, constraint=ColumnConstraint("x", (None, 3))),), True
)
EXAMPLES = [
    make_start(settings=SETTINGS, schema=SCHEMA),
    m.ChunkReady("train", Chunk("/dev/shm/é", 10, 1000, False, exchange=3)),
    m.Segment("input", 7, 2),
    m.EndOfInput(),
    m.Agreement({"worker:0": COUNTS, "worker:1": m.RowCounts(why="has ended")}),
    m.BarrierPassed("start", None),
    m.PortReleased(),
    m.CheckpointTaken(),
    m.ClusterDone(),
    m.Heartbeat(serves=True),
    m.Reading("dataset", keeps_rows=True),
    m.ChunkReleased("/a"),
    m.ChunkRead("/a"),
    m.SegmentRead(7),
    m.RowsTaken(),
    m.Answers("/a", [(1, 20), (2, 3)]),
    m.ReleasePort(),
    m.BarrierReached("start"),
    m.Report({"loss": 0.5, "rows": 3}, None, 4, 1.5),
    m.LogLine("zeile\n é"),
    m.Summary({"ending": "returned", "nested": {"a": [1, None]}}),
    m.Checkpoint("/a", 3, {"loss": 0.5}, 1.5),
    m.Exported("/a"),
    m.Results("/a"),
    m.Returned(),
    Failure(errors.TrainFnError, "it broke", traceback="é\n", collateral=True),
]


def test_there_is_an_example_of_every_message():
    assert {type(message) for message in EXAMPLES} == set(get_args(m.Message))


@pytest.mark.parametrize("message", EXAMPLES, ids=lambda message: type(message).__name__)
def test_a_message_arrives_as_it_was_sent(message):
    line = m.encode_line(message)
    assert line.endswith(b"\n")
    assert line.count(b"\n") == 1
    assert m.decode_line(line) == message


@pytest.mark.parametrize("message", EXAMPLES, ids=lambda message: type(message).__name__)
def test_messages_are_frozen(message):
    assert dataclasses.is_dataclass(message)
    assert type(message).__dataclass_params__.frozen


@pytest.mark.parametrize(
    "line",
    [b"", b"\n", b"{", b"null", b"[]", b'"EndOfInput"', b'{"type": "Nothing"}', b'{"type": ["a"]}', b"\xff"],
)
def test_an_unknown_kind_is_an_error(line):
    with pytest.raises(MessageError, match="expected a message of type .*'EndOfInput'"):
        m.decode_line(line)


@pytest.mark.parametrize(
    ("content", "problem"),
    [
        ({"type": "EndOfInput", "more": 1}, r"EndOfInput: unknown fields \['more'\], missing fields \[\]"),
        ({"type": "Segment", "stream": "input"}, r"unknown fields \[\], missing fields \['epochs', 'number'\]"),
        ({"type": "SegmentRead", "number": "7"}, r"SegmentRead\.number: expected .*int.*, got '7'"),
        ({"type": "LogLine", "text": None}, r"LogLine\.text: expected .*str.*, got None"),
        ({"type": "Answers", "path": "/a", "runs": {}}, r"Answers\.runs: expected list.*got {}"),
        ({"type": "ChunkReady", "stream": "a", "chunk": {}}, r"Chunk: .* missing fields \['on_disk', 'path'"),
        ({"type": "ChunkReady", "stream": "a", "chunk": 3}, "Chunk: expected a JSON object, got int"),
        ({"type": "Agreement", "counts": {"worker:0": {"x": 1}}}, r"RowCounts: unknown fields \['x'\]"),
        ({"type": "Failure", "error": "OSError", "message": ""}, r"Failure\.error: .*got 'OSError'"),
        ({"type": "Failure", "error": "annotations", "message": ""}, r"Failure\.error: .*got 'annotations'"),
    ],
)
def test_fields_that_do_not_fit_are_an_error_that_names_them(content, problem):
    with pytest.raises(MessageError, match=problem):
        m.decode_line(json.dumps(content).encode())


def test_what_no_json_can_hold_is_an_error_of_the_sender():
    with pytest.raises(TypeError, match=r"no JSON value"):
        m.encode_line(m.Summary({"facts": object()}))


def test_settings_with_their_defaults_arrive_as_they_were():
    for settings in (NodeSettings(), SETTINGS):
        assert decode(NodeSettings, json.loads(encode(settings))) == settings


def test_settings_show_no_paths_which_may_hold_passwords():
    shown = repr(
        NodeSettings(model_dir="s3://key:hunter2@b", log_dir="s3://key:hunter2@b", files=["s3://key:hunter2@b"])
    )
    assert "hunter2" not in shown


def test_paths_of_settings_are_those_of_the_driver():
    settings = NodeSettings(default_fs="file:///", working_dir="/work", user="u", home="/home/u")
    assert settings.absolute_path("models") == "/work/models"
    assert settings.absolute_path("~/models") == "/home/u/models"
    there = dataclasses.replace(settings, default_fs="hdfs://nn:8020")
    assert there.absolute_path("models") == "hdfs://nn:8020/user/u/models"
