"""Chooses how many nodes the next attempt of a fit has: between ``minClusterSize`` and ``clusterSize``."""

from __future__ import annotations

import contextlib
import time
from typing import TYPE_CHECKING, Any

from tfos_ml.common.sessions import is_connect
from tfos_ml.common.timeouts import SETTLE_SECONDS, SLOTS_POLL_SECONDS, WORTH_SECONDS
from tfos_ml.driver.preflight import allocates_dynamically, check_slots, registered_slots
from tfos_ml.errors import NotEnoughSlotsError, ReservationTimeoutError, TfosMlError
from tfos_ml.protocol.training_position import Position

if TYPE_CHECKING:
    from pyspark.sql import SparkSession


class ClusterSize:
    """Sizes of the attempts of one fit.

    ``max_tasks`` and `min_tasks` count the nodes that are Spark tasks. Spark Connect does not tell how many slots there
    are, so an attempt that could not start is repeated with one node less.
    """

    def __init__(self, spark: SparkSession, max_tasks: int, min_tasks: int, timeout: float, profile: Any):
        self._spark, self.max_tasks, self._min_tasks = spark, max_tasks, min_tasks
        self._timeout, self._profile = timeout, profile
        self._size = max_tasks

    @property
    def is_elastic(self) -> bool:
        return self._min_tasks < self.max_tasks

    def next(self, lost: TfosMlError | None) -> int:
        """The size of the next attempt, after one that was `lost`; ``NotEnoughSlotsError`` if slots are too few."""
        if not self.is_elastic:
            check_slots(self._spark, self.max_tasks, self._timeout, self._profile, after_loss=lost is not None)
        elif is_connect(self._spark):
            self._size = self._size if lost is None else max(self._min_tasks, self._size - _is_too_large(lost))
        elif lost is None:
            self._size = self._first()
        else:
            self._size = self._after_loss(lost)
        return self._size

    def _first(self) -> int:
        try:
            check_slots(self._spark, self.max_tasks, self._timeout, self._profile)
        except NotEnoughSlotsError:
            if registered_slots(self._spark, self._profile) < self._min_tasks:
                raise
            return min(self.max_tasks, registered_slots(self._spark, self._profile))
        return self.max_tasks

    def _after_loss(self, lost: TfosMlError) -> int:
        deadline = time.monotonic() + SETTLE_SECONDS
        while self._free() < self.max_tasks and time.monotonic() < deadline:
            time.sleep(SLOTS_POLL_SECONDS)
        if self._free() < self._min_tasks:
            self._size = self._min_tasks  # so that the error of this check is final
            check_slots(
                self._spark, self._min_tasks, self._timeout, self._profile, name="minClusterSize", after_loss=True
            )
        most = self._size - 1 if _is_too_large(lost) else self.max_tasks
        return max(self._min_tasks, min(most, self._free()))

    def grow(self, size: int) -> int:
        """Make the next attempt larger; returns its size."""
        self._size = size
        return size

    def can_start_smaller(self, error: TfosMlError) -> bool:
        """Whether an attempt that has found too few slots may be repeated with fewer nodes."""
        return self.is_elastic and _is_too_large(error) and self._size > self._min_tasks

    def _free(self, held: int = 0) -> int:
        """Slots that no task holds, but for `held`."""
        infos = self._spark.sparkContext._jsc.sc().statusTracker().getExecutorInfos()
        running = sum(info.numRunningTasks() for info in infos)
        return registered_slots(self._spark, self._profile) - max(0, running - held)

    def larger(self) -> int | None:
        """The size that an attempt could have now, if it is larger than that of the running one."""
        if not self.is_elastic or self._size == self.max_tasks or is_connect(self._spark):
            return None
        size = min(self.max_tasks, self._free(held=self._size))
        if size <= self._size and allocates_dynamically(self._spark):
            with contextlib.suppress(Exception):  # Spark adds executors for waiting tasks only
                self._spark.sparkContext._jsc.sc().requestExecutors(self.max_tasks - self._size)
        return size if size > self._size else None

    def is_worth_it(self, size: int, start: Position, now: Position, seconds: float, epochs: int) -> bool:
        """Whether a larger size would end the training sooner; `seconds` have passed since `start`."""
        done = now.epochs - start.epochs
        if done <= 0:
            return False
        left = seconds * (epochs - now.epochs) / done
        return left * (1 - self._size / size) > WORTH_SECONDS


def _is_too_large(error: TfosMlError) -> bool:
    return isinstance(error, (NotEnoughSlotsError, ReservationTimeoutError))
