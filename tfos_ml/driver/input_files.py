"""The input files of a DataFrame, and whether they have changed."""

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
"""Size and modification time by name; None if the filesystem does not provide them."""


def input_files(df: DataFrame) -> InputFiles:
    """The input files of a DataFrame, with size and modification time if their filesystem provides them."""
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
    """Size and modification time of files of one store, which pyarrow can open."""
    root = first.removesuffix(unquote(urlsplit(names[0]).path))
    infos = filesystem.get_file_info([root + unquote(urlsplit(name).path) for name in names])
    facts = ([info.size, info.mtime_ns or 0] if info.type == fs.FileType.File else None for info in infos)
    return dict(zip(names, facts, strict=True))


def changes(then: InputFiles, now: InputFiles) -> str:
    """A description of the differences; empty if there are none."""
    changed = [name for name, facts in now.items() if name not in then or (facts and then[name] not in (None, facts))]
    gone = [name for name in then if name not in now]
    if not (changed or gone):
        return ""
    named = ", ".join(map(redact, (changed + gone)[:MOST_NAMED]))
    return f"{len(changed)} are new or have changed, {len(gone)} are gone ({named})"
