"""Where Spark encrypts its traffic: what tfos_ml encrypts as well runs, and what it cannot is refused by name.

In make test, two workers encrypt in ``unit/test_sockets.py``, and ``test_bad_input.py`` has what is refused.
"""

from __future__ import annotations

import pytest
import train_functions
from conftest import jobs_of

from tfos_ml import KerasEstimator, TFEstimator, TFParallel, errors

pytestmark = pytest.mark.chaos  # a session of its own
ENCRYPTED = {
    "spark_authenticate": "true",
    "spark_authenticate_secret": "of these tests",
    "spark_network_crypto_enabled": "true",
}


@pytest.fixture(scope="module")
def several_executors(sessions):
    return sessions.get("local-cluster[2,1,1024]", **ENCRYPTED)


@pytest.fixture
def df(several_executors):
    rows = [([float(i % 5), 1.0], float(i % 3)) for i in range(101)]
    return several_executors.createDataFrame(rows, "features array<float>, label float")


def regression():
    import keras

    model = keras.Sequential([keras.layers.Input((2,)), keras.layers.Dense(1)])
    model.compile("sgd", "mse")
    return model


def test_workers_of_keras_estimator_train(df):
    estimator = KerasEstimator(model=regression, clusterSize=2, epochs=2, batchSize=16, seed=3, verbose=0)
    fitted = estimator.fit(df)
    assert fitted.summary.history["loss"][1] < fitted.summary.history["loss"][0]


def test_instances_that_do_not_connect_run(several_executors):
    results = TFParallel.run(
        several_executors.sparkContext, lambda args, ctx: args + ctx.executor_id, 5, 2, use_barrier=True
    )
    assert sorted(results) == [5, 6]


def test_a_cluster_of_one_node_runs(df):
    TFEstimator(trainFn=train_functions.do_nothing, verbose=0).fit(df)


@pytest.mark.parametrize(
    "estimator",
    [
        TFEstimator(trainFn=train_functions.do_nothing, clusterSize=2, verbose=0),
        KerasEstimator(model=regression, clusterSize=2, communication="ring", verbose=0),
    ],
    ids=["TFEstimator", "ring"],
)
def test_what_would_use_tensorflows_grpc_is_refused_before_the_job(several_executors, df, estimator):
    before = jobs_of(several_executors)
    with pytest.raises(errors.ClusterConfigError, match="gRPC between nodes cannot be encrypted. Use KerasEstimator"):
        estimator.fit(df)
    assert jobs_of(several_executors) == before
