"""A Spark job that runs in a helper thread, under a tag by which it alone can be cancelled.

The calling thread only waits, so that it can be interrupted (Ctrl-C) and then cancel the job.
"""

from __future__ import annotations

import threading
import time
from collections.abc import Callable
from typing import TYPE_CHECKING, Any

from tfos_ml.artifacts import is_connect

if TYPE_CHECKING:
    from pyspark.sql import SparkSession

CANCEL_SECONDS = 0.5


class TaggedJob:
    """Starts at once.

    Parameters
    ----------
    spark : SparkSession
        Where it runs.
    tag : str
        Its job tag.
    action : callable
        Runs the job, and returns its result.

    Attributes
    ----------
    error : BaseException or None
        What `action` raised.
    """

    def __init__(self, spark: SparkSession, tag: str, action: Callable[[], Any]):
        from pyspark import InheritableThread

        self._spark = spark
        self._tag = tag
        self._action = action
        self._done = threading.Event()
        self.result: Any = None
        self.error: BaseException | None = None
        self._thread = InheritableThread(target=self._run, session=spark, name=tag, daemon=True)
        self._thread.start()

    def _run(self) -> None:
        try:
            if is_connect(self._spark):
                self._spark.addTag(self._tag)
            else:
                self._spark.sparkContext.addJobTag(self._tag)
            self.result = self._action()
        except BaseException as error:  # raised by whoever waits for the job
            self.error = error
        finally:
            self._done.set()

    def wait(self, timeout: float) -> bool:
        """Whether it has ended, within `timeout` seconds."""
        return self._done.wait(timeout)

    def cancel(self, timeout: float) -> None:
        """Cancel it, and wait at most `timeout` seconds for its end."""
        deadline = time.monotonic() + timeout
        while not self.wait(0):  # again and again: Spark forgets a tag that no job has yet
            if is_connect(self._spark):
                self._spark.interruptTag(self._tag)
            elif self._spark.sparkContext._jsc is not None:  # else the session has been stopped, and its jobs with it
                self._spark.sparkContext.cancelJobsWithTag(self._tag)
            if self.wait(CANCEL_SECONDS) or time.monotonic() > deadline:
                break
        self._thread.join(max(0.0, deadline - time.monotonic()))

    def is_running_tasks(self) -> bool:
        """Whether any task of it runs now; not known on Spark Connect."""
        context = self._spark.sparkContext._jsc
        if context is None:  # the session has been stopped
            return False
        tracker = context.sc().statusTracker()
        for job in tracker.getJobIdsForTag(self._tag):
            info = tracker.getJobInfo(job)
            for stage in info.get().stageIds() if info.isDefined() else ():
                stage_info = tracker.getStageInfo(stage)
                if stage_info.isDefined() and stage_info.get().numActiveTasks() > 0:
                    return True
        return False
