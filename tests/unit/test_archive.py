"""Packed SavedModels: what is not let out of them, on any Python."""

import io
import tarfile

import pytest

from tfos_ml.common.local_files import LocalFile
from tfos_ml.errors import ModelError
from tfos_ml.inference.archive import Archive

OUTSIDE = [
    {"name": "../outside"},
    {"name": "/tmp/outside"},
    {"name": "link", "type": tarfile.SYMTYPE, "linkname": "/etc/passwd"},
    {"name": "device", "type": tarfile.CHRTYPE},
    {"name": "."},  # a file in place of the directory itself
]


def test_what_no_saved_model_holds_stays_inside(tmp_path):
    for changes in OUTSIDE:
        member, packed = tarfile.TarInfo(), io.BytesIO()
        for name, value in changes.items():
            setattr(member, name, value)
        with tarfile.open(fileobj=packed, mode="w") as tar:
            tar.addfile(member)
        said = f"contains '{changes['name']}'.*only files and directories below its own"
        with pytest.raises(ModelError, match=said):
            Archive(LocalFile.of(packed.getvalue())).unpack(str(tmp_path / "out"))
        assert {path.name for path in tmp_path.rglob("*")} <= {"out"}
