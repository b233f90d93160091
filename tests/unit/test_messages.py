"""What crosses the socket pair comes out as it went in, and what does not fit is a typed error."""

import pytest
from node_tasks import make_start

from tfos_ml import errors
from tfos_ml.data.schema import ColumnConstraint, ColumnSpec, FeedSchema
from tfos_ml.data.spool import Chunk
from tfos_ml.protocol import messages as m
from tfos_ml.protocol.codec import MessageError, decode, encode
from tfos_ml.protocol.failure import Failure
from tfos_ml.protocol.node_task import NodeSettings, Telemetry
from tfos_ml.protocol.training_position import Position

COUNTS = m.RowCounts("AAAA", rows={"train": 3, "validation": 1}, skipped=2, extents=[[[1, 2]], []])
SETTINGS = NodeSettings(
    model_dir="hdfs://nn/models", pad_value=-1.5, files=["a", "b"], queues=["input"], telemetry=Telemetry(5, 0.5)
)
SCHEMA = FeedSchema(
    (ColumnSpec("x", "a.b", "feature", "float32", 2, constraint=ColumnConstraint("x", (None, 3))),), True
)
EXAMPLES = [  # whose fields are more than texts and numbers
    make_start(settings=SETTINGS, schema=SCHEMA),
    m.ChunkReady("train", Chunk("/dev/shm/é", 10, 1000, False, inference=3)),
    m.Agreement({"worker:0": COUNTS, "worker:1": m.RowCounts(why="has ended")}),
    m.BarrierPassed("start", None),
    m.RowsRead(call=7),
    m.Answers("/a", [(1, 20), (2, 3)]),
    m.Report({"loss": 0.5, "rows": 3}, None, 4, 1.5, "worker:0"),
    m.Summary({"ending": "returned", "nested": {"a": [1, None]}}),
    m.Trained(Position(1, 20, 50), is_saved=True),
    Failure(errors.TrainFnError, "it broke", traceback="é\n", collateral=True),
]


def received(content):
    return decode(m.Message, content)


@pytest.mark.parametrize("message", EXAMPLES, ids=lambda message: type(message).__name__)
def test_a_message_arrives_as_it_was_sent(message):
    assert received(encode(message)) == message


@pytest.mark.parametrize("content", [b"", b"\xc1", encode(None), encode([]), encode("EndOfInput"), b"\x91" * 100_000])
def test_what_is_no_message_is_an_error(content):
    with pytest.raises(MessageError, match="^expected "):
        received(content)


@pytest.mark.parametrize(
    ("content", "problem"),
    [
        ({}, "missing required field `type`"),
        ({"type": "Nothing"}, "Invalid value 'Nothing'"),
        ({"type": "EndOfInput", "more": 1}, "unknown field `more`"),
        ({"type": "RowsRead", "call": "7"}, r"Expected `int | null`, got `str` - at `\$\.call`"),
        ({"type": "ChunkReady", "stream": "a", "chunk": {}}, r"missing required field `path` - at `\$\.chunk`"),
        ({"type": "Failure", "error": "OSError", "message": ""}, "got 'OSError' - at `"),
        ({"type": "Failure", "error": "annotations", "message": ""}, "got 'annotations' - at `"),
    ],
)
def test_fields_that_do_not_fit_are_an_error_that_names_them(content, problem):
    with pytest.raises(MessageError, match=problem):
        received(encode(content))


def test_what_cannot_be_sent_is_an_error_of_the_sender():
    with pytest.raises(TypeError, match="object is no message and no plain value"):
        encode(m.Summary({"facts": object()}))


def test_the_secret_of_a_run_is_not_shown():
    assert "hunter2" not in repr(make_start(secret="hunter2"))


def test_settings_show_no_paths_which_may_hold_passwords():
    shown = repr(
        NodeSettings(model_dir="s3://key:hunter2@b", log_dir="s3://key:hunter2@b", files=["s3://key:hunter2@b"])
    )
    assert "hunter2" not in shown
