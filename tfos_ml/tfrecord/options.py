"""The options of the data source."""

from __future__ import annotations

import difflib
import json
from collections.abc import Mapping
from dataclasses import dataclass

from tfos_ml.errors import ParamError
from tfos_ml.tfrecord.feature_types import RECORD_TYPES

GZIP, ZLIB, PLAIN = "gzip", "zlib", "none"
_CODECS = {
    "gzip": GZIP,
    "org.apache.hadoop.io.compress.gzipcodec": GZIP,
    "zlib": ZLIB,
    "deflate": ZLIB,
    "org.apache.hadoop.io.compress.deflatecodec": ZLIB,
    "org.apache.hadoop.io.compress.defaultcodec": ZLIB,
    "none": PLAIN,
    "uncompressed": PLAIN,
}
_PATHS = ("path", "paths")
_NAMES = (
    *("recordType", "codec", "compression"),
    *("binaryFeatures", "sampleRecords", "maxPartitionBytes", "partitionBy"),
)


@dataclass(frozen=True)
class Options:
    """How files are read and written; :func:`parsed` makes them from the options of a user."""

    record_type: str = ""  # empty: that of the schema file, or else Example
    codec: str | None = None  # None: for reading, detected from the first bytes of a file; for writing, no compression
    binary_features: tuple[str, ...] = ()  # to read as binary rather than as string
    sample_records: int = 100  # number of records of each file from which columns are inferred
    max_partition_bytes: int = 128 << 20  # bytes of files that one task reads
    partition_by: tuple[str, ...] = ()


def parsed(options: Mapping[str, str]) -> Options:
    """Parse options, by name in any case; raises ``ParamError`` for an unknown option or a wrong value."""
    known = {name.lower(): name for name in (*_NAMES, *_PATHS)}
    given: dict[str, str] = {}
    for key, value in options.items():
        if key.lower() not in known:
            near = difflib.get_close_matches(key.lower(), known, 1)
            hint = f" Did you mean {known[near[0]]}?" if near else ""
            raise ParamError(f"Unknown option '{key}' of the data source tfrecord.{hint} Options: {', '.join(_NAMES)}.")
        given[known[key.lower()]] = value
    default = Options()
    codec = given.get("codec", given.get("compression"))
    return Options(
        record_type=_one_of("recordType", given["recordType"], RECORD_TYPES) if "recordType" in given else "",
        codec=_CODECS[_one_of("codec", codec, tuple(_CODECS))] if codec else None,
        binary_features=_names(given.get("binaryFeatures", "")),
        sample_records=_positive("sampleRecords", given.get("sampleRecords", default.sample_records)),
        max_partition_bytes=_positive("maxPartitionBytes", given.get("maxPartitionBytes", default.max_partition_bytes)),
        partition_by=_names(given.get("partitionBy", "")),
    )


def paths_of(options: Mapping[str, str]) -> list[str]:
    """The paths that were given to ``load`` or ``save``; raises ``ParamError`` if there are none."""
    given = {key.lower(): value for key, value in options.items()}
    paths: list[str] = json.loads(given.get("paths", "[]"))
    if "path" in given:
        paths.append(given["path"])
    if not paths:
        raise ParamError("The data source tfrecord needs a path: load(path) or save(path).")
    return paths


def _one_of(name: str, value: str, known: tuple[str, ...]) -> str:
    for candidate in known:
        if candidate.lower() == str(value).lower():
            return candidate
    raise ParamError(f"Option {name} must be one of {', '.join(known)}. Received: '{value}'")


def _positive(name: str, value: str | int) -> int:
    if not str(value).isdecimal() or int(value) < 1:
        raise ParamError(f"Option {name} must be a positive integer. Received: '{value}'")
    return int(value)


def _names(text: str) -> tuple[str, ...]:
    """Names from a JSON list or a comma-separated list."""
    if text.lstrip().startswith("["):
        return tuple(json.loads(text))
    return tuple(name.strip() for name in text.split(",") if name.strip())
