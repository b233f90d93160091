"""Runs a Spark job in a background thread, under a tag of its own, by which it can be canceled.

The calling thread only waits, so Ctrl-C can interrupt it, and it can then cancel the job.
"""

from __future__ import annotations

import re
import threading
import time
from collections.abc import Callable
from typing import TYPE_CHECKING, Any

from tfos_ml.common.sessions import is_connect
from tfos_ml.common.spark_api import session_thread
from tfos_ml.common.timeouts import CANCEL_SECONDS

if TYPE_CHECKING:
    from pyspark.sql import SparkSession

MAX_TASKS = 10_000
PROGRESS_INTERVAL = "spark.connect.progress.reportInterval"


class SparkJob:
    """A job, run by `action`, that starts at once; `error` is the exception that `action` raised."""

    def __init__(self, spark: SparkSession, tag: str, action: Callable[[], Any]):
        self._spark = spark
        self._tag = tag
        self._action = action
        self._done = threading.Event()
        self.result: Any = None
        self.error: BaseException | None = None
        self._runs = self._ends = False  # whether tasks run, or all have ended, as Spark Connect has last reported
        self._reports_progress: bool | None = None
        self._thread = session_thread(spark, self._run, tag)
        self._thread.start()

    def _run(self) -> None:
        try:
            if is_connect(self._spark):
                self.result = self._run_connect()
            else:
                self._spark.sparkContext.addJobTag(self._tag)
                self.result = self._action()
        except BaseException as error:  # raised in the thread that waits for the job
            self.error = error
        finally:
            self._done.set()

    def _run_connect(self) -> Any:
        self._spark.addTag(self._tag)
        self._spark.registerProgressHandler(self._note_progress)  # type: ignore[arg-type]
        try:
            return self._action()
        finally:
            self._spark.removeProgressHandler(self._note_progress)  # type: ignore[arg-type]

    def _note_progress(self, stages: Any, inflight_tasks: int, operation_id: str | None, done: bool) -> None:
        """Spark calls this for every operation of the session, in the thread that waits for its result."""
        if threading.current_thread() is self._thread:
            self._runs = bool(inflight_tasks or done)
            self._ends = bool(stages) and all(stage.num_completed_tasks == stage.num_tasks for stage in stages)

    def wait(self, timeout: float) -> bool:
        """Wait at most `timeout` seconds; returns whether the job has ended."""
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

    def waits_for_slots(self, has_begun: bool) -> bool:
        """Whether none of its tasks runs, though some have not ended.

        Spark Connect does not report a barrier stage that waits for slots. So if all reported stages have ended, the
        last stage may still wait; `has_begun` says whether its tasks have run. Never True on a server that does not
        report progress.
        """
        if is_connect(self._spark):
            return not (self._runs or (self._ends and has_begun)) and self._gets_progress()
        context = self._spark.sparkContext._jsc
        if context is None:  # the session has been stopped
            return True
        stages, last = self._stages(context.sc().statusTracker())
        if any(stage.numActiveTasks() for stage in stages):
            return False
        return last is None or last.numCompletedTasks() < last.numTasks()  # else Spark collects what they have returned

    def _stages(self, tracker: Any) -> tuple[list[Any], Any]:
        """The stages of its latest job that Spark knows, and the one whose tasks are the job's; None: not yet begun."""
        job = max(tracker.getJobIdsForTag(self._tag), default=-1)  # earlier ones have written shuffle files for it
        info = tracker.getJobInfo(job)
        ids = sorted(info.get().stageIds()) if info.isDefined() else []
        stages = [stage.get() for stage in map(tracker.getStageInfo, ids) if stage.isDefined()]
        return stages, stages[-1] if stages and stages[-1].stageId() == ids[-1] else None

    def executors(self) -> frozenset[str]:
        """Ids of the executors that its tasks run on, in a classic session; empty until all tasks have begun."""
        context = self._spark.sparkContext._jsc
        if context is None:  # the session has been stopped
            return frozenset()
        _, last = self._stages(context.sc().statusTracker())
        if last is None:
            return frozenset()
        # summaries of stages and executors would come with the executors' next heartbeat only
        tasks = context.sc().statusStore().taskList(last.stageId(), last.currentAttemptId(), MAX_TASKS)
        begun = tasks.size()
        return frozenset(tasks.apply(i).executorId() for i in range(begun if begun >= last.numTasks() else 0))

    def _gets_progress(self) -> bool:
        """Whether the Connect server reports the progress of jobs, as it does unless its interval is 0."""
        if self._reports_progress is None:
            self._reports_progress = (
                re.match(r"\s*[1-9]", str(self._spark.conf.get(PROGRESS_INTERVAL, "2s"))) is not None
            )
        return self._reports_progress
