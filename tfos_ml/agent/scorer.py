"""Scores the rows of a transform, in the Python worker itself or in the scoring process of the executor.

The client of the scoring process is :mod:`tfos_ml.agent.scoring_client`. If the process dies while it scores a batch,
the batch is sent once more.
"""

from __future__ import annotations

import logging
import os
from collections.abc import Callable, Iterator
from dataclasses import dataclass

import pyarrow as pa

from tfos_ml import errors
from tfos_ml.agent.executor import executor
from tfos_ml.agent.fork_client import ForkServerRef
from tfos_ml.agent.scoring_client import (
    ScoringConnection,
    ScoringProcessClient,
    ServerNotStartedError,
    operation_threads,
)
from tfos_ml.common.session_settings import AUTO, EXECUTOR, SCORING_PROCESS, WORKER
from tfos_ml.inference import archive, udf
from tfos_ml.inference.tensorflow_import import limit_threads
from tfos_ml.protocol.artifacts import Artifact

logger = logging.getLogger(__name__)

LARGE_MODEL_BYTES = 64 << 20
MANY_CORES = 8  # with small models, most work is Python's, so one process cannot keep this many cores busy


@dataclass(frozen=True)
class ScoringProcess:
    """The driver's decision on which process scores; part of the UDF's closure."""

    kind: str  # AUTO, EXECUTOR or WORKER
    model_bytes: int
    idle_seconds: float
    owner: int | None  # the driver, in local mode; None: this executor

    @property
    def is_shared(self) -> bool:
        """Whether the executor's scoring process is used; called on the executor."""
        if self.kind != AUTO:
            return self.kind == EXECUTOR
        is_worthwhile = self.model_bytes >= LARGE_MODEL_BYTES or len(os.sched_getaffinity(0)) <= MANY_CORES
        return self.idle_seconds > 0 and is_worthwhile


def make_udf_function(
    scoring: udf.ScoringSpec, process: ScoringProcess
) -> Callable[[Iterator[tuple[pa.Array, ...]]], Iterator[pa.Array]]:
    """The function that Spark calls with an iterator of batches, one Arrow array a column."""

    def score(batches: Iterator[tuple[pa.Array, ...]]) -> Iterator[pa.Array]:
        if not process.is_shared:
            threads = operation_threads(process.owner or executor())
            for batch in batches:
                yield _score_here(scoring, udf.columns_of(batch), threads)
            return
        with Scorer(scoring, process) as scorer:
            for batch in batches:
                yield scorer.score(udf.columns_of(batch))

    return score


def _score_here(scoring: udf.ScoringSpec, columns: list[pa.Array], threads: int | None) -> pa.Array:
    """Outputs for one Arrow batch, with the model in this process."""
    if threads is not None:
        limit_threads(threads)
    return udf.score_here(scoring, columns)


class Scorer:
    """One task's use of the executor's scoring process; a context manager."""

    def __init__(self, scoring: udf.ScoringSpec, process: ScoringProcess):
        self._scoring = scoring
        self._server = ScoringProcessClient(ForkServerRef(process.owner or executor(), process.idle_seconds))
        self._may_score_here = process.kind == AUTO
        self._scores_here = False
        self._connection: ScoringConnection | None = None

    def __enter__(self) -> Scorer:
        return self

    def __exit__(self, *_: object) -> None:
        self._disconnect()

    def score(self, columns: list[pa.Array]) -> pa.Array:
        """Outputs for one Arrow batch; raises as ``udf.score_here``, also if the model ends the process twice."""
        if self._scores_here:
            return _score_here(self._scoring, columns, self._server.threads)
        try:
            return udf.score_batch(self._scoring, columns, self._score_block)
        except ServerNotStartedError as error:
            if not self._may_score_here:
                raise errors.ModelError(
                    f"The executor's scoring process does not start: {error}. See the executor's log, or set "
                    f"{SCORING_PROCESS}={WORKER}."
                ) from None
            logger.warning("This Python worker runs the model itself: %s", error)
            self._scores_here = True
            return self.score(columns)

    def _score_block(self, columns: list[pa.Array]) -> pa.Array:
        try:
            return self._connected().score(columns)
        except (ConnectionError, TimeoutError) as error:
            logger.warning("The scoring process has ended (%s): its batch is scored once more", error)
            self._disconnect()
        try:
            return self._connected().score(columns)
        except (ConnectionError, TimeoutError) as error:
            self._disconnect()
            raise errors.ModelError(
                f"The scoring process ended twice while it had the same batch of {len(columns[0])} rows ({error}): "
                "the model ends it, or memory is short. See the executor's log; set a smaller predictBatchSize, or "
                "more memory (spark.executor.memoryOverhead)."
            ) from None

    def _connected(self) -> ScoringConnection:
        """A connection to the server, after the server has loaded the model."""
        if self._connection is None:
            model = self._scoring.model
            try:
                self._connection = self._server.load(self._scoring)
            except errors.ModelError:
                if not isinstance(model, Artifact):
                    raise
                archive.unpack_again(model)
                self._connection = self._server.load(self._scoring)
        return self._connection

    def _disconnect(self) -> None:
        if self._connection is not None:
            self._connection.close()
            self._connection = None
