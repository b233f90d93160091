import pytest
from elsewhere import limited, run_in

from tfos_ml.common.cgroup import memory_headroom
from tfos_ml.data import spool

NO_LIMIT = "9223372036854771712"


def write(directory, files):
    directory.mkdir(parents=True, exist_ok=True)
    for name, content in files.items():
        (directory / name).write_text(f"{content}\n")


def group_v2(directory, limit="max", used=0, inactive=0):
    write(directory, {"memory.max": limit, "memory.current": used, "memory.stat": f"anon 5\ninactive_file {inactive}"})


def group_v1(directory, limit=NO_LIMIT, used=0, inactive=0):
    statistics = f"inactive_file 1\ntotal_inactive_file {inactive}"
    write(directory, {"memory.limit_in_bytes": limit, "memory.usage_in_bytes": used, "memory.stat": statistics})


@pytest.mark.parametrize(
    ("outer", "inner", "headroom"),
    [
        ({"limit": 900, "used": 800}, {"limit": 500, "used": 100}, 100),
        ({"limit": 900}, {"limit": 500, "used": 450, "inactive": 200}, 250),
    ],
)
@pytest.mark.parametrize(
    ("group", "top", "member"),
    [(group_v2, ".", "0::/pods/mine"), (group_v1, "memory", "7:cpu:/elsewhere\n4:memory:/pods/mine\n0::/")],
)
def test_least_room_on_the_path_counts(tmp_path, group, top, member, outer, inner, headroom):
    write(tmp_path / "proc", {"cgroup": member})
    pods = tmp_path / "mount" / top / "pods"
    group(pods, **outer)
    group(pods / "mine", **inner)
    group(pods / "other", limit=1)
    assert memory_headroom(tmp_path / "proc", tmp_path / "mount") == headroom


@pytest.mark.parametrize(
    ("group", "top", "member"), [(group_v2, ".", "0::/"), (group_v1, "memory", "4:memory:/docker/f00")]
)
def test_of_a_container_is_the_top_of_its_mount(tmp_path, group, top, member):
    write(tmp_path / "proc", {"cgroup": member})
    group(tmp_path / "mount" / top, limit=700, used=300)
    assert memory_headroom(tmp_path / "proc", tmp_path / "mount") == 400


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


def test_more_rows_than_a_real_group_has_memory_go_to_disk(tmp_path):
    with limited(320) as group:
        done = run_in(group, FILL, str(tmp_path))
        spool.sweep(tmp_path)  # what it left if the kernel ended it
        assert done.returncode == 0, done
        rows, in_memory, on_disk = map(int, done.stdout.split())
    assert rows == 24 * (2 << 20)
    assert in_memory > 0
    assert on_disk > 0
