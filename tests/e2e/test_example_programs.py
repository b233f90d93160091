"""A program on KerasHub ends through Spark like plain Keras here.

Programs of all kinds that keras.io shows are in ``unit/test_exactness.py``; layers that a fit adapts are in
``test_keras.py``, ``test_evaluate.py`` and ``unit/test_vocabularies.py``.
"""

from __future__ import annotations

import keras
import numpy as np
import pandas as pd
import pytest
from example_programs import hub

from tfos_ml import KerasEstimator, TFModel

FIXED = {"batchSize": 8, "epochs": 2, "shuffle": False, "verbose": 0}


@pytest.mark.chaos
@pytest.mark.skipif(not hub.IS_INSTALLED, reason="keras-hub is not installed")
@pytest.mark.filterwarnings("ignore:(?s).*The structure of `inputs` doesn't match:UserWarning")
@pytest.mark.parametrize("size", [1, 2])
def test_a_classifier_of_kerashub(spark, tmp_path, size):
    x, y = hub.sentences()
    keras.utils.set_random_seed(1)
    model = hub.bert()
    job = KerasEstimator(model=model, inputMapping={name: name for name in x}, clusterSize=size, **FIXED)
    history = model.fit(x, y, batch_size=8, epochs=2, shuffle=False, verbose=0).history
    expected = model.predict(x, verbose=0)
    columns = {**{name: values.tolist() for name, values in x.items()}, "label": y, "row": np.arange(len(y))}
    df = spark.createDataFrame(pd.DataFrame(columns)).coalesce(2)
    fitted = job.fit(df)
    fitted.save(str(tmp_path / "m"))
    for scorer in (fitted, TFModel.load(str(tmp_path / "m"))):
        rows = scorer.transform(df).select("row", "rawPrediction").sort("row").collect()
        found = np.stack([row[1].toArray() for row in rows])
        np.testing.assert_allclose(found[:, -expected.shape[1] :], expected, atol=1e-5)
        assert set(scorer.summary.history) == set(history)
        for name, values in history.items():
            np.testing.assert_allclose(scorer.summary.history[name], values, rtol=1e-5, atol=1e-6, err_msg=name)
        assert scorer.summary.warnings == []
