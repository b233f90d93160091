"""The processes from which tasks are forked end with the tests."""

import multiprocessing.forkserver
import multiprocessing.util


def pytest_unconfigure() -> None:
    multiprocessing.forkserver._forkserver._stop()
    multiprocessing.util._run_finalizers()
