"""What is passed instead of DataFrames and functions, told on the driver."""

import numpy as np
import pandas as pd
import pytest

from tfos_ml import KerasEstimator, TFEstimator, TFModel, errors
from tfos_ml.common.arguments import check_model_function


class Rdd:
    __module__ = "pyspark.core.rdd"
    __qualname__ = "RDD"


GIVEN = [
    (pd.DataFrame({"features": [1.0]}), r"pandas\.[\w.]*DataFrame.*spark\.createDataFrame"),
    (np.zeros((2, 4)), r"numpy\.ndarray.*spark\.createDataFrame"),
    (Rdd(), r"pyspark\.core\.rdd\.RDD.*toDF"),
    ([[1.0]], r"builtins\.list.*spark\.createDataFrame"),
    (None, "NoneType"),
]


@pytest.mark.parametrize("make", [TFEstimator, KerasEstimator, TFModel])
def test_what_is_no_dataframe_is_named(make):
    stage = make()
    for given, message in GIVEN:
        with pytest.raises(errors.InputTypeError, match=rf"{make.__name__}\.\w+ takes a Spark DataFrame.*{message}"):
            (stage.transform if make is TFModel else stage.fit)(given)


def test_arguments_of_a_model_function():
    check_model_function(lambda units=3: None, {})
    check_model_function(lambda units: None, {"units": 3})
    with pytest.raises(errors.ParamError, match="no arguments.*missing a required argument: 'units'"):
        check_model_function(lambda units: None, {})
    with pytest.raises(errors.ParamError, match=r"\['width'\].*unexpected keyword argument 'width'"):
        check_model_function(lambda units=3: None, {"width": 3})
