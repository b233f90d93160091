"""Packed SavedModels: what comes out of them, on any Python, and what is not let out."""

from __future__ import annotations

import io
import tarfile

import pytest

from tfos_ml.common.local_files import LocalFile
from tfos_ml.errors import ModelError
from tfos_ml.inference.archive import Archive


def archive_of(**changes):
    """An archive of one member, which is an empty file unless `changes` make it another."""
    member = tarfile.TarInfo("variables/data")
    for name, value in changes.items():
        setattr(member, name, value)
    packed = io.BytesIO()
    with tarfile.open(fileobj=packed, mode="w") as tar:
        tar.addfile(member)
    return Archive(LocalFile.of(packed.getvalue()))


def content(directory):
    return {p.relative_to(directory).as_posix(): p.is_file() and p.read_bytes() for p in directory.rglob("*")}


@pytest.mark.parametrize(
    "member",
    [
        {"name": "../outside"},
        {"name": "/tmp/outside"},
        {"name": "link", "type": tarfile.SYMTYPE, "linkname": "/etc/passwd"},
        {"name": "device", "type": tarfile.CHRTYPE},
    ],
    ids=lambda member: str(member["name"]),
)
def test_what_no_saved_model_holds_stays_inside(member, tmp_path):
    with pytest.raises(ModelError, match=f"contains '{member['name']}'.*only files and directories below its own"):
        archive_of(**member).unpack(str(tmp_path / "out"))
    assert content(tmp_path) in ({}, {"out": False})
