import ast
import json

import numpy as np
import pytest

from tfos_ml import KerasEstimator, TFEstimator, TFModel, errors
from tfos_ml.errors import ParamError
from tfos_ml.stages.constraints import Environment
from tfos_ml.stages.params_base import Param, declared

NAN = float("nan")
NAMES = ([["a"], ["a", "b"]], [[], "a", [""], [1], {"a"}])
VALUES = {  # by what is expected: some that are taken, and some that are not
    "a non-empty string": (["x", "with space"], ["", 1, b"x", ["x"]]),
    "a string, empty for no such column": (["x", ""], [1, b"x", ["x"]]),
    "True or False": ([True, False], [0, 1, "true", np.True_]),
    "an integer": ([0, -1, 2**62, np.int64(3)], ["1", True]),
    "an integer of at least 0": ([0, 1, np.int64(2)], [-1, 0.5, 0.0, "0", True]),
    "an integer of at least 1": ([1, 2, 10**6, np.int64(3)], [0, -1, 1.0, "1", True, [1]]),
    "0, 1 or 2": ([0, 1, 2, np.int64(1)], [-1, 3, 0.0, "1", True]),
    "a number of seconds above 0": ([1, 0.5, 1e9, np.float32(2)], [0, -1, NAN, True, "10"]),
    "a number": ([0, -1.5, np.float32(2), NAN], ["0", True, [0], 1j]),
    "a number from 0 to 1": ([0.5, 0, 1, np.float64(0.25)], [-0.1, 1.1, NAN, True, "0.5"]),
    "a number of at least 0 and below 1": ([0.25, 0, 0.999], [1, 1.5, -0.1, NAN, True, "0.1"]),
    "a non-empty list of layer names": NAMES,
    "a non-empty list of output names": NAMES,
    "a non-empty dict of non-empty strings": (
        [{"a": "b"}, {"a": "b", "c": "d"}],
        [{}, {"": "b"}, {"a": ""}, {"a": 1}, {1: "a"}, [("a", "b")], "a"],
    ),
    "a dict of strings": ([{}, {"A": "1"}, {"A": ""}], [{"A": 1}, {"": "x"}, {1: "x"}, "A=1", [("A", "1")]]),
    "a dict with strings for keys": ([{"units": 3, "rates": [0.1]}, {}], [{1: 2}, {"": 1}, [("units", 3)], "units"]),
    "a non-empty dict of class number to weight of at least 0": (
        [{0: 1, 1: 2.5}, {np.int64(1): 0}],
        [{}, {0: -1.0}, {"a": 1}, {0: "1"}, {0.5: 1}, {True: 1.0}, {0: True}, {0: NAN}, [1.0, 2.0]],
    ),
}
STAGES = {stage: declared(stage) for stage in (TFEstimator, KerasEstimator, TFModel)}
DECLARED = {name: param for params in STAGES.values() for name, param in params.items()}
every_stage = pytest.mark.parametrize("stage", STAGES)


def values_of(name):
    """What a Param takes, and what it does not."""
    expected = DECLARED[name].constraint.expected
    if expected.startswith("one of "):
        return ast.literal_eval(expected.removeprefix("one of ")), ["", "other", True, ["x"]]
    return VALUES[expected]


def other_value(stage, name):
    """A good one that is not the default."""
    made = stage()
    param = made.getParam(name)
    default = made.getOrDefault(param) if made.hasDefault(param) else None
    return next(value for value in values_of(name)[0] if value != default)


def suffix(name):
    return name[0].upper() + name[1:]


@every_stage
def test_good_values_are_taken_and_others_refused_in_one_format(stage):
    for name, param in STAGES[stage].items():
        good, bad = values_of(name)
        for value in good:
            made = stage(**{name: value})
            received = getattr(made, f"get{suffix(name)}")()
            assert received == value or (received != received and value != value)
            made._check_params()
        for value in bad:
            with pytest.raises(ParamError) as caught:
                stage(**{name: value})
            shown = Environment(value) if name == "nodeEnv" and isinstance(value, dict) else value
            assert str(caught.value).startswith(f"{name} must be {param.constraint.expected}. Received: {shown!r}")


@pytest.mark.parametrize(("argument", "values"), [("trainFn", [1, "print", {}]), ("tfArgs", ["--a 1", 1, {1, 2}])])
def test_arguments_that_are_no_params_are_checked_alike(argument, values):
    for value in values:
        with pytest.raises(ParamError, match=f"{argument} must be .* Received"):
            TFEstimator(**{argument: value})


@every_stage
class TestHabits:
    """Of Spark ML's own stages."""

    def test_params_are_declared_of_the_class_and_camel_case(self, stage):
        made = stage()
        assert sorted(STAGES[stage]) == sorted(p.name for p in made.params)
        for param in made.params:
            assert type(param) is type(getattr(stage, param.name)) is Param
            assert param.name[0].islower()
            assert "_" not in param.name

    def test_have_setters_getters_and_grids(self, stage):
        for name in STAGES[stage]:
            value = other_value(stage, name)
            by_setter = stage()
            assert getattr(by_setter, f"set{suffix(name)}")(value) is by_setter
            assert getattr(by_setter, f"get{suffix(name)}")() == value
            plain = stage()
            assert getattr(plain.copy({plain.getParam(name): value}), f"get{suffix(name)}")() == value
            assert getattr(stage, f"set{suffix(name)}").__doc__
            assert getattr(stage, f"get{suffix(name)}").__doc__

    def test_values_are_json(self, stage):
        made = stage(**{name: other_value(stage, name) for name in STAGES[stage]})
        values = {param.name: value for param, value in made.extractParamMap().items()}
        again = stage(**json.loads(json.dumps(values)))
        assert {param.name: value for param, value in again.extractParamMap().items()} == values

    def test_are_explained_a_line_each(self, stage):
        lines = stage().explainParams().splitlines()
        assert [line.split(":")[0] for line in lines] == sorted(STAGES[stage])
        assert all(" (default: " in line or " (undefined)" in line for line in lines)
        assert max(map(len, lines)) < 250  # the longest is one of pyspark's own

    def test_of_another_name_bring_up_the_nearest(self, stage):
        with pytest.raises(errors.ParamError, match=r"'predictbatchsize' \(did you mean predictBatchSize"):
            stage(predictbatchsize=3)
        with pytest.raises(errors.ParamError, match=r"Unknown parameters: 'zzz'\. Known: "):
            stage().setParams(zzz=3)

    def test_copies_are_independent(self, stage):
        made = stage(predictBatchSize=3)
        copied = made.copy({made.predictBatchSize: 4})
        copied.setPredictionCol("other")
        assert (made.getPredictBatchSize(), made.getPredictionCol()) == (3, "prediction")
        assert (copied.getPredictBatchSize(), copied.uid) == (4, made.uid)
