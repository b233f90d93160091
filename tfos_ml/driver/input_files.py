"""The files of a DataFrame, and whether they are still the same."""

from __future__ import annotations

import contextlib
from collections.abc import Mapping, Sequence
from functools import partial
from typing import TYPE_CHECKING, TypeAlias
from urllib.parse import unquote, urlsplit

from pyarrow import fs

from tfos_ml.common import filesystems
from tfos_ml.common.hadoop import pyarrow_uri
from tfos_ml.common.redact import redact

if TYPE_CHECKING:
    from pyspark.sql import DataFrame

MOST_NAMED = 3
InputFiles: TypeAlias = Mapping[str, Sequence[int] | None]
"""Size and time of modification by name; None where the filesystem does not tell them."""


def input_files(df: DataFrame) -> InputFiles:
    """The files of a DataFrame, with size and time of modification where their filesystem tells them."""
    names = sorted(df.inputFiles())
    facts: dict[str, Sequence[int] | None] = dict.fromkeys(names)
    by_store: dict[tuple[str, str], list[str]] = {}
    for name in names:
        by_store.setdefault(urlsplit(name)[:2], []).append(name)
    for group in by_store.values():
        with contextlib.suppress(Exception):  # of stores that only Spark knows
            facts |= filesystems.request(pyarrow_uri(group[0]), partial(_facts, group))
    return facts


def _facts(names: Sequence[str], filesystem: fs.FileSystem, first: str) -> InputFiles:
    """What a store tells of its files, of which the first is at a path that pyarrow knows."""
    root = first.removesuffix(unquote(urlsplit(names[0]).path))
    infos = filesystem.get_file_info([root + unquote(urlsplit(name).path) for name in names])
    facts = ([info.size, info.mtime_ns or 0] if info.type == fs.FileType.File else None for info in infos)
    return dict(zip(names, facts, strict=True))


def changes(then: InputFiles, now: InputFiles) -> str:
    """What is different; empty if nothing is."""
    changed = [name for name, facts in now.items() if name not in then or (facts and then[name] not in (None, facts))]
    gone = [name for name in then if name not in now]
    if not (changed or gone):
        return ""
    named = ", ".join(map(redact, (changed + gone)[:MOST_NAMED]))
    return f"{len(changed)} are new or have changed, {len(gone)} are gone ({named})"
