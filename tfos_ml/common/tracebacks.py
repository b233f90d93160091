"""Removes the frames of tfos_ml and of Java from tracebacks of typed errors."""

from __future__ import annotations

import functools
from collections.abc import Callable
from typing import ParamSpec, TypeVar

from tfos_ml.errors import TfosMlError

P = ParamSpec("P")
R = TypeVar("R")


def concise(function: Callable[P, R]) -> Callable[P, R]:
    """Decorate a public method: its typed errors show no frames below it. Causes remain in ``__context__``."""

    @functools.wraps(function)
    def call(*args: P.args, **kwargs: P.kwargs) -> R:
        try:
            return function(*args, **kwargs)
        except TfosMlError as error:
            raise error.with_traceback(None) from None

    return call
