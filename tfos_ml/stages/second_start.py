"""Fits that begin again in another way: what nodes find in the rows tells that the way they were given does not do."""

from __future__ import annotations

import logging
from collections.abc import Callable
from dataclasses import replace

from tfos_ml.agent.text_reader import ADVICE
from tfos_ml.common.timeline import Timeline
from tfos_ml.common.user_warnings import warn
from tfos_ml.driver.fit import RunResult
from tfos_ml.errors import EarlyStartError, UncertainTextError
from tfos_ml.stages.input_path import InputChoice

logger = logging.getLogger(__name__)


def run_by(
    chosen: InputChoice, path: str, run: Callable[[InputChoice], RunResult], timeline: Timeline
) -> tuple[InputChoice, RunResult]:
    """Run a fit whose rows come by the way that was chosen, or by another that does; that way, and what came of it.

    Text that Spark may read otherwise is left to Spark, unless `path`, the Param ``inputPath``, forbids it; where rows
    are not all of the first ones' shape, nodes wait for all rows. Raises what `run` raises.
    """
    while True:  # twice at most for either reason: Spark's rows are not begun early, and no node reads text anew
        try:
            return chosen, run(chosen)
        except UncertainTextError as error:
            if path != "auto":
                raise
            found = error.message.removesuffix(ADVICE)
            warn(f"The fit began again, with rows that Spark feeds: {found}")
            chosen = InputChoice(None, found, is_given_up=True)
        except EarlyStartError as error:
            logger.info("The fit begins again: %s", error)
            chosen = replace(chosen, waits_because=error.message)
        timeline.end("failed attempts")
