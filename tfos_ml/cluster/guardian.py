"""``python -m tfos_ml.cluster.guardian``: cleans up after a supervisor, however it ended.

Spark cancels with SIGKILL, so a node's supervisor cannot be relied on to clean up. The
guardian runs in a session of its own and reads what to guard from stdin, one JSON object a
line. At end-of-file, that is when the supervisor has closed the pipe or died, it kills the
node's processes, deletes its spool and ends; after a death it also tells the driver.
"""

from __future__ import annotations

import contextlib
import json
import shutil
import subprocess
import sys
from collections.abc import Sequence
from typing import Any

from tfos_ml.cluster.process import MARKER, child_environment, kill_tree

CLEANUP_TIMEOUT = 10.0


class Guardian:
    """The supervisor's handle on its guardian process.

    Parameters
    ----------
    marker : str
        Found in the environment of every process to kill.
    directories : sequence of str
        To be deleted.
    """

    def __init__(self, marker: str, directories: Sequence[str]) -> None:
        self._process = subprocess.Popen(
            [sys.executable, "-m", "tfos_ml.cluster.guardian"],
            stdin=subprocess.PIPE,
            stdout=subprocess.DEVNULL,
            stderr=subprocess.DEVNULL,
            text=True,
            start_new_session=True,
            env=_environment(),
        )
        self.guard(marker=marker, directories=list(directories))

    def guard(self, **what: Any) -> None:
        """Add what is known by now: ``pid`` of the node's process, ``control`` and ``rank`` to report to."""
        assert self._process.stdin is not None
        self._process.stdin.write(json.dumps(what) + "\n")
        self._process.stdin.flush()

    def finish(self, *, report: bool) -> None:
        """Have everything cleaned up now, and wait for it; `report` has the driver told, too."""
        if not report:
            with contextlib.suppress(BrokenPipeError):
                self.guard(control=None)
        assert self._process.stdin is not None
        with contextlib.suppress(BrokenPipeError):
            self._process.stdin.close()
        self._process.wait(CLEANUP_TIMEOUT)


def _environment() -> dict[str, str]:
    environment = child_environment("", 1, {})
    del environment[MARKER]  # or it would be killed with those it guards against
    return environment


def _clean_up(guarded: dict[str, Any]) -> None:
    kill_tree(guarded.get("pid"), guarded["marker"])
    for directory in guarded["directories"]:
        shutil.rmtree(directory, ignore_errors=True)
    if guarded.get("control"):
        from tfos_ml.cluster.control import ControlClient

        with contextlib.suppress(Exception):  # the driver may be gone too; there is nobody left to tell
            ControlClient(**guarded["control"]).call("gone", rank=guarded["rank"])


def main(lines: Sequence[str] | Any = sys.stdin) -> None:
    """Collect what to guard until end-of-file, then clean it up."""
    guarded: dict[str, Any] = {}
    for line in lines:
        guarded.update(json.loads(line))
    if guarded:
        _clean_up(guarded)


if __name__ == "__main__":
    main()
