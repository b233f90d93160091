"""Fits on CSV and JSON files: where nodes meet text that Spark may read otherwise, Spark feeds the rows after all."""

from __future__ import annotations

from collections.abc import Callable

from tfos_ml.common.timeline import Timeline
from tfos_ml.common.user_warnings import warn
from tfos_ml.driver.fit import RunResult
from tfos_ml.errors import UncertainTextError
from tfos_ml.stages.input_path import InputChoice


def run_or_feed(
    chosen: InputChoice, path: str, run: Callable[[InputChoice], RunResult], timeline: Timeline
) -> tuple[InputChoice, RunResult]:
    """Run a fit by the way that was chosen, or by the one that it had to take in its stead; that way, and what came.

    Raises what `run` raises, ``UncertainTextError`` only if nodes must read the files by ``inputPath="direct"``.
    """
    try:
        return chosen, run(chosen)
    except UncertainTextError as error:
        if path != "auto":
            raise
        found = error.message
    timeline.end("failed attempts")
    fed = InputChoice(None, found, is_given_up=True)
    warn(f"The fit began again, with rows that Spark feeds: {found}")
    return fed, run(fed)
