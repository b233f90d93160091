"""Functions of TensorFlowOnSpark that are gone."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any, NoReturn

from tfos_ml.errors import RemovedError


def removed(name: str, instead: str) -> Callable[..., NoReturn]:
    """A function that raises ``RemovedError``, which says what to use instead."""

    def gone(*args: Any, **kwargs: Any) -> NoReturn:
        raise RemovedError(f"{name}() is gone. {instead}")

    gone.__doc__ = f"Gone: raises ``RemovedError``. {instead}"
    return gone
