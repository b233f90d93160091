"""What ends when: workers are waited for, servers and evaluators are ended, and who is ended at work is named.

Clusters are in ``test_node_faults.py``.
"""

from __future__ import annotations

import warnings

import pytest
from node_functions import never_look, work_or_serve
from settings import setting

from tfos_ml import TFEstimator, errors


def fit(spark, train_fn, args=None, **params):
    rows = spark.range(20).selectExpr("id as features")
    with warnings.catch_warnings():
        warnings.simplefilter("ignore", errors.NothingExportedWarning)
        return TFEstimator(trainFn=train_fn, tfArgs=args or {}, verbose=0, **params).fit(rows)


def test_a_fit_waits_for_a_worker_that_works(spark, caplog):
    model = fit(spark, work_or_serve, {"worker": 7}, clusterSize=3, numPS=1, masterNode="chief")
    told = {}
    for node in model.summary.nodes:
        told |= {(node["label"], name): value for one in node["metrics"] for name, value in one["metrics"].items()}
    assert told["ps:0", "ended"] > told["worker:0", "done"] > told["chief:0", "done"] + 5
    assert "Waiting for worker:0 to return" in caplog.text


STILL_WORKED = r"worker:0 still worked 1 s after .*spark.tfos_ml.workerGrace=1"


def test_a_worker_that_a_fit_ends_at_work_is_named(spark):
    with setting(spark, "workerGrace", "1"), pytest.warns(errors.NodeEndedWarning, match=STILL_WORKED):
        fit(spark, work_or_serve, {"worker": 600}, clusterSize=3, numPS=1, masterNode="chief")


ENDED = r"evaluator:0 had not returned in time after .*spark.tfos_ml.evaluatorGrace=2.*ctx.should_stop\(\)"


def test_a_fit_ends_an_endless_evaluator(spark, tmp_path):
    args = {"directory": str(tmp_path)}
    with setting(spark, "evaluatorGrace", "2"), pytest.warns(errors.NodeEndedWarning, match=ENDED):
        model = fit(spark, never_look, args, clusterSize=2, evalNode=True, feedTimeout=5)
    assert model.summary.rows == 20
