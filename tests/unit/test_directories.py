import os
import stat
import subprocess
from pathlib import Path

import pytest

from tfos_ml.common.directories import private_directory

NAME = "tfos_ml-test"
as_root = pytest.mark.skipif(os.getuid() != 0, reason="only root can act as another user")


@pytest.fixture
def shared(tmp_path):
    """A directory such as /tmp."""
    made = tmp_path / "shared"
    made.mkdir()
    made.chmod(0o1777)
    return made


def as_nobody(directory, *command):
    subprocess.run(command, cwd=directory, user=65534, group=65534, extra_groups=[], check=True)


def assert_private(directory):
    status = os.lstat(directory)
    assert (status.st_uid, stat.filemode(status.st_mode)) == (os.getuid(), "drwx------")


def test_directory_is_made_once(shared):
    first = private_directory(shared, NAME)
    assert first == shared / NAME
    assert_private(first)
    (first / "file").touch()
    assert private_directory(shared, NAME) == first
    assert (first / "file").exists()


@as_root
@pytest.mark.parametrize("how", ["mkdir", "touch", "ln -s /root", "ln -s /nowhere"])
def test_name_taken_by_another_user_gives_another_one(shared, how):
    as_nobody(shared, *how.split(), NAME)
    as_nobody(shared, "mkdir", f"{NAME}-00000000")
    first = private_directory(shared, NAME)
    assert first.parent == shared
    assert first.name.startswith(f"{NAME}-")
    assert_private(first)
    assert private_directory(shared, NAME) == first  # as other processes find it
    assert not any(Path("/root").glob(f"{NAME}*"))


@pytest.mark.parametrize("mode", [0o755, 0o700, 0o500, 0o750])
def test_own_directory_that_others_could_only_read_is_closed_to_them(shared, mode):
    (shared / NAME).mkdir()
    (shared / NAME).chmod(mode)
    assert private_directory(shared, NAME) == shared / NAME
    assert_private(shared / NAME)


@pytest.mark.parametrize("mode", [0o777, 0o770, 0o1777])
def test_own_directory_that_others_could_write_to_is_not_trusted(shared, mode):
    (shared / NAME).mkdir()
    (shared / NAME).chmod(mode)
    made = private_directory(shared, NAME)
    assert made != shared / NAME
    assert_private(made)
