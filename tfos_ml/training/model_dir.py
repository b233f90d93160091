"""Where in ``modelDir`` checkpoints are kept, and whether it can hold them."""

from __future__ import annotations

import pyarrow as pa
from pyarrow import fs

from tfos_ml.errors import DestinationError

FOLDER = "tfos_ml"


def check_model_dir(uri: str) -> None:
    """Raise ``DestinationError`` if ``modelDir`` cannot hold checkpoints, as seen from here."""
    try:
        filesystem, path = fs.FileSystem.from_uri(uri)
        info = filesystem.get_file_info(path)
        entries = filesystem.get_file_info(fs.FileSelector(path)) if info.type == fs.FileType.Directory else []
    except (pa.ArrowException, ValueError, OSError) as error:
        raise DestinationError(
            f"modelDir={uri!r} is no absolute path or URI that pyarrow.fs can read: {error}"
        ) from None
    names = sorted(e.base_name for e in entries)
    if info.type == fs.FileType.File or (names and FOLDER not in names):
        what = "is a file" if info.type == fs.FileType.File else f"holds other things: {names[:5]}"
        raise DestinationError(f"modelDir={uri!r} {what}. Choose a new directory, or one of an earlier fit.")
