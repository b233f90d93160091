"""Models for several param maps, fitted as an iterator is advanced."""

from __future__ import annotations

import threading
import weakref
from collections.abc import Callable, Iterator, Mapping, Sequence
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from pyspark.ml import Estimator
    from pyspark.ml.param import Param
    from pyspark.sql import DataFrame


class FitIterator(Iterator[tuple[int, Any]]):
    """Fits one model each time it is advanced, from any thread.

    `release` is called once, when all models have been fitted or nobody holds the iterator any more.
    """

    def __init__(
        self,
        estimator: Estimator[Any],
        dataset: DataFrame,
        param_maps: Sequence[Mapping[Param[Any], Any]],
        release: Callable[[], Any],
    ):
        self._estimator = estimator
        self._dataset = dataset
        self._param_maps = list(param_maps)
        self._begun = self._ended = 0
        self._lock = threading.Lock()
        self._release = weakref.finalize(self, release)
        self._release.atexit = False  # Spark ends with the program, too

    def __next__(self) -> tuple[int, Any]:
        with self._lock:
            index = self._begun
            if index == len(self._param_maps):
                raise StopIteration
            self._begun += 1
        try:
            return index, self._estimator.fit(self._dataset, dict(self._param_maps[index]))
        finally:
            with self._lock:
                self._ended += 1
                if self._ended == len(self._param_maps):
                    self._release()
