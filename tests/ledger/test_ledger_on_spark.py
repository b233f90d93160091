"""The ledger on a real Spark: barrier and plain jobs on executors, and Spark Connect."""

from __future__ import annotations

import subprocess
import sys
from pathlib import Path

import pytest
import spark_case
from conftest import CLUSTER

pytestmark = [
    pytest.mark.chaos,
    pytest.mark.filterwarnings("ignore:fit returns the model of"),  # its workers train apart on purpose
]
DYNAMIC = {
    "spark_dynamicAllocation_enabled": "true",
    "spark_dynamicAllocation_shuffleTracking_enabled": "true",
    "spark_dynamicAllocation_maxExecutors": "2",
}


@pytest.mark.parametrize("fault", spark_case.FAULTS)
@pytest.mark.parametrize("mode", ["barrier", "plain"])
def test_faults_on_several_executors(sessions, tmp_path, mode, fault):
    spark = sessions.get(CLUSTER, **(DYNAMIC if mode == "plain" else {}))
    for case in spark_case.cases(mode, fault):
        spark_case.run(spark, case, tmp_path / str(case).replace(" ", "-"))


@pytest.mark.parametrize("fault", spark_case.FAULTS)
def test_faults_on_spark_connect(tmp_path, fault):
    command = [sys.executable, str(Path(spark_case.__file__)), str(tmp_path), fault]
    done = subprocess.run(command, capture_output=True, text=True, timeout=500, cwd=tmp_path)
    print(done.stdout)
    assert done.stdout.splitlines()[-1:] == ["all hold"], done.stderr[-3000:]
