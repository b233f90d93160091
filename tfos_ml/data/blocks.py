"""Blocks: record batches in the same form on the wire and in the spool.

A block is a complete Arrow IPC file in memory. A feed task packs its rows into blocks. The receiving node writes the
bytes to its spool, where the TensorFlow process maps them. Blocks of one stream may have different schemas, since each
contains its own.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence

import pyarrow as pa

MESSAGE_SCHEMA = pa.schema([("rows", pa.int64()), ("block", pa.large_binary())])

END = pa.RecordBatch.from_pylist([{"rows": 0, "block": None}], MESSAGE_SCHEMA)
"""The last message of a complete stream; without it, the sender has failed."""


def pack(batches: Sequence[pa.RecordBatch]) -> pa.RecordBatch:
    """Pack batches of one schema into a block, in a message."""
    sink = pa.BufferOutputStream()
    with pa.ipc.new_file(sink, batches[0].schema) as writer:
        for batch in batches:
            writer.write_batch(batch)
    return message(sink.getvalue(), sum(batch.num_rows for batch in batches))


def message(block: pa.Buffer, rows: int) -> pa.RecordBatch:
    """The message with a block of `rows` rows; without a copy."""
    offsets = pa.array([0, block.size], pa.int64()).buffers()[1]
    column = pa.Array.from_buffers(pa.large_binary(), 1, [None, offsets, block])
    return pa.RecordBatch.from_arrays([pa.array([rows], pa.int64()), column], schema=MESSAGE_SCHEMA)


def unpack(message: pa.RecordBatch) -> tuple[int, pa.Buffer]:
    """Number of rows, and the block, of a message."""
    rows, block = message.columns
    return rows[0].as_py(), block[0].as_buffer()


def check(message: pa.RecordBatch | None) -> None:
    """Refuse a message that :func:`pack` has not made, with an ``ArrowInvalid``, whose text Flight sends back."""
    if message is None or message.schema != MESSAGE_SCHEMA or message.num_rows != 1:
        content = "no record batch" if message is None else f"{message.num_rows} rows of {message.schema.to_string()!r}"
        raise pa.ArrowInvalid(f"malformed block: expected one row of {MESSAGE_SCHEMA.to_string()!r}, got {content}")
    if message.column("rows").null_count or message.column("block").null_count:
        raise pa.ArrowInvalid("malformed block: 'rows' and 'block' must not be null")
    declared, block = unpack(message)
    try:
        found_rows = 0
        for batch in read(block):
            batch.validate(full=True)
            found_rows += batch.num_rows
    except (pa.ArrowException, OSError, ValueError, KeyError) as error:
        raise pa.ArrowInvalid(f"malformed block: its bytes are no whole Arrow file: {error}") from None
    if found_rows != declared:
        raise pa.ArrowInvalid(f"malformed block: it declares {declared} rows and holds {found_rows}")


def is_end(message: pa.RecordBatch | None) -> bool:
    """Whether a message is ``END``."""
    return message is not None and message.equals(END)


def read(block: pa.Buffer) -> Iterator[pa.RecordBatch]:
    """The batches of a block, without a copy."""
    with pa.ipc.open_file(pa.BufferReader(block)) as reader:
        for i in range(reader.num_record_batches):
            yield reader.get_batch(i)
