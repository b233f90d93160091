"""How the rows of a fit come to the nodes: Spark feeds them, or the nodes read files themselves; and why."""

from __future__ import annotations

import os
import time
from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

from tfos_ml.common.filesystems import StorageError
from tfos_ml.common.hadoop import pyarrow_uri
from tfos_ml.common.redact import redact
from tfos_ml.data import row_cache
from tfos_ml.data.file_plan import BINARY_FILE, CSV, JSON, PARQUET, TEXTS, TFRECORD, FilePlan
from tfos_ml.data.row_cache import CachedRows
from tfos_ml.data.validation_draw import ValidationDraw
from tfos_ml.driver.file_scan import NotDirectError
from tfos_ml.driver.row_caching import RowCache
from tfos_ml.errors import DestinationError, InputPathError, ParamError

_FORMATS = {PARQUET: "Parquet", BINARY_FILE: "binary", TFRECORD: "TFRecord", CSV: "CSV", JSON: "JSON"}


@dataclass(frozen=True)
class InputChoice:
    """The way that rows take, and why."""

    plan: FilePlan | None  # None: Spark feeds the rows, or they are to be cached
    reason: str
    cache: RowCache | None = None  # where the nodes' rows are, or will be
    key: str = ""  # of the cached rows
    validation: str | ValidationDraw | None = None  # of the cached rows
    reused: bool = False  # whether they were there before
    is_given_up: bool = False  # the nodes were to read files, and met text that Spark may read otherwise
    waits_because: str = ""  # why nodes do not begin before all rows are there, though the plan would allow it

    def __str__(self) -> str:
        if self.cache is not None:
            return f"cache: {self.reason}"
        return f"{'spark' if self.plan is None else 'direct'}: {self.reason}"

    @property
    def is_fed(self) -> bool:
        """Whether Spark feeds the rows."""
        return self.plan is None and self.cache is None

    def ready(self) -> InputChoice:
        """The same with a plan, if nodes read files; rows are written to the cache by a job if they are not there."""
        if self.cache is None:
            return self
        found, reused = self.cache.take(self.key)
        plan = found.plan(len(self.cache.schema.columns), self.validation)
        return InputChoice(plan, self.reason, self.cache, self.key, self.validation, reused)

    def facts(self) -> dict[str, Any]:
        """What a fitted model tells of cached rows, or of a way that was given up."""
        if self.is_given_up:
            return {"fed_because": self.reason}
        if self.cache is None or self.plan is None:
            return {}
        return {"cache": {"key": self.key, "reused": self.reused, "rows": self.plan.rows}}


@dataclass(frozen=True)
class InputWays:
    """The ways that there may be; each raises ``NotDirectError`` if it cannot be taken."""

    plan: Callable[[], FilePlan]
    cache: RowCache | None
    validation: str | ValidationDraw | None  # of cached rows

    def best(self, nodes: int) -> InputChoice:
        """The files themselves, else cached rows."""
        try:
            return _direct(self.plan(), nodes)
        except NotDirectError as error:
            if self.cache is None:
                raise
            why = str(error)
        try:
            return _cached(self.cache, self.validation, why)
        except NotDirectError as error:
            raise NotDirectError(f"{why}; {error}") from None


def choose_input(path: str, nodes: int, ways: InputWays) -> InputChoice:
    """The way of the rows by the Param ``inputPath``, "direct" or "auto", to so many nodes that train.

    Raises ``InputPathError`` if nodes must read files and cannot, ``DestinationError`` if cached rows cannot be looked
    for.
    """
    try:
        return ways.best(nodes)
    except NotDirectError as error:
        if path == "direct":
            raise InputPathError(
                f"inputPath='direct', but nodes cannot read the files of the DataFrame themselves: {error}. Set "
                "inputPath='auto' or 'spark', or write the rows to Parquet files and read those (spark.read.parquet)."
            ) from None
        return InputChoice(None, str(error))


def _direct(plan: FilePlan, nodes: int) -> InputChoice:
    readers = min(nodes, len(plan.units(nodes)))
    told = f"{nodes} nodes" if readers == nodes else f"{readers} of {nodes} nodes"
    shared = "the node reads them" if nodes == 1 else f"{told} read a share each, and send the others their rows"
    return InputChoice(plan, f"a plain scan of {_told_of(plan)}; {shared}")


def _told_of(plan: FilePlan) -> str:
    files = f"{len(plan.files):,} {_FORMATS[plan.format]} file(s)"
    if plan.format == PARQUET:
        files += f" with {plan.row_groups:,} row group(s) and {plan.rows:,} row(s)"
    if plan.format in TEXTS:
        files += ", if it is certain what Spark reads in them"
    return files + " before the filter" * (plan.condition is not None)


def _cached(cache: RowCache, validation: str | ValidationDraw | None, why: str) -> InputChoice:
    key = cache.key()
    found = cache.find(key)
    told = "a job writes them to cacheDir first" if found is None else _told(found)
    whose = "" if cache.name is None else f"; cacheKey={cache.name!r} says that they are the same"
    return InputChoice(None, f"nodes read rows of key {key}: {told} ({why}{whose})", cache, key, validation)


def _told(found: CachedRows) -> str:
    used = time.strftime("%Y-%m-%d %H:%M:%S", time.localtime(found.used))
    return f"{found.rows:,} row(s) in {len(found.files):,} file(s) of cacheDir, last used at {used}"


def check_cache_dir(path: str, cache_dir: str | None, cache_key: str | None) -> None:
    """Raise ``ParamError`` if ``cacheDir`` is set and ``inputPath`` has Spark feed all rows, or a key without it."""
    if cache_key and not cache_dir:
        raise ParamError(
            f"cacheKey={cache_key!r} names rows in cacheDir, which is not set. Set cacheDir to a directory that all "
            "nodes reach, or unset cacheKey."
        )
    if cache_dir and path == "spark":
        raise ParamError(
            "cacheDir is set, and inputPath='spark' has Spark feed all rows: nodes would not read the cache. Set "
            "inputPath='auto', or 'direct', or unset cacheDir."
        )


def delete_cache(cacheDir: str, unusedSeconds: float = 0.0) -> int:
    """Delete the rows that fits have written to a ``cacheDir``.

    Rows that a fit reads at the moment are deleted, too: it then ends with ``FilesChangedError``. Anything else in the
    directory stays.

    Parameters
    ----------
    cacheDir : str
        The directory: a path, or a URI of ``pyarrow.fs``.
    unusedSeconds : float, default 0.0
        Only rows that no fit has begun to use for so many seconds.

    Returns
    -------
    int
        Number of copies of rows that were deleted.

    Raises
    ------
    DestinationError
        If the directory cannot be reached.

    Examples
    --------
    >>> import tempfile
    >>> from tfos_ml import delete_cache
    >>> delete_cache(tempfile.mkdtemp(), unusedSeconds=7 * 86400)
    0
    """
    uri = pyarrow_uri(cacheDir) if "://" in cacheDir else os.path.abspath(cacheDir)
    try:
        return row_cache.delete(uri, unusedSeconds)
    except StorageError as error:
        raise DestinationError(f"cacheDir={redact(cacheDir)!r} cannot be reached: {error}.") from None
