"""Paths that mean the same on every node."""

from __future__ import annotations

import getpass
import os
import posixpath
import re
from urllib.parse import unquote, urlsplit

LOG_DIR = "tensorboard"
"""Of a node: in its temporary directory, or with the run's id in the working directory, where it stays."""
WRITTEN_BY_TENSORFLOW = ("", "file", "gs")
"""Schemes that TensorFlow writes by itself; for all others, S3 and HDFS too, it needs a package of its own."""
_SCHEME = re.compile(r"^[A-Za-z][A-Za-z0-9+.-]*:/")
_WITH_HOMES = ("hdfs", "viewfs", "webhdfs", "swebhdfs")


def absolute_path(
    path: str, default_fs: str, working_dir: str, user: str | None = None, home: str | None = None
) -> str:
    """An absolute path or URI for `path`, which the user wrote.

    URIs stay as they are, but one of a local file with quoted characters (``Path.as_uri()``) becomes its path, which
    all take alike: Spark and TensorFlow take a URI literally, pyarrow does not. Absolute paths are put on the default
    filesystem, ``~`` is the user's home there, and so is where relative paths lead. On the local filesystem those are
    in `working_dir`; object stores have no homes, and there they are in the bucket. `user`, and `home` on the local
    filesystem, are by default those of this process.

    >>> absolute_path("/data/x", "hdfs://nn:8020", "/tmp")
    'hdfs://nn:8020/data/x'
    >>> absolute_path("/data/x", "viewfs:///", "/tmp")
    'viewfs:///data/x'
    >>> absolute_path("x", "file:///", "/tmp")
    '/tmp/x'
    >>> absolute_path("file:///data/my%20rows", "hdfs://nn:8020", "/tmp")
    '/data/my rows'
    """
    if _SCHEME.match(path):
        scheme, _, local, *_ = urlsplit(path)
        return unquote(local) if scheme.lower() == "file" and "%" in local else path
    if path == "~" or path.startswith("~/"):
        below, at_home = path[2:], True
    else:
        below, at_home = path, False
    scheme, host, root, *_ = urlsplit(default_fs)
    if scheme in ("", "file"):
        local_home = home or os.path.expanduser("~")
        return _joined(local_home if at_home else working_dir, below)
    start = f"/user/{user or getpass.getuser()}" if scheme in _WITH_HOMES else "/"
    return f"{scheme}://{host}{root.rstrip('/')}{_joined(start, below)}"


def is_remote(path: str) -> bool:
    """Whether event files for an absolute path are to be written elsewhere, and copied there.

    >>> is_remote("s3://bucket/logs"), is_remote("/logs"), is_remote("file:///logs")
    (True, False, False)
    """
    return urlsplit(path).scheme.lower() not in WRITTEN_BY_TENSORFLOW


def _joined(directory: str, path: str) -> str:
    return posixpath.join(directory, path) if path else directory
