"""Models that are unpacked once an executor, used by many real processes at once."""

from __future__ import annotations

import io
import os
import random
import shutil
import signal
import sys
import tarfile
import time
from dataclasses import dataclass
from pathlib import Path

import pytest
from conftest import wait_until
from pyspark import SparkFiles

from tfos_ml.errors import ModelError
from tfos_ml.inference import archive
from tfos_ml.protocol.artifacts import Artifact

SECONDS = 20.0
PROCESSES = 24
FILES = {f"variables/part-{i}": 10_000 + i for i in range(20)}


@dataclass
class Executor:
    """The directory of an executor, with the artifacts that Spark has delivered."""

    directory: Path

    def deliver(self, name="tfos_ml-model", fill=b"x"):
        with tarfile.open(self.directory / name, "w") as tar:
            for file, size in FILES.items():
                info = tarfile.TarInfo(file)
                info.size = size
                tar.addfile(info, io.BytesIO(fill * size))
        return Artifact(name)

    @property
    def models(self):
        return self.directory / archive.FOLDER

    def copies(self):
        return {p.name for p in self.models.iterdir() if p.is_dir()}

    def start(self, use):
        """Run `use` in a process of its own, which ends with 0 if that raises nothing."""
        pid = os.fork()
        if pid:
            return pid
        code = 1
        try:
            use()
            code = 0
        except BaseException as error:
            print(repr(error), file=sys.stderr, flush=True)
        finally:
            os._exit(code)


@pytest.fixture
def executor(tmp_path, monkeypatch):
    monkeypatch.setattr(SparkFiles, "_root_directory", str(tmp_path))
    monkeypatch.setattr(SparkFiles, "_is_running_on_worker", True)
    yield Executor(tmp_path)
    for users in archive._in_use.values():
        users.close()
    archive._in_use.clear()


def check_whole(model):
    for file, size in FILES.items():
        assert (model / file).stat().st_size == size, file


def wait(pids):
    return [os.waitstatus_to_exitcode(os.waitpid(pid, 0)[1]) for pid in pids]


def test_processes_that_arrive_while_others_delete_find_their_model_whole(executor, monkeypatch):
    """Each model that is unpacked deletes the others that are unused at that moment."""
    monkeypatch.setattr(archive, "UNUSED_MODELS", 0)
    artifacts, chance = [executor.deliver(f"tfos_ml-{i}") for i in range(6)], random.Random(7)

    def use():
        model = archive.unpacked(random.Random(os.getpid()).choice(artifacts))
        check_whole(model)
        time.sleep(random.random() * 0.02)
        check_whole(model)

    codes = []
    while len(codes) < PROCESSES:
        codes += wait([executor.start(use) for _ in range(4)])
        time.sleep(chance.random() * 0.02)
    assert codes == [0] * PROCESSES
    assert len(executor.copies()) <= 4


def test_one_copy_however_many_use_it(executor):
    artifact = executor.deliver()
    done_read, done_write = os.pipe()

    def use():
        os.close(done_write)
        model = archive.unpacked(artifact)
        check_whole(model)
        (executor.directory / f"ready-{os.getpid()}").write_text(str(model.stat().st_ino))
        os.read(done_read, 1)  # until the test closes the other end

    pids = [executor.start(use) for _ in range(12)]
    try:
        assert wait_until(lambda: len(list(executor.directory.glob("ready-*"))) == 12, SECONDS)
        assert executor.copies() == {artifact.name}
        assert wait_until(lambda: len({f.read_text() for f in executor.directory.glob("ready-*")}) == 1, SECONDS)
    finally:
        os.close(done_write)
    assert wait(pids) == [0] * 12
    os.close(done_read)


def test_unused_models_are_bounded(executor):
    artifacts = [executor.deliver(f"tfos_ml-{i}", fill=b"%d" % (i % 10)) for i in range(12)]
    for artifact in artifacts:
        check_whole(archive.unpacked(artifact))
    kept = artifacts[-archive.LOADED_MODELS - archive.UNUSED_MODELS - 1 :]  # one became unused by the last
    assert executor.copies() == {artifact.name for artifact in kept}
    check_whole(archive.unpacked(artifacts[0]))  # a model that was deleted is unpacked again


def test_what_a_killed_process_left_is_deleted(executor):
    first, second = executor.deliver("tfos_ml-a"), executor.deliver("tfos_ml-b")

    def use():
        archive.unpacked(first)
        (executor.models / ".partial-of-a-killed-process").mkdir()
        os.kill(os.getpid(), signal.SIGKILL)

    assert wait([executor.start(use)]) == [-signal.SIGKILL]
    check_whole(archive.unpacked(second))
    assert executor.copies() == {first.name, second.name}


@pytest.mark.parametrize("damage", ["missing", "short", "directory gone"])
def test_damaged_copy_is_extracted_again(executor, damage):
    artifact = executor.deliver()
    model = archive.unpacked(artifact)

    def use():
        archive._in_use.clear()  # it is a process of its own
        check_whole(archive.unpacked(artifact))

    file = model / "variables/part-3"
    if damage == "missing":
        file.unlink()
    elif damage == "short":
        os.truncate(file, 5)
    else:
        shutil.rmtree(model)
    assert wait([executor.start(use)]) == [0]
    check_whole(model)


def test_lock_held_for_too_long_is_a_typed_error(executor, monkeypatch):
    monkeypatch.setattr(archive, "UNPACK_SECONDS", 0.3)
    artifact = executor.deliver()
    archive.unpacked(artifact)
    with archive._locked(executor.models), pytest.raises(ModelError, match=r"\.lock for 0.3 s"):
        archive.unpacked(executor.deliver("tfos_ml-b"))
