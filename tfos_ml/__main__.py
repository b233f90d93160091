"""``python -m tfos_ml doctor``."""

from __future__ import annotations

import os
import threading

from tfos_ml.doctor.command import main

if __name__ == "__main__":
    code = main()
    if any(thread.name.startswith("tfos_ml-doctor") for thread in threading.enumerate()):
        os._exit(code)  # a check that had no time left still waits, and gRPC would wait for it
    raise SystemExit(code)
