import os
import subprocess
import sys

import pytest
from elsewhere import limited, run_in

from tfos_ml.common.cgroup import memory_headroom
from tfos_ml.data import spool

MIB = 1 << 20
NO_LIMIT = "9223372036854771712"
DEADLINE = 30.0


@pytest.fixture
def host(tmp_path):
    """Control groups as the kernel shows them, in files of the same names and formats."""
    return Host(tmp_path)


class Host:
    def __init__(self, directory):
        self.proc = directory / "proc"
        self.proc.mkdir()
        self.mounts = []
        self.root = directory

    def member(self, *lines):
        (self.proc / "cgroup").write_text("".join(f"{line}\n" for line in lines))

    def mount(self, version, root="/", name="cgroup"):
        """What is below the group `root`, seen at a path of this test."""
        point = self.root / name
        point.mkdir(exist_ok=True)
        kind, options = ("cgroup", "rw,memory") if version == 1 else ("cgroup2", "rw")
        shown = str(point).replace(" ", r"\040")
        self.mounts.append(f"36 25 0:31 {root} {shown} rw,nosuid shared:9 - {kind} {kind} {options}\n")
        (self.proc / "mountinfo").write_text("22 1 8:1 / / rw - ext4 /dev/sda1 rw\n" + "".join(self.mounts))
        return point


def group_v2(directory, limit="max", used=0, high="max", inactive=0):
    directory.mkdir(parents=True, exist_ok=True)
    (directory / "memory.max").write_text(f"{limit}\n")
    (directory / "memory.high").write_text(f"{high}\n")
    (directory / "memory.current").write_text(f"{used}\n")
    (directory / "memory.stat").write_text(f"anon 5\nfile 7\ninactive_file {inactive}\n")


def group_v1(directory, limit=NO_LIMIT, used=0, inactive=0, above=NO_LIMIT, hierarchy=1):
    directory.mkdir(parents=True, exist_ok=True)
    (directory / "memory.limit_in_bytes").write_text(f"{limit}\n")
    (directory / "memory.usage_in_bytes").write_text(f"{used}\n")
    (directory / "memory.use_hierarchy").write_text(f"{hierarchy}\n")
    statistics = f"cache 1\ninactive_file 1\nhierarchical_memory_limit {above}\ntotal_inactive_file {inactive}\n"
    (directory / "memory.stat").write_text(statistics)


class TestVersion2:
    @pytest.mark.parametrize(
        ("outer", "inner", "headroom"),
        [
            ({"limit": 900}, {"limit": 500, "used": 100}, 400),
            ({"limit": 900, "used": 800}, {"limit": 500, "used": 100}, 100),
            ({"limit": 900, "used": 800}, {}, 100),
            ({}, {"limit": 500, "used": 100}, 400),
            ({}, {}, None),
            ({}, {"limit": 500, "used": 450, "inactive": 200}, 250),
            ({}, {"limit": 500, "high": 300, "used": 100}, 200),
            ({}, {"limit": 100, "used": 130}, -30),
        ],
    )
    def test_least_room_on_the_path_counts(self, host, outer, inner, headroom):
        host.member("0::/kubepods/pod7")
        point = host.mount(2)
        group_v2(point / "kubepods", **outer)
        group_v2(point / "kubepods" / "pod7", **inner)
        group_v2(point / "kubepods" / "pod8", limit=1)  # another's
        assert memory_headroom(host.proc) == headroom

    def test_of_a_container_with_a_namespace_is_the_top_of_the_mount(self, host):
        host.member("0::/")
        group_v2(host.mount(2), limit=700, used=300)
        assert memory_headroom(host.proc) == 400

    def test_below_a_name_that_mountinfo_has_to_escape(self, host):
        host.member("0::/user.slice/a b")
        point = host.mount(2, name="control groups")
        group_v2(point / "user.slice" / "a b", limit=700, used=300)
        assert memory_headroom(host.proc) == 400


