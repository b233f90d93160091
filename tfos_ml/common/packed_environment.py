"""What the archives of ``python -m tfos_ml pack`` say of themselves, and where they do not fit.

The first file in an archive names the Python and the machine that it is for. The driver reads it before a job starts.
On executors ``bin/python``, a shell script, compares, and Spark passes on what it prints.
"""

from __future__ import annotations

import contextlib
import json
import platform
import re
import tarfile
from pathlib import Path
from typing import Any
from urllib.parse import urlsplit

from tfos_ml.errors import PackedEnvironmentError

MANIFEST = "tfos_ml-pack.json"
_DOES_NOT_FIT = re.compile(r"bin/python: (packed for [^\n]+)")  # as pack/python.sh says it


def read_manifest(archive: str) -> dict[str, Any] | None:
    """What an archive says of itself; None if it is none of ours, or cannot be read here."""
    path = urlsplit(archive).path if archive.startswith("file:") else archive.partition("#")[0]
    with contextlib.suppress(OSError, EOFError, tarfile.TarError, ValueError):
        if Path(path).is_file():
            with tarfile.open(path, "r|*") as tar:
                first = tar.next()
                file = tar.extractfile(first) if first is not None and first.name == MANIFEST else None
                if file is not None:
                    manifest: dict[str, Any] = json.load(file)
                    return manifest
    return None


def check_archives(archives: str) -> None:
    """Raise ``PackedEnvironmentError`` if a setting lists an archive of ours for another minor version of Python."""
    here = ".".join(platform.python_version_tuple()[:2])
    for archive in filter(None, archives.split(",")):
        manifest = read_manifest(archive.strip())
        if manifest is not None and manifest["python"] != here:
            raise PackedEnvironmentError(
                f"spark.archives has {archive.strip()}, which is for Python {manifest['python']}. The driver's Python "
                f"is {here}, and Spark needs the same minor version on both sides. Pack with the driver's Python: "
                "python -m tfos_ml pack."
            )


def found_in(text: str) -> PackedEnvironmentError | None:
    """The error for what Spark says of a job, if ``bin/python`` of an archive has refused to start on an executor."""
    match = _DOES_NOT_FIT.search(text)
    if match is None:
        return None
    return PackedEnvironmentError(
        f"The packed environment does not run on an executor: {match[1].strip()}. Pack on a host, and with a "
        "Python, like the executors': python -m tfos_ml pack."
    )
