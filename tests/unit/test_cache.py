"""Models that are unpacked once an executor, used by many real processes at once."""

from __future__ import annotations

import io
import multiprocessing
import os
import random
import signal
import tarfile
import time
from dataclasses import dataclass
from pathlib import Path

import pytest
from pyspark import SparkFiles

from tfos_ml.inference import archive
from tfos_ml.protocol.artifacts import Artifact

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

    def copies(self):
        return {p.name for p in (self.directory / archive.FOLDER).iterdir() if p.is_dir()}


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


def codes_of(count, use):
    """Exit codes of so many processes that run `use` at once."""
    processes = [multiprocessing.get_context("fork").Process(target=use) for _ in range(count)]
    for process in processes:
        process.start()
    for process in processes:
        process.join()
    return [process.exitcode for process in processes]


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
        codes += codes_of(4, use)
        time.sleep(chance.random() * 0.02)
    assert codes == [0] * PROCESSES
    assert len(executor.copies()) <= 4


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
        (executor.directory / archive.FOLDER / ".partial-of-a-killed-process").mkdir()
        os.kill(os.getpid(), signal.SIGKILL)

    assert codes_of(1, use) == [-signal.SIGKILL]
    check_whole(archive.unpacked(second))
    assert executor.copies() == {first.name, second.name}


def test_damaged_copy_is_extracted_again(executor):
    artifact = executor.deliver()
    model = archive.unpacked(artifact)

    def use():
        archive._in_use.clear()  # it is a process of its own
        check_whole(archive.unpacked(artifact))

    os.truncate(model / "variables/part-3", 5)
    assert codes_of(1, use) == [0]
    check_whole(model)
