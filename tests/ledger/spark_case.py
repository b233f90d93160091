"""The same faults on a real Spark; as a program, on Spark Connect: ``spark_case.py <directory> <fault> ...``."""

from __future__ import annotations

import argparse
import os
import sys
from functools import partial
from pathlib import Path
from typing import Any

import cloudpickle
import ledger_program
from ledger_case import EPOCHS, NODES, Case, Run

from tfos_ml import TFEstimator
from tfos_ml.common.session_settings import LEASE
from tfos_ml.protocol.node_task import NodeTask
from tfos_ml.stages import cluster_estimator

ROWS = 62
PHASES = ["start", "epoch", "export"]
FAULTS = ["kill child", "kill supervisor", "kill all", "stop child", "stop supervisor"]

cloudpickle.register_pickle_by_value(ledger_program)


class SparkRun(Run):
    """A case on a session.

    Parameters
    ----------
    spark : pyspark.sql.SparkSession
        Classic or Connect.
    """

    def __init__(self, spark: Any, case: Case, directory: Path):
        self._session = spark
        self.ids = {rank: range(rank, ROWS, NODES) for rank in range(NODES)}
        super().__init__(case, directory)

    def open_session(self) -> Any:
        self._session.conf.set(LEASE.name, str(self.lease))
        return self._session

    def _launch(self, args: argparse.Namespace) -> Any:
        rows = self.spark.range(0, ROWS, 1, 1).withColumnRenamed("id", "features")
        cluster_estimator.NodeTask = partial(NodeTask, heartbeat_timeout=self.silence)  # type: ignore[misc, assignment]
        estimator = TFEstimator(
            trainFn=ledger_program.train,
            tfArgs=vars(args),
            clusterSize=NODES,
            epochs=EPOCHS,
            exportDir=str(self.export_dir),
            maxRestarts=self.case.restarts,
            verbose=0,
        )
        try:
            return estimator.fit(rows)
        finally:
            cluster_estimator.NodeTask = NodeTask  # type: ignore[misc]

    def _reports(self) -> list[dict[str, Any]]:
        reports: list[dict[str, Any]] = self.result.summary.nodes
        return reports


def cases(mode: str, fault: str) -> list[Case]:
    """A fault in each phase to each node; the fit of the second may begin again."""
    return [Case(mode, fault, phase, victim, victim) for phase in PHASES for victim in range(NODES)]


def run(spark: Any, case: Case, directory: Path) -> BaseException | None:
    """Run a case, check its ledger, and return its error."""
    directory.mkdir()
    one = SparkRun(spark, case, directory)
    one.fit()
    print(f"{case}: {one.seconds:.1f} s, {type(one.error).__name__}: {one.error}", flush=True)
    one.check()
    assert (one.error is None) == bool(case.restarts)
    return one.error


def main(directory: Path, *faults: str) -> None:
    """Run the cases of some faults on Spark Connect."""
    from pyspark.sql import SparkSession

    spark = SparkSession.builder.remote("local[4]").config("spark.ui.enabled", "false").getOrCreate()
    for fault in faults:
        for case in cases("connect", fault):
            run(spark, case, directory / str(case).replace(" ", "-"))
    spark.stop()
    print("all hold", flush=True)


if __name__ == "__main__":
    os.environ.setdefault("TFOS_ML_PRELOAD", "0")
    main(Path(sys.argv[1]), *sys.argv[2:])
