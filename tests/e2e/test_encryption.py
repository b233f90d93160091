"""Where Spark encrypts its traffic: what tfos_ml encrypts as well runs, and what it cannot is refused by name.

In make test, two workers encrypt in ``unit/test_sockets.py``, and ``test_bad_input.py`` has what is refused.
"""

from __future__ import annotations

import pytest
import train_functions
from conftest import jobs_of

from tfos_ml import KerasEstimator, TFEstimator, errors

pytestmark = pytest.mark.chaos  # a session of its own
ENCRYPTED = {
    "spark_authenticate": "true",
    "spark_authenticate_secret": "of these tests",
    "spark_network_crypto_enabled": "true",
}


def regression():
    import keras

    model = keras.Sequential([keras.layers.Input((2,)), keras.layers.Dense(1)])
    model.compile("sgd", "mse")
    return model


def test_workers_of_keras_estimator_train_and_what_would_use_grpc_is_refused(sessions):
    several_executors = sessions.get("local-cluster[2,1,1024]", **ENCRYPTED)
    rows = [([float(i % 5), 1.0], float(i % 3)) for i in range(101)]
    df = several_executors.createDataFrame(rows, "features array<float>, label float")
    estimator = KerasEstimator(model=regression, clusterSize=2, epochs=2, batchSize=16, seed=3, verbose=0)
    fitted = estimator.fit(df)
    assert fitted.summary.history["loss"][1] < fitted.summary.history["loss"][0]
    before = jobs_of(several_executors)
    with pytest.raises(errors.ClusterConfigError, match="gRPC between nodes cannot be encrypted. Use KerasEstimator"):
        TFEstimator(trainFn=train_functions.do_nothing, clusterSize=2, verbose=0).fit(df)
    assert jobs_of(several_executors) == before
