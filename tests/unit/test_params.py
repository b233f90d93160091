import inspect
import json

import numpy as np
import pytest
from pyspark.ml import Estimator, Model
from pyspark.ml.param.shared import HasFeaturesCol, HasLabelCol, HasPredictionCol
from pyspark.ml.util import MLReadable, MLWritable

from tfos_ml import InputMode, KerasEstimator, TFEstimator, TFModel, errors
from tfos_ml.errors import ParamError
from tfos_ml.stages.constraints import Environment
from tfos_ml.stages.params_base import Param, declared

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
        [
            "clusterSize",
            "minClusterSize",
            "checkpointSteps",
            "epochs",
            "batchSize",
            "predictBatchSize",
            "adaptRows",
            "nodeCpus",
            "nodeGpus",
        ],
        integers(1),
    ),
    **dict.fromkeys(["numPS", "maxRestarts"], integers(0)),
    **dict.fromkeys(["driverPSNodes", "evalNode", "shuffle", "tensorboard"], FLAGS),
    **dict.fromkeys(["reservationTimeout", "feedTimeout"], SECONDS),
    "batchStatistics": (["global", "local"], ["", "LOCAL", 1]),
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


every_stage = pytest.mark.parametrize("stage", STAGES)


def own_params(stage):
    return [p.name for p in stage().params]


def other_value(stage, name):
    """A good one that is not the default."""
    made = stage()
    param = made.getParam(name)
    default = made.getOrDefault(param) if made.hasDefault(param) else None
    return next(value for value in VALUES[name][0] if value != default)


class TestHabits:
    """Of Spark ML's own stages."""

    @every_stage
    def test_are_of_the_class_and_camel_case(self, stage):
        for name in own_params(stage):
            assert isinstance(getattr(stage, name), Param)
            assert name[0].islower()
            assert "_" not in name

    @every_stage
    def test_use_the_mixins_of_pyspark(self, stage):
        wanted = [HasFeaturesCol, HasPredictionCol] + ([HasLabelCol] if issubclass(stage, Estimator) else [])
        assert issubclass(stage, tuple(wanted))

    @every_stage
    def test_have_setters_getters_keywords_and_grids(self, stage):
        for name in own_params(stage):
            value = other_value(stage, name)
            by_setter = stage()
            assert getattr(by_setter, f"set{suffix(name)}")(value) is by_setter
            assert getattr(by_setter, f"get{suffix(name)}")() == value
            assert getattr(stage(**{name: value}), f"get{suffix(name)}")() == value
            plain = stage()
            assert getattr(plain.copy({plain.getParam(name): value}), f"get{suffix(name)}")() == value
            assert getattr(stage, f"set{suffix(name)}").__doc__
            assert getattr(stage, f"get{suffix(name)}").__doc__

    @every_stage
    def test_and_defaults_are_json(self, stage):
        values = stage(**{name: other_value(stage, name) for name in own_params(stage)})
        for params in (values.extractParamMap(), stage().extractParamMap()):
            for param, value in params.items():
                back = json.loads(json.dumps(value))
                assert back == value or name_keys(back) == name_keys(value), param.name

    @every_stage
    def test_are_explained_a_line_each(self, stage):
        lines = stage().explainParams().splitlines()
        assert [line.split(":")[0] for line in lines] == sorted(own_params(stage))
        assert all(" (default: " in line or " (undefined)" in line for line in lines)
        assert max(map(len, lines)) < 250  # the longest is one of pyspark's own

    @every_stage
    def test_of_another_name_bring_up_the_nearest(self, stage):
        with pytest.raises(errors.ParamError, match=r"'predictbatchsize' \(did you mean predictBatchSize"):
            stage(predictbatchsize=3)
        with pytest.raises(errors.ParamError, match=r"Unknown parameters: 'zzz'\. Known: "):
            stage().setParams(zzz=3)


def name_keys(value):
    return {str(k): v for k, v in value.items()} if isinstance(value, dict) else value


class TestConstruction:
    @every_stage
    def test_takes_keywords_only(self, stage):
        """Except for the model of a KerasEstimator."""
        with pytest.raises((TypeError, errors.ModelError)):
            stage("features")
        parameters = inspect.signature(stage.__init__).parameters.values()
        assert [p.name for p in parameters if p.kind is p.POSITIONAL_ONLY] in ([], ["model"])

    @every_stage
    def test_leaves_fit_and_transform_to_pyspark(self, stage):
        for name in ("fit", "transform"):
            homes = [c for c in stage.__mro__ if name in vars(c)]
            assert all(c.__module__.startswith("pyspark") for c in homes)
        assert issubclass(stage, (Estimator, Model))

    @every_stage
    def test_is_writable_and_readable(self, stage):
        assert issubclass(stage, MLWritable)
        assert issubclass(stage, MLReadable)

    @every_stage
    def test_copies_are_independent(self, stage):
        made = stage(predictBatchSize=3)
        copied = made.copy({made.predictBatchSize: 4})
        copied.setPredictionCol("other")
        assert (made.getPredictBatchSize(), made.getPredictionCol()) == (3, "prediction")
        assert (copied.getPredictBatchSize(), copied.uid) == (4, made.uid)
