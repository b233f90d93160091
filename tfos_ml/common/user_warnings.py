"""Warnings that point at the user's own line, not at one of tfos_ml."""

from __future__ import annotations

import os
import sys
import warnings

_PACKAGES = ("tfos_ml", "pyspark", "mlflow")  # through which fit is called


def warn(message: str, category: type[Warning] = UserWarning) -> None:
    """Warn at the nearest line of the stack outside of this package and of packages that call it."""
    inner = tuple(os.path.dirname(str(sys.modules[p].__file__)) + os.sep for p in _PACKAGES if p in sys.modules)
    frame, level = sys._getframe(1), 2
    while frame.f_back is not None and frame.f_code.co_filename.startswith(inner):
        frame, level = frame.f_back, level + 1
    warnings.warn(message, category, stacklevel=level)
