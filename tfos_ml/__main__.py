"""``python -m tfos_ml doctor`` and ``python -m tfos_ml pack``."""

from __future__ import annotations

import argparse
import os
import threading

from tfos_ml.doctor import command as doctor
from tfos_ml.pack import command as pack


def main() -> int:
    """Run the command that is named; returns its exit code."""
    parser = argparse.ArgumentParser(prog="python -m tfos_ml", description="Command line of tfos_ml.")
    commands = parser.add_subparsers(dest="command", required=True)
    doctor.add_command(commands)
    pack.add_command(commands)
    arguments = parser.parse_args()
    code: int = arguments.run(arguments)
    return code


if __name__ == "__main__":
    code = main()
    if any(thread.name.startswith("tfos_ml-doctor") for thread in threading.enumerate()):
        os._exit(code)  # a check that had no time left still waits, and gRPC would wait for it
    raise SystemExit(code)
