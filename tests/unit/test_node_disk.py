"""A node that finds no room when it claims what it needs."""

import os
import subprocess
import tempfile

import pytest
from node_tasks import make_task

from tfos_ml import errors
from tfos_ml.agent.supervisor import Supervisor, supervise
from tfos_ml.protocol.failure import NodeFailure

ROOM_FOR_TWO = "size=1m,nr_inodes=3"  # the root takes one


class OnlyTask:
    """The task of a node that is alone."""

    rank, host, cpus, gpus = 0, "127.0.0.1", 1, {}

    def is_first(self):
        return True

    def allGather(self, message=""):
        return [message]

    def is_orphan(self):
        return False

    def report_failure(self, text):
        return False


def make_node():
    return Supervisor(make_task(), OnlyTask())


@pytest.fixture
def small(tmp_path):
    """A disk that has two inodes left."""
    done = subprocess.run(["mount", "-t", "tmpfs", "-o", ROOM_FOR_TWO, "none", str(tmp_path)], capture_output=True)
    if done.returncode:
        pytest.skip(f"nothing can be mounted here: {done.stderr}")
    yield tmp_path
    subprocess.run(["umount", str(tmp_path)], check=True)


@pytest.mark.parametrize("free", [0, 1], ids=["for its spool", "for its program"])
def test_no_inodes_on_the_local_disk_is_a_typed_error(small, monkeypatch, free):
    for number in range(2 - free):
        (small / str(number)).touch()
    monkeypatch.setenv("SPARK_LOCAL_DIRS", str(small))
    with pytest.raises(NodeFailure, match=rf"{small}.* 0 inodes free.*spark\.local\.dir") as caught:
        list(supervise(make_node(), ()))
    assert caught.value.failure.error is errors.SpoolFullError
    assert len(os.listdir(small)) == 2 - free


def test_no_inodes_for_temporary_files_is_a_typed_error(small, monkeypatch):
    for number in range(2):
        (small / str(number)).touch()
    monkeypatch.setattr(tempfile, "tempdir", str(small))
    with pytest.raises(NodeFailure, match=rf"{small}.* 0 inodes free.*TMPDIR") as caught:
        list(supervise(make_node(), ()))
    assert caught.value.failure.error is errors.SpoolFullError
