"""Rows of one fit that stay on a host for the next fits on the same rows, as those of a search.

A node whose rows have all come links the chunks of its spool a second time, so that they outlive it; nothing is
copied. A node of the next fit links them into its own spool. What is kept belongs to the executor of the node that has
kept it, so that any process may remove it once that has died (:mod:`tfos_ml.common.directories`); the driver has it
removed when the search is over; and fork servers remove what nobody has used for long.
"""

from __future__ import annotations

import contextlib
import json
import os
import shutil
import tempfile
import time
import uuid
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from dataclasses import asdict, dataclass, replace
from pathlib import Path
from typing import Any

from tfos_ml.common import directories
from tfos_ml.data.spool import SHARED_MEMORY, Chunk, SpoolDirectories, disk_root

_KIND = "rows"
_MANIFEST = "manifest.json"


@dataclass(frozen=True)
class KeptRows:
    """The rows of one node."""

    chunks: Sequence[tuple[str, Chunk]]  # by stream, "train" or "validation", in order
    facts: Mapping[str, Any]  # what is known of them, as JSON can have it


def new_key() -> str:
    """A name for the rows of all nodes of a cluster, that no others have."""
    return uuid.uuid4().hex[:16]


def keep(key: str, rank: int, owner: int, rows: KeptRows) -> bool:
    """Keep the rows of the node of a rank on this host; whether there was room for that.

    `owner` is the pid of the process with which they go.
    """
    made: list[Path] = []
    try:
        places = {on_disk: _make(owner, _label(key, rank), on_disk, made) for on_disk in _kinds(rows)}
        moved = [(stream, _link(chunk, places[chunk.on_disk])) for stream, chunk in rows.chunks]
        _write_manifest(made, KeptRows(moved, rows.facts))
    except OSError:  # no inodes, or no directory
        _remove(made)
        return False
    return True


def take(key: str, rank: int, spool: SpoolDirectories, will_do: Callable[[Mapping[str, Any]], bool]) -> KeptRows | None:
    """The rows of the node of a rank, linked into a spool; None if this host does not have them whole.

    `will_do` says whether what is known of them is all that the node is to know.
    """
    for place in _found(_label(key, rank)):
        linked: list[Path] = []
        with contextlib.suppress(OSError, ValueError, LookupError, TypeError):
            manifest = json.loads((place / _MANIFEST).read_text())
            rows = KeptRows([(stream, Chunk(**chunk)) for stream, chunk in manifest["chunks"]], manifest["facts"])
            if not will_do(rows.facts):
                continue
            for directory in manifest["directories"]:
                os.utime(directory)  # it is in use
            return KeptRows([(stream, _taken(chunk, spool, linked)) for stream, chunk in rows.chunks], rows.facts)
        for path in linked:
            path.unlink(missing_ok=True)
    return None


def remove(keys: Iterable[str]) -> None:
    """Remove from this host what is kept by some names."""
    for key in keys:
        _remove(_places(f"{key}-"))


def expire(seconds: float) -> None:
    """Remove from this host what has not been used for so long, and what belonged to processes that have died."""
    directories.sweep(_roots())
    now = time.time()
    for place in _places(""):
        with contextlib.suppress(OSError):
            if now - place.stat().st_mtime > seconds:
                _remove([place])


def _label(key: str, rank: int) -> str:
    return f"{key}-{rank}-"


def _roots() -> set[Path]:
    return {SHARED_MEMORY, disk_root(), Path(tempfile.gettempdir())}


def _places(label: str) -> list[Path]:
    return [place for root in _roots() for place in directories.find(_KIND, root, label)]


def _found(label: str) -> Iterator[Path]:
    """Directories with a manifest, which is written last."""
    return (place for place in _places(label) if (place / _MANIFEST).exists())


def _kinds(rows: KeptRows) -> set[bool]:
    """Whether chunks are on disk; memory for none."""
    return {chunk.on_disk for _, chunk in rows.chunks} or {not SHARED_MEMORY.is_dir()}


def _make(owner: int, label: str, on_disk: bool, made: list[Path]) -> Path:
    root = disk_root() if on_disk else SHARED_MEMORY
    made.append(directories.create_owned(_KIND, root, owner, label))
    return made[-1]


def _link(chunk: Chunk, directory: Path) -> Chunk:
    path = directory / Path(chunk.path).name
    os.link(chunk.path, path)
    return replace(chunk, path=str(path))


def _taken(chunk: Chunk, spool: SpoolDirectories, linked: list[Path]) -> Chunk:
    directory = spool.disk if chunk.on_disk else spool.memory
    if directory is None or os.stat(chunk.path).st_size != chunk.size:
        raise LookupError(chunk.path)
    mine = _link(chunk, directory)
    linked.append(Path(mine.path))
    return mine


def _write_manifest(made: Sequence[Path], rows: KeptRows) -> None:
    chunks = [(stream, asdict(chunk)) for stream, chunk in rows.chunks]
    text = json.dumps({"chunks": chunks, "facts": dict(rows.facts), "directories": [str(place) for place in made]})
    partial = made[0] / f"{_MANIFEST}.partial"
    partial.write_text(text)
    partial.rename(made[0] / _MANIFEST)


def _remove(places: Iterable[Path]) -> None:
    for place in places:
        shutil.rmtree(place, ignore_errors=True)
