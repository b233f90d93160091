import numpy as np
import pytest

from tfos_ml import InputMode, KerasEstimator, TFEstimator, TFModel
from tfos_ml.errors import ParamError
from tfos_ml.stages.constraints import Environment
from tfos_ml.stages.declared import Param, declared

TEXTS = (["x", "with space"], ["", 1, b"x", ["x"]])
FLAGS = ([True, False], [0, 1, "true", np.True_])
MAPPINGS = ([{"a": "b"}, {"a": "b", "c": "d"}], [{}, {"": "b"}, {"a": ""}, {"a": 1}, {1: "a"}, [("a", "b")], "a"])
SECONDS = ([1, 0.5, 1e9, np.float32(2)], [0, -1, float("nan"), True, "10"])


def integers(least):
    good = [least, least + 1, 10**6, np.int64(least + 2)]
    return good, [least - 1, -(10**6), least + 0.5, float(least), str(least), True, [least]]


VALUES = {
    **dict.fromkeys(["featuresCol", "labelCol", "predictionCol", "weightCol", "validationIndicatorCol"], TEXTS),
    **dict.fromkeys(["modelDir", "exportDir", "logDir", "initialWeights", "cacheDir"], TEXTS),
    **dict.fromkeys(["signatureDefKey"], TEXTS),
    **dict.fromkeys(["rawPredictionCol", "probabilityCol"], (["x", ""], [1, b"x", ["x"]])),
    **dict.fromkeys(["inputMapping", "labelMapping", "weightMapping", "outputMapping"], MAPPINGS),
    **dict.fromkeys(
        ["clusterSize", "epochs", "batchSize", "predictBatchSize", "adaptRows", "nodeCpus", "nodeGpus"], integers(1)
    ),
    **dict.fromkeys(["numPS", "maxRestarts"], integers(0)),
    **dict.fromkeys(["driverPSNodes", "evalNode", "shuffle", "tensorboard"], FLAGS),
    **dict.fromkeys(["reservationTimeout", "feedTimeout"], SECONDS),
    "communication": (["auto", "ring", "nccl"], ["", "RING", 1]),
    "masterNode": (["chief", "master"], ["", "worker", "Chief", 1, ["chief"]]),
    "inputMode": ([InputMode.SPARK, InputMode.TENSORFLOW], ["spark", "", 0, None.__class__]),
    "seed": ([0, -1, 2**62, np.int64(3)], ["1", True]),
    "nodeEnv": ([{}, {"A": "1"}, {"A": ""}], [{"A": 1}, {"": "x"}, {1: "x"}, "A=1", [("A", "1")]]),
    "handleInvalid": (["error", "skip", "keep"], ["drop", "", True, 0]),
    "padValue": ([0, -1.5, np.float32(2), float("nan")], ["0", True, [0], 1j]),
    "verbose": ([0, 1, 2, np.int64(1)], [-1, 3, 0.0, "1", True]),
    "threshold": ([0.5, 0, 1, np.float64(0.25)], [-0.1, 1.1, float("nan"), True, "0.5"]),
    "modelArgs": ([{"units": 3, "rates": [0.1]}, {}], [{1: 2}, {"": 1}, [("units", 3)], "units"]),
    "validationSplit": ([0.25, 0, 0.999], [1, 1.5, -0.1, float("nan"), True, "0.1"]),
    "classWeight": (
        [{0: 1, 1: 2.5}, {np.int64(1): 0}],
        [{}, {0: -1.0}, {"a": 1}, {0: "1"}, {0.5: 1}, {True: 1.0}, {0: True}, {0: float("nan")}, [1.0, 2.0]],
    ),
    **dict.fromkeys(
        ["adaptLayers", "binaryOutputs", "vectorOutputs"], ([["a"], ["a", "b"]], [[], "a", [""], [1], {"a"}])
    ),
}
STAGES = {stage: declared(stage) for stage in (TFEstimator, KerasEstimator, TFModel)}
DECLARED = {name: param for params in STAGES.values() for name, param in params.items()}


def suffix(name):
    return name[0].upper() + name[1:]


def label(value):
    return value.__name__ if isinstance(value, type) else repr(value)


def estimator_with(name):
    """The estimator that has a Param."""
    return TFEstimator if name in STAGES[TFEstimator] else KerasEstimator


def same(received, value):
    return received == value or (received != received and value != value)


@pytest.mark.parametrize(("stage", "params"), STAGES.items(), ids=label)
def test_every_param_is_declared_with_a_constraint(stage, params):
    """Those of pyspark's mixins, too, which have a doc and a converter of their own."""
    made = stage()
    assert sorted(params) == sorted(p.name for p in made.params)
    assert {type(p) for p in made.params} == {Param}


@pytest.mark.parametrize("name", VALUES)
def test_good_values_are_taken_and_given_back(name):
    for value in VALUES[name][0]:
        estimator = estimator_with(name)(**{name: value})
        assert same(getattr(estimator, f"get{suffix(name)}")(), value)
        estimator._check_params()


@pytest.mark.parametrize("name", VALUES)
def test_bad_values_are_refused_in_one_format(name):
    for value in VALUES[name][1]:
        with pytest.raises(ParamError) as caught:
            estimator_with(name)(**{name: value})
        shown = Environment(value) if name == "nodeEnv" and isinstance(value, dict) else value
        assert str(caught.value).startswith(f"{name} must be {DECLARED[name].constraint.expected}. Received: {shown!r}")


def test_class_weights_that_were_saved_as_json_have_numbers_for_keys_again():
    assert KerasEstimator(classWeight={"0": 1, "12": 2.5}).getClassWeight() == {0: 1.0, 12: 2.5}


class TestTrainFunction:
    @pytest.mark.parametrize("value", [1, "print", {}])
    def test_must_be_callable(self, value):
        with pytest.raises(ParamError, match="trainFn must be a function .* Received"):
            TFEstimator(trainFn=value)

    @pytest.mark.parametrize("value", ["--a 1", 1, {1, 2}])
    def test_refuses_other_arguments(self, value):
        with pytest.raises(ParamError, match="tfArgs must be .* Received"):
            TFEstimator(tfArgs=value)
