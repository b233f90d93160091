"""``python -m tfos_ml doctor``."""

from __future__ import annotations

import os
import sys

from tfos_ml.doctor.command import main
from tfos_ml.doctor.deadline import left_behind

if __name__ == "__main__":
    code = main()
    if left_behind():  # gRPC, for one, would wait for it at the end of the interpreter
        sys.stdout.flush()
        os._exit(code)
    raise SystemExit(code)
