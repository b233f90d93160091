"""Replaces ``fit`` of Spark's stages while ``autolog`` is on."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

_ORIGINAL = "_tfos_ml_original"


def replace_fit(stage: Any, wrap: Callable[[Callable[..., Any]], Callable[..., Any]]) -> None:
    """Replace ``_fit`` of a class by ``wrap(_fit)``."""
    restore_fit(stage)
    replacement = wrap(stage._fit)
    setattr(replacement, _ORIGINAL, stage._fit)
    stage._fit = replacement


def restore_fit(stage: Any) -> None:
    """Undo :func:`replace_fit`, if it was called."""
    stage._fit = getattr(stage._fit, _ORIGINAL, stage._fit)
