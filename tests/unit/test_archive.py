"""Packed SavedModels: what comes out of them, on any Python, and what is not let out."""

from __future__ import annotations

import io
import os
import subprocess
import sys
import tarfile
import tempfile
from pathlib import Path

import pytest

from tfos_ml.common.local_files import LocalFile
from tfos_ml.errors import ModelError
from tfos_ml.inference.archive import Archive, pack


def archive_of(**changes):
    """An archive of one member, which is an empty file unless `changes` make it another."""
    member = tarfile.TarInfo("variables/data")
    for name, value in changes.items():
        setattr(member, name, value)
    packed = io.BytesIO()
    with tarfile.open(fileobj=packed, mode="w") as tar:
        tar.addfile(member)
    return Archive(LocalFile.of(packed.getvalue()))


@pytest.fixture
def packed(tmp_path):
    model = tmp_path / "model"
    (model / "variables" / "empty").mkdir(parents=True)
    (model / "saved_model.pb").write_bytes(b"graph")
    (model / "variables" / "data").write_bytes(b"x" * 100_000)
    return pack(str(model), tmp_path)


def content(directory):
    return {p.relative_to(directory).as_posix(): p.is_file() and p.read_bytes() for p in directory.rglob("*")}


def test_all_files_come_out_as_they_were_packed(packed, tmp_path):
    Archive(LocalFile.of(packed.read_bytes())).unpack(str(tmp_path / "out"))
    assert content(tmp_path / "out") == content(tmp_path / "model")


@pytest.mark.parametrize(
    "member",
    [
        {"name": "../outside"},
        {"name": "variables/../../outside"},
        {"name": "/tmp/outside"},
        {"name": "link", "type": tarfile.SYMTYPE, "linkname": "/etc/passwd"},
        {"name": "link", "type": tarfile.LNKTYPE, "linkname": "variables/data"},
        {"name": "pipe", "type": tarfile.FIFOTYPE},
        {"name": "device", "type": tarfile.CHRTYPE},
    ],
    ids=lambda member: str(member["name"]),
)
def test_what_no_saved_model_holds_stays_inside(member, tmp_path):
    with pytest.raises(ModelError, match=f"contains '{member['name']}'.*only files and directories below its own"):
        archive_of(**member).unpack(str(tmp_path / "out"))
    assert content(tmp_path) in ({}, {"out": False})


def test_an_archive_that_is_cut_off_is_a_tar_error(packed, tmp_path):
    with pytest.raises(tarfile.TarError):
        Archive(LocalFile.of(packed.read_bytes()[:50_000])).unpack(str(tmp_path / "out"))


UNPACKED_AND_KILLED = """
import os, signal, sys
from tfos_ml.inference.archive import Archive

archive = Archive.of(sys.argv[1])
print(archive.directory, flush=True)
os.kill(os.getpid(), signal.SIGKILL)
"""


def test_what_a_killed_process_has_unpacked_goes_with_the_next(tmp_path, monkeypatch):
    model = tmp_path / "model"
    model.mkdir()
    (model / "saved_model.pb").write_bytes(b"x")
    temporary = tmp_path / "temporary"
    temporary.mkdir()
    monkeypatch.setattr(tempfile, "tempdir", str(temporary))
    command = [sys.executable, "-c", UNPACKED_AND_KILLED, str(model)]
    environment = {**os.environ, "TMPDIR": str(temporary)}
    killed = subprocess.run(command, capture_output=True, text=True, timeout=120, env=environment, check=False)
    left = Path(killed.stdout.strip())
    assert left.parent == temporary
    assert (left / "saved_model.pb").exists()
    mine = Archive.of(model)
    assert (Path(mine.directory) / "saved_model.pb").exists()
    assert set(temporary.iterdir()) == {Path(mine.directory), mine.file.path.parent}
    del mine
    assert list(temporary.iterdir()) == []
