"""Errors of ours without the frames of ours that they have come through, and without Java's."""

from __future__ import annotations

import functools
from collections.abc import Callable
from typing import ParamSpec, TypeVar

from tfos_ml.errors import TfosMlError

P = ParamSpec("P")
R = TypeVar("R")


def concise(function: Callable[P, R]) -> Callable[P, R]:
    """Have a public method raise typed errors as if it had found them itself.

    What a person reads is the message; the causes are in ``__context__``. Errors that are not ours keep all.
    """

    @functools.wraps(function)
    def call(*args: P.args, **kwargs: P.kwargs) -> R:
        try:
            return function(*args, **kwargs)
        except TfosMlError as error:
            raise error.with_traceback(None) from None

    return call
