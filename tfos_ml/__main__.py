"""``python -m tfos_ml doctor``."""

from __future__ import annotations

from tfos_ml.doctor.command import main

if __name__ == "__main__":
    raise SystemExit(main())
