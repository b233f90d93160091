"""``python tests/chaos SEED MINUTES``: programs and faults as the seed draws them, one run after the other.

Prints a line a run; exits with 1 if anything was violated, with the commands that replay it.
"""

from __future__ import annotations

import argparse
import json
import logging
import os
import shutil
import sys
import tempfile
import time
import traceback
from pathlib import Path
from typing import Any

sys.path[:0] = [str(Path(__file__).parent), str(Path(__file__).parents[1]), str(Path(__file__).parents[1] / "cluster")]

from disks import SharedMemory, can_mount  # noqa: E402
from drawn_runs import MASTERS, draw  # noqa: E402
from runner import Runner  # noqa: E402


def shown(record: dict[str, Any]) -> str:
    """A run in one line, and more if something is wrong."""
    times = [
        f"{name} {record[key]:.1f} s"
        for key, name in (("to_error", "error after"), ("to_next", "next step after"))
        if record[key] is not None
    ]
    missed = [f"missed {what}: {why}" for what, why in record["missed"].items()]
    line = f"{record['run']} -> {record['outcome']} in {record['seconds']:.1f} s; " + "; ".join([*times, *missed])
    return "\n    ".join([line, *(f"VIOLATION {text}" for text in record["violations"])])


def main() -> int:
    parser = argparse.ArgumentParser(prog="python tests/chaos", description=__doc__.splitlines()[0])
    parser.add_argument("seed", type=int)
    parser.add_argument("minutes", type=float)
    parser.add_argument("--from", dest="first", type=int, default=0, help="number of the first run")
    parser.add_argument("--runs", type=int, default=1 << 30, help="how many runs at most")
    parser.add_argument("--masters", default=";".join(MASTERS), help="some of: %(default)s")
    parser.add_argument("--programs", default="", help="some programs")
    parser.add_argument("--results", type=Path, help="file to which a JSON line a run is appended")
    options = parser.parse_args()
    if can_mount():
        SharedMemory.mount()
    logging.getLogger("werkzeug").disabled = True  # the store's
    masters = tuple(master for master in MASTERS if master in options.masters.split(";"))
    programs = tuple(filter(None, options.programs.split(",")))
    deadline = time.monotonic() + 60 * options.minutes
    records = []
    runner = Runner(Path(tempfile.mkdtemp(prefix="chaos-")))
    try:
        for number in range(options.first, options.first + options.runs):
            if time.monotonic() > deadline:
                break
            run = draw(options.seed, number, masters, programs)
            try:
                record = runner.run(run)
            except Exception:
                print(f"{run} -> the test itself failed\n{traceback.format_exc()}", flush=True)
                runner.leave()
                continue
            records.append(record)
            print(shown(record), flush=True)
            if options.results:
                with options.results.open("a") as file:
                    print(json.dumps(record), file=file)
    finally:
        runner.leave()
    wrong = [record for record in records if record["violations"]]
    faults = sum(len(record["injected"]) for record in records)
    print(f"\n{len(records)} runs, {faults} faults, {len(wrong)} violations")
    for record in wrong:
        print(
            f"replay with: python tests/chaos {options.seed} 10 --from {record['number']} --runs 1 "
            f"--masters '{options.masters}' --programs '{options.programs}'"
        )
    return 1 if wrong else 0


if __name__ == "__main__":
    code = main()
    kept = Path(tempfile.gettempdir(), "chaos-kept")
    if kept.exists():
        shutil.move(str(kept), f"/tmp/chaos-kept-{os.getpid()}")
        print(f"ledgers of violations: /tmp/chaos-kept-{os.getpid()}")
    shutil.rmtree(tempfile.gettempdir(), ignore_errors=True)
    sys.exit(code)
