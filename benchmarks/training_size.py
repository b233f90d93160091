"""The training of a large model: memory of processes, bytes on the wire and seconds, beside plain Keras.

Plain Keras and each number of workers train two epochs of 32 rows in batches of 8, one after the other; workers by
``KerasEstimator`` on ``local[n]``, with a ``modelDir``. Beside n workers, n processes of plain Keras train the whole at
once, since n workers share the cores of this machine, too. Peaks are those of ``VmHWM``.
"""

from __future__ import annotations

import contextlib
import functools
import json
import math
import subprocess
import sys
import tempfile
import time
from pathlib import Path
from typing import Any

import large_models
import psutil
from large_models import BATCH, EPOCHS, ROWS
from peak_memory import Watching
from pyspark.sql import SparkSession

from tfos_ml import KerasEstimator

MODELS = tuple(large_models.MODELS)


def run(names: list[str], workers: list[int], blocks: int, table_rows: int) -> None:
    """Measure models, and print a line for each number of workers."""
    for name in names:
        size = table_rows if name == "embedding" else blocks
        for count in workers:
            plain = _results(count, "large_models.plain_keras", name, size)
            (fit,) = _results(1, "training_size.spark_fit", name, size, count)
            print(_line(name, max(plain, key=_first_step), fit), flush=True)


def _results(processes: int, function: str, *arguments: Any) -> list[Any]:
    """What a function returns in so many processes at once."""
    program = f"import json, {function.partition('.')[0]}; print(json.dumps({function}{arguments}))"
    command = [sys.executable, "-c", program]
    started = [subprocess.Popen(command, stdout=subprocess.PIPE, text=True) for _ in range(processes)]
    printed = [process.communicate()[0] for process in started]
    if any(process.returncode for process in started):
        raise subprocess.CalledProcessError(1, command)
    return [json.loads(text.splitlines()[-1]) for text in printed]


def spark_fit(name: str, size: int, workers: int) -> dict[str, Any]:
    """What a fit takes: notes of its workers, peaks of all processes, and two moments."""
    kind, width = ("float", math.prod(large_models.PIXELS)) if "resnet" in name else ("int", large_models.TOKENS)
    settings = {"spark.ui.enabled": "false", "spark.log.level": "ERROR", "spark.ui.showConsoleProgress": "false"}
    spark = SparkSession.builder.master(f"local[{workers}]").config(map=settings).getOrCreate()
    values = f"transform(sequence(1, {width}), i -> cast(pmod(hash(id, i), {large_models.VOCABULARY}) as {kind}))"
    rows = spark.range(0, ROWS, 1, workers).selectExpr(f"{values} features", "cast(id % 2 as int) label")
    rows.count()
    with tempfile.TemporaryDirectory() as notes, tempfile.TemporaryDirectory() as model_dir, Watch(notes) as watch:
        estimator = KerasEstimator(
            model=functools.partial(large_models.build, name, size, notes),
            clusterSize=workers,
            epochs=EPOCHS,
            batchSize=BATCH,
            shuffle=False,
            verbose=0,
            modelDir=model_dir,
            callbacks=[large_models.Notes(notes), large_models.Saves(notes)],
        )
        began = time.time()
        estimator.fit(rows)
        (state,) = Path(model_dir).glob("tfos_ml/epoch-00001-*/state.json")
        found = {"workers": large_models.noted(notes), "began": began, "complete": state.stat().st_mtime}
    spark.stop()
    return {**found, "peaks": watch.peaks, "above_idle": watch.above_idle()}


class Watch(Watching):
    """The peaks of this process, which is the driver, its JVM, and those that note something."""

    def __init__(self, notes: str) -> None:
        super().__init__()
        self._notes = Path(notes)
        driver = psutil.Process()
        java = next(child for child in driver.children(recursive=True) if child.name() == "java")
        self._idle = {process.pid: large_models.status(process.pid, "VmRSS") for process in (driver, java)}
        self.peaks: dict[int, int] = {}

    def above_idle(self) -> list[int]:
        """Of the driver's Python process and of its JVM: what they had at most above what they began with."""
        return [max(0, self.peaks[pid] - idle) for pid, idle in self._idle.items()]

    def look(self) -> None:
        """As of ``Watching``."""
        for pid in [*self._idle, *(int(file.name) for file in self._notes.iterdir())]:
            with contextlib.suppress(OSError):  # it has ended
                self.peaks[pid] = max(self.peaks.get(pid, 0), large_models.status(pid, "VmHWM"))


def _peak(process: dict[str, Any]) -> int:
    return max(noted["peak"] for noted in process["end"])


def _first_step(process: dict[str, Any], clock: str = "at") -> float:
    """Seconds, or those of its CPUs, from the beginning of its model to the end of its first step."""
    return process["step"][0][clock] - process["build"][0][clock]


def _line(name: str, plain: dict[str, Any], fit: dict[str, Any]) -> str:
    workers = fit["workers"]
    chief = workers[0]
    saved, begins, steps = chief["saved"][0], chief["begin"], chief["step"]
    of_step = steps[-1]["sent"] - steps[-2]["sent"]
    of_epoch = begins[1]["sent"] - begins[0]["sent"] - ROWS // BATCH * of_step
    start = chief["build"][0]["at"] - fit["began"]
    return "  ".join(
        [
            f"{name:14} {len(workers)}",
            f"MB: plain {_peak(plain)} workers {[_peak(worker) for worker in workers]}",
            f"with export {[fit['peaks'][str(worker['pid'])] for worker in workers]}",
            "driver +{} JVM +{}".format(*fit["above_idle"]),
            f"| sent MB: start {begins[0]['sent'] / 1e6:.3f} step {of_step / 1e6:.3f} epoch {of_epoch / 1e6:.3f}",
            f"| s: first step {_first_step(chief):.1f} plain {_first_step(plain):.1f} start {start:.1f}",
            f"step {_step(chief):.2f} plain {_step(plain):.2f}",
            f"| CPU s: first step {[round(_first_step(worker, 'cpu'), 1) for worker in workers]}"
            f" plain {_first_step(plain, 'cpu'):.1f}",
            f"| checkpoint: waited {begins[1]['at'] - saved['at']:.2f} complete {fit['complete'] - saved['at']:.2f}"
            f" save_weights {saved['seconds']:.2f} (plain {plain['saved'][0]['seconds']:.2f})",
        ]
    )


def _step(process: dict[str, Any]) -> float:
    """Seconds of the last step."""
    return process["step"][-1]["at"] - process["step"][-2]["at"]
