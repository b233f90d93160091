"""The rows of the barrier job: what nodes bring home, written by them and read by the driver.

A node's report, results and SavedModel travel as binary payloads in parts far below Spark
Connect's limit of 4 MiB for an Arrow batch.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, NamedTuple

import pyarrow as pa

from tfos_ml.common.local_files import FileWriter, LocalFile

RESULT_SCHEMA = "rank int, kind string, payload binary"
ARROW_SCHEMA = pa.schema([("rank", pa.int32()), ("kind", pa.string()), ("payload", pa.binary())])
PAYLOAD_BYTES = 1 << 20
REPORTS = "reports"
"""Kind of the rows with metrics and lines that the driver may not have yet."""
MODEL = "model"
"""Kind of the rows with parts of a packed SavedModel."""
END = "end"
"""Kind of the last row of a delivery that is whole, where no Spark job proves that."""


class ResultRow(NamedTuple):
    """One row of ``RESULT_SCHEMA``."""

    rank: int
    kind: str
    payload: bytes


def read_rows(batch: pa.RecordBatch) -> Iterator[ResultRow]:
    """The rows of a batch."""
    return (ResultRow(**row) for row in batch.to_pylist())


def row(rank: int, kind: str, payload: bytes) -> pa.RecordBatch:
    """One row of ``RESULT_SCHEMA``."""
    return pa.RecordBatch.from_pylist([{"rank": rank, "kind": kind, "payload": payload}], ARROW_SCHEMA)


def rows_of_file(rank: int, kind: str, path: str | Path) -> Iterator[pa.RecordBatch]:
    """A file as rows, a part each, in order."""
    with open(path, "rb") as file:
        while part := file.read(PAYLOAD_BYTES):
            yield row(rank, kind, part)


@dataclass(frozen=True)
class Results:
    """What nodes have brought home: models in files, all else in rows."""

    rows: list[Any] = field(default_factory=list)
    models: dict[int, LocalFile] = field(default_factory=dict)  # packed SavedModels, by rank

    @property
    def model(self) -> LocalFile | None:
        """The model of the lowest rank that has any."""
        return self.models[min(self.models)] if self.models else None


def received(rows: Iterable[Any]) -> Results:
    """Result rows as they arrive; parts of models are written to files at once."""
    others, writers = [], {}
    for row in rows:
        if row.kind != MODEL:
            others.append(row)
            continue
        if row.rank not in writers:
            writers[row.rank] = FileWriter()
        writers[row.rank].write(row.payload)
    return Results(others, {rank: writer.finish() for rank, writer in writers.items()})


def merged(parts: Iterable[Results]) -> Results:
    """The results of different nodes together."""
    together = Results()
    for part in parts:
        together.rows.extend(part.rows)
        together.models.update(part.models)
    return together


def joined(rows: Iterable[Any], kind: str) -> Iterator[tuple[int, bytes]]:
    """The payloads of one kind, parts joined, each with its node's rank; by rank."""
    parts: dict[int, list[bytes]] = {}
    for row in rows:
        if row.kind == kind:
            parts.setdefault(row.rank, []).append(row.payload)
    for rank in sorted(parts):
        yield rank, b"".join(parts[rank])
