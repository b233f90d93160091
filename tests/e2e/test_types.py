"""Every column type through a SavedModel that returns what it got, byte for byte."""

from __future__ import annotations

import itertools
import json
from decimal import Decimal

import numpy as np
import pytest
from elsewhere import run_elsewhere
from pyspark.sql import functions as F
from pyspark.sql.types import Row

from tfos_ml import TFModel, errors

MAKE_MODELS = """
import json, sys
import tensorflow as tf

for model, inputs in json.load(open(f"{sys.argv[1]}/models.json")).items():
    specs = {name: tf.TensorSpec(shape, dtype, name) for name, (dtype, shape) in inputs.items()}
    module = tf.Module()
    module.same = tf.function(lambda **tensors: {f"{name}_out": tf.identity(t) for name, t in tensors.items()})
    signature = module.same.get_concrete_function(**specs)
    tf.saved_model.save(module, f"{sys.argv[1]}/{model}", signatures=signature)
"""

EXTREMES = {  # values that only a tensor of the same type can hold
    "tinyint": ("int8", [-(2**7), 2**7 - 1]),
    "smallint": ("int16", [-(2**15), 2**15 - 1]),
    "int": ("int32", [-(2**31), 2**31 - 1]),
    "bigint": ("int64", [-(2**63), 2**63 - 1]),
    "float": ("float32", [float("-inf"), float("nan"), -0.0, float(np.float32(1e-45))]),
    "double": ("float64", [float("inf"), float("nan"), -0.0, 5e-324, 0.1]),
    "boolean": ("bool", [True, False]),
    "string": ("string", ["", "naïve ☃", "a\0b"]),
    "binary": ("string", [b"", b"\xff\x00\xfe", b"abc"]),
}
NUMBERS = ["tinyint", "smallint", "int", "bigint", "float", "double", "decimal(9,2)"]
NUMBER_TENSORS = {
    "int8": "tinyint",
    "uint8": "smallint",
    "int16": "smallint",
    "uint16": "int",
    "int32": "int",
    "uint32": "bigint",
    "int64": "bigint",
    "float16": "float",
    "bfloat16": "float",
    "float32": "float",
    "float64": "double",
}
SHAPES = {
    "scalar": [None],
    "fixed": [None, 2],
    "ragged": [None, None],
    "matrix": [None, 2, 1],
    "ragged2": [None, None, None],
}


def shaped(shape, a, b):
    """A value of a shape, made of two values."""
    return {"scalar": a, "fixed": [a, b], "ragged": [b], "matrix": [[b], [a]], "ragged2": [[a, b], [b, a]]}[shape]


def column_type(element, shape):
    depth = len(SHAPES[shape]) - 1
    return "array<" * depth + element + ">" * depth


class Case:
    """One column, the tensor it goes through, and what must come back."""

    def __init__(self, kind, tensor, shape, values, out_type):
        self.name = f"{kind.split('(')[0]}_{tensor}_{shape}"
        self.tensor, self.shape = tensor, shape
        self.type, self.out_type = column_type(kind, shape), column_type(out_type, shape)
        self.values = values

    def value(self, row):
        return self.values[row % len(self.values)]

    def expected(self, row):
        if self.type == self.out_type:
            return self.value(row)
        is_float = "float" in self.out_type or "double" in self.out_type
        return convert(self.value(row), float if is_float else int)

    @property
    def is_binary(self):
        return "binary" in self.out_type


def cases():
    found = []
    for shape in SHAPES:
        for kind, (tensor, values) in EXTREMES.items():
            rows = [shaped(shape, a, b) for a, b in zip(values, reversed(values), strict=True)]
            found.append(Case(kind, tensor, shape, rows, kind))
        for kind, (tensor, out_type) in itertools.product(NUMBERS, NUMBER_TENSORS.items()):
            if EXTREMES.get(kind, [""])[0] == tensor:
                continue
            make = Decimal if kind.startswith("decimal") else float if kind in ("float", "double") else int
            found.append(Case(kind, tensor, shape, [shaped(shape, make(1), make(100))], out_type))
    return found


CASES = cases()


@pytest.fixture(scope="module")
def identity(tmp_path_factory):
    """SavedModels that return their inputs: "all" has one for each case, "one" a bigint."""
    directory = tmp_path_factory.mktemp("identity")
    specs = {case.name: (case.tensor, SHAPES[case.shape]) for case in CASES}
    specs["image"] = ("uint8", [None, None, None, 3])
    specs["day"], specs["moment"], specs["local"] = ("int32", [None]), ("int64", [None]), ("int64", [None, None])
    models = {"all": specs, "one": {"x": ("int64", [None])}}
    (directory / "models.json").write_text(json.dumps(models))
    run_elsewhere(MAKE_MODELS, str(directory))
    return {name: str(directory / name) for name in models}


def image(height, width):
    pixels = np.arange(height * width * 3, dtype=np.uint8)
    return Row(origin="", height=height, width=width, nChannels=3, mode=16, data=bytearray(pixels.tobytes()))


def convert(value, kind):
    return [convert(v, kind) for v in value] if isinstance(value, list) else kind(value)


def test_fields_of_structs_by_dotted_name(spark, identity):
    df = spark.sql("SELECT named_struct('b', named_struct('c', id, 'd', 'text')) AS a FROM range(3)")
    model = TFModel(exportDir=identity["one"], featuresCol="a.b.c")
    assert [row.prediction for row in model.transform(df).collect()] == [0, 1, 2]
    own = df.withColumn("a.b.c", F.lit(7).cast("bigint"))  # a column of that very name goes first
    assert {row.prediction for row in model.transform(own).collect()} == {7}
    with pytest.raises(errors.ColumnNotFoundError, match="'x' does not exist"):
        model.setFeaturesCol("a.b.x").transform(df)
