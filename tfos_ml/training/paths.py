"""Paths that mean the same on every node."""

from __future__ import annotations

import getpass
import os
import re

LOG_DIR = "tensorboard"  # in the temporary directory of a node, unless the user names another
_SCHEME = re.compile(r"^[A-Za-z][A-Za-z0-9+.-]*:/")


def absolute_path(path: str, default_fs: str, working_dir: str) -> str:
    """An absolute path or URI for `path`.

    URIs stay as they are; absolute paths are put on the default filesystem, ``~`` is the user's home
    there, and so is where relative paths lead, unless it is the local filesystem: then they are in
    `working_dir`.

    Examples
    --------
    >>> absolute_path("/data/x", "hdfs://nn:8020", "/tmp")
    'hdfs://nn:8020/data/x'
    >>> absolute_path("x", "file:///", "/tmp")
    '/tmp/x'
    """
    if _SCHEME.match(path):
        return path
    if default_fs.startswith("file:"):
        return os.path.join(working_dir, os.path.expanduser(path))
    root = default_fs.rstrip("/")
    in_home = path.removeprefix("~/") if path != "~" else ""
    return f"{root}{path}" if path.startswith("/") else f"{root}/user/{getpass.getuser()}/{in_home}".rstrip("/")