class TestVersion1:
    @pytest.mark.parametrize(
        ("outer", "inner", "headroom"),
        [
            ({"limit": 900, "used": 600}, {"limit": 500, "used": 100}, 300),
            ({"limit": 900}, {"limit": 500, "used": 100}, 400),
            ({}, {"limit": 500, "used": 450, "inactive": 200}, 250),
            ({"limit": 50, "hierarchy": 0}, {"limit": 500, "used": 100}, 400),
        ],
    )
    def test_least_room_on_the_path_counts(self, host, outer, inner, headroom):
        host.member("7:cpu,cpuacct:/elsewhere", "4:memory:/docker/f00", "0::/")
        point = host.mount(1)
        host.mount(2, name="unified")
        group_v1(point)
        group_v1(point / "docker", **outer)
        group_v1(point / "docker" / "f00", **inner)
        assert memory_headroom(host.proc) == headroom

    def test_of_a_container_without_a_namespace_is_named_as_on_the_host(self, host):
        host.member("4:memory:/docker/f00/inner")
        point = host.mount(1, root="/docker/f00")
        group_v1(point, limit=900, used=700)
        group_v1(point / "inner", limit=500, used=100)
        assert memory_headroom(host.proc) == 200

    def test_a_limit_above_what_is_shown_counts(self, host):
        host.member("4:memory:/docker/f00")
        group_v1(host.mount(1, root="/docker/f00"), used=100, above=300)
        assert memory_headroom(host.proc) == 200


@pytest.mark.parametrize(("version", "group"), [(1, group_v1), (2, group_v2)])
def test_mount_of_another_namespace_is_searched_for_the_process(host, version, group):
    host.member("4:memory:/" if version == 1 else "0::/")
    point = host.mount(version, root="/../..")
    group(point / "pods" / "mine", limit=800, used=100)
    group(point / "pods" / "other", limit=1)
    group(point / "pods", limit=900, used=400)
    (point / "pods" / "other" / "cgroup.procs").write_text("1\n")
    (point / "pods" / "mine" / "cgroup.procs").write_text(f"1\n{os.getpid()}\n")
    assert memory_headroom(host.proc) == 500


def test_without_control_groups_there_is_no_limit(host):
    assert memory_headroom(host.proc) is None


SEE = """
from tfos_ml.data import spool
print(spool.free_memory())
"""

FILL = """
import sys
import numpy, pyarrow
from pathlib import Path
from tfos_ml.data import spool

spool.MEMORY_RESERVE = 64 << 20
chunks = []
made = spool.create(Path(sys.argv[1]))
try:
    writer = spool.SpoolWriter(made, "train", chunks.append)
    batch = pyarrow.record_batch({"x": numpy.zeros(2 << 20)})  # of 16 MiB
    for _ in range(24):
        writer.write(batch)
    writer.flush()
    print(sum(c.rows for c in chunks), sum(not c.on_disk for c in chunks), sum(c.on_disk for c in chunks))
finally:
    spool.remove(made.all())
"""


def test_limit_of_a_real_group_is_seen_from_within():
    with limited(300) as group:
        done = run_in(group, SEE)
        assert 0 < int(done.stdout) < 300 * MIB, done.stderr
        assert spool.free_memory() > 300 * MIB


def test_more_rows_than_a_real_group_has_memory_go_to_disk(tmp_path):
    with limited(320) as group:
        done = run_in(group, FILL, str(tmp_path))
        spool.sweep(tmp_path)  # what it left if the kernel ended it
        assert done.returncode == 0, done
        rows, in_memory, on_disk = map(int, done.stdout.split())
    assert rows == 24 * (2 << 20)
    assert in_memory > 0
    assert on_disk > 0


def test_real_group_is_found_in_a_namespace_of_its_own():
    with limited(300) as group:
        enter = f"echo 0 > {group}/cgroup.procs && exec unshare --cgroup {sys.executable} -c '{SEE}'"
        done = subprocess.run(["sh", "-c", enter], capture_output=True, text=True, timeout=DEADLINE)
        if "unshare" in done.stderr:
            pytest.skip(f"no namespaces here: {done.stderr}")
        assert 0 < int(done.stdout) < 300 * MIB, done.stderr
