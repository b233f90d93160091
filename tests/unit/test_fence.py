"""Of several attempts that share a modelDir, only the last one writes, and only what it accepts counts."""

from __future__ import annotations

import contextlib
import threading
from concurrent.futures import ThreadPoolExecutor

import pytest
from pyarrow import fs

from tfos_ml.errors import SupersededError
from tfos_ml.keras.checkpoint.fence import Fence


@pytest.fixture
def attempt(tmp_path):
    return lambda run_id: Fence(fs.LocalFileSystem(), str(tmp_path), run_id)


def test_the_newest_attempt_writes_and_those_before_it_do_not(attempt):
    first, second = attempt("f"), attempt("a")
    first.take([])
    first.check()
    second.take([])
    second.check()
    with pytest.raises(SupersededError, match=r"attempt-000002-a.*attempt-000001-f.*own modelDir"):
        first.check()


def test_what_an_earlier_attempt_writes_late_does_not_count(attempt):
    first, second = attempt("f"), attempt("a")
    assert first.counts("epoch-00001-old")  # of a time before fences
    first.take(["epoch-00001-old"])
    assert first.counts("epoch-00002-f")
    second.take(["epoch-00002-f"])
    assert [first.counts(f"epoch-{name}") for name in ("00001-old", "00002-f", "00003-f", "00003-a")] == [
        False,
        True,
        False,
        True,
    ]


def test_of_those_that_come_at_the_same_time_one_stays(attempt, tmp_path):
    start, stayed = threading.Barrier(8), []

    def come(run_id):
        fence = attempt(run_id)
        start.wait(10)
        with contextlib.suppress(SupersededError):
            fence.take([])
            stayed.append(fence)

    with ThreadPoolExecutor(8) as pool:
        list(pool.map(come, "abcdefgh"))
    still = []
    for fence in stayed:
        with contextlib.suppress(SupersededError):
            fence.check()
            still.append(fence)
    assert len(still) == 1
    assert len(list(tmp_path.iterdir())) == 1
