"""Generates text from the Params. Run ``python tools/generate_keywords.py`` after you change one.

It writes ``tfos_ml/stages/keywords.py``, for type checkers and editors, and ``docs/reference/params.rst``.
"""

from __future__ import annotations

import inspect
import re
from collections.abc import Iterator
from pathlib import Path

import tfos_ml
from tfos_ml.stages import params
from tfos_ml.stages.params_base import Param
from tfos_ml.tuning import OptunaSearch

ROOT = Path(__file__).parents[1]
KEYWORDS, REFERENCE = ROOT / "tfos_ml" / "stages" / "keywords.py", ROOT / "docs" / "reference" / "params.rst"
GROUPS = {
    "Scoring": (params.ScoringParams, "All stages"),
    "Classifier": (params.ClassifierParams, "All stages, for classifiers"),
    "Training": (params.TrainingParams, "TFEstimator and KerasEstimator"),
    "TrainFn": (params.TrainFnParams, "TFEstimator"),
    "Keras": (params.KerasParams, "KerasEstimator"),
    "Search": (params.SearchParams, "OptunaSearch"),
}
ARGUMENTS = {  # of constructors, but no Params
    "TFModel": {},
    "TFEstimator": {
        "trainFn": "Callable[[Any, Any], Any] | None",
        "tfArgs": "Mapping[str, Any] | argparse.Namespace | Sequence[str] | None",
    },
    "KerasEstimator": {
        "model": "Any",
        "callbacks": "Sequence[Any] | None",
        "customObjects": "Mapping[str, Any] | None",
    },
    "OptunaSearch": {
        "estimator": "Any",
        "space": "Callable[[Any], Mapping[Any, Any]] | Mapping[Any, Any] | None",
        "evaluator": "Any",
        "sampler": "Any",
        "pruner": "Any",
    },
}
STAGES = {
    "TFModel": ("Scoring", "Classifier"),
    "TFEstimator": ("Scoring", "Training", "Classifier", "TrainFn"),
    "KerasEstimator": ("Scoring", "Training", "Classifier", "Keras"),
    "OptunaSearch": ("Search",),
}
HEADER = '''"""Keywords, setters and getters of the stages, written out for type checkers and editors.

Generated from ``tfos_ml/stages/params.py`` by ``python tools/generate_keywords.py``; not to be edited.
"""

# ruff: noqa: D101, E501, E702, E704
# fmt: off

from __future__ import annotations

import argparse
from collections.abc import Callable, Mapping, Sequence
from typing import TYPE_CHECKING, Any, TypedDict

from tfos_ml.stages.params_base import ParamsBase

if TYPE_CHECKING:
    from typing_extensions import Self, Unpack
'''
TITLE = """Params
======

Every Param is a keyword of the constructor and of ``setParams``, and has a setter and a getter (``setEpochs``,
``getEpochs``). A value that a Param does not accept raises ``ParamError``. Arguments, such as ``model``, are keywords
with a setter and a getter, too, but no Params of Spark ML: a ``ParamGridBuilder`` cannot vary them.

.. Generated from tfos_ml/stages/params.py by tools/generate_keywords.py; do not edit.
.. currentmodule:: tfos_ml
"""
ELSEWHERE = {  # what people search for, who know another library
    "featuresCol": "``X`` of scikit-learn, ``features_col`` of xgboost.spark, ``feature_cols`` of Horovod",
    "labelCol": "``y`` of scikit-learn, ``label_col`` of xgboost.spark, ``label_cols`` of Horovod",
    "predictionCol": "``prediction_col`` of xgboost.spark",
    "probabilityCol": "``predict_proba`` of scikit-learn, ``probability_col`` of xgboost.spark",
    "rawPredictionCol": "``decision_function`` of scikit-learn, ``raw_prediction_col`` of xgboost.spark",
    "weightCol": "``sample_weight`` of Keras and scikit-learn, ``weight_col`` of xgboost.spark, "
    "``sample_weight_col`` of Horovod",
    "classWeight": "``class_weight`` of Keras and scikit-learn",
    "validationIndicatorCol": "``validation_data`` of Keras, ``eval_set`` of XGBoost, "
    "``validation_indicator_col`` of xgboost.spark",
    "validationSplit": "``validation_split`` of Keras, ``validation`` of Horovod",
    "batchSize": "``batch_size`` of Keras; in Horovod it is the rows of one worker",
    "clusterSize": "``num_workers`` of xgboost.spark, ``num_proc`` of Horovod, ``cluster_size`` of TensorFlowOnSpark",
    "seed": "``random_state`` of scikit-learn and XGBoost",
    "modelDir": "``BackupAndRestore`` and ``ModelCheckpoint`` of Keras, ``store`` of Horovod, "
    "``model_dir`` of TensorFlowOnSpark",
    "initialWeights": "``load_weights`` of Keras, ``warm_start`` of scikit-learn, ``xgb_model`` of XGBoost",
    "exportDir": "``model.export`` of Keras, ``export_dir`` of TensorFlowOnSpark",
    "customObjects": "``custom_objects`` of Keras and Horovod",
    "callbacks": "``callbacks`` of Keras and Horovod, ``early_stopping_rounds`` of XGBoost",
    "nodeGpus": "``device`` and ``use_gpu`` of xgboost.spark",
    "adaptLayers": "``adapt`` of Keras's preprocessing layers",
    "trainFn": "``main_fun`` and ``map_fun`` of TensorFlowOnSpark",
    "tfArgs": "``tf_args`` of TensorFlowOnSpark",
    "inputMapping": "``input_mapping`` of TensorFlowOnSpark",
    "outputMapping": "``output_mapping`` of TensorFlowOnSpark",
    "numTrials": "``n_trials`` of Optuna, ``n_iter`` of scikit-learn's RandomizedSearchCV",
    "parallelism": "``n_jobs`` of Optuna and scikit-learn",
    "space": "``param_distributions`` of scikit-learn, ``estimatorParamMaps`` of Spark ML",
}
WORDS = {  # other words that lead to a Param in the search
    "weightCol": "sample weight, sample weights",
    "classWeight": "class weight, class weights, imbalanced classes",
    "probabilityCol": "probabilities, predicted probabilities",
    "callbacks": "callback",
    "modelDir": "checkpoint, checkpoints, checkpointing, resume",
    "checkpointSteps": "checkpoint frequency, save_freq",
    "clusterSize": "number of workers, distributed training",
    "batchSize": "batch size, global batch size, minibatch",
    "epochs": "number of epochs, iterations",
    "validationSplit": "validation split",
    "validationIndicatorCol": "validation data, validation set",
    "initialWeights": "warm start, transfer learning, fine-tuning, pretrained weights",
    "customObjects": "custom layer, custom loss, custom metric",
    "tensorboard": "TensorBoard",
    "verbose": "progress bar",
    "handleInvalid": "missing values, nulls, NaN",
    "seed": "random seed, reproducibility",
    "maxRestarts": "fault tolerance, retries",
    "minClusterSize": "elastic training",
    "featuresCol": "features column, input columns",
    "labelCol": "label column, target",
    "padValue": "padding, ragged arrays",
    "batchStatistics": "BatchNormalization, SyncBatchNormalization, synchronized batch normalization",
    "cacheDir": "cache, Petastorm",
    "nodeEnv": "environment variables",
    "exportDir": "SavedModel, export",
}


def own_params(group: str) -> dict[str, Param]:
    """The Params of a group by name."""
    return {name: param for name, param in vars(GROUPS[group][0]).items() if isinstance(param, Param)}


def source() -> str:
    """The module of keywords."""
    return "\n".join([HEADER, *(line for part in (*map(group, GROUPS), *map(stage, STAGES)) for line in part)])


def group(name: str) -> Iterator[str]:
    """Keywords and accessors of a group."""
    own = own_params(name)
    yield f"\nclass {name}Keywords(TypedDict, total=False):"
    for param in own.values():
        yield f"    {param.name}: {param.constraint.annotation}{'' if param.default is not None else ' | None'}"
    yield f"\n\nclass {name}Accessors(ParamsBase):"
    for param in own.values():
        kind, suffix = param.constraint.annotation, param.name[0].upper() + param.name[1:]
        call = f"return self._set_checked({param.name}=value)"
        yield f'    def set{suffix}(self, value: {kind}) -> Self: """Set ``{param.name}``: {param.doc}."""; {call}'
        call = f'return self.getOrDefault("{param.name}")'
        yield f'    def get{suffix}(self) -> {kind}: """Value of ``{param.name}``."""; {call}'
    yield ""


def stage(name: str) -> Iterator[str]:
    """Constructor and ``setParams`` of a stage."""
    yield f"\nclass {name}Keywords({', '.join(f'{part}Keywords' for part in STAGES[name])}, total=False):"
    yield from [f"    {argument}: {kind}" for argument, kind in ARGUMENTS[name].items()] or ["    pass"]
    yield f"\n\nclass {name}Constructor(ParamsBase):"
    yield f"    _keywords = {name}Keywords\n"
    yield f"    def __init__(self, **params: Unpack[{name}Keywords]) -> None:"
    yield "        super().__init__()"
    yield "        self._construct({**params})\n"
    yield f"    def setParams(self, **params: Unpack[{name}Keywords]) -> Self:"
    yield '        """Set any of them by keyword."""'
    yield "        return self._set_given({**params})\n"
    yield from accessors(name)


def accessors(name: str) -> Iterator[str]:
    """Setters and getters of a stage's arguments, except a model, for which the stage has its own."""
    for argument, kind in ARGUMENTS[name].items():
        if argument == "model":
            continue
        suffix = argument[0].upper() + argument[1:]
        call = f'return self._set_given({{"{argument}": value}})'
        yield f'    def set{suffix}(self, value: {kind}) -> Self: """Set ``{argument}``."""; {call}'
        yield f'    def get{suffix}(self) -> Any: """Value of ``{argument}``."""; return self._arguments["{argument}"]'
    yield ""


def reference() -> str:
    """The page of all Params, and of the arguments that are none."""
    lines = [TITLE]
    for name, (_, stages) in GROUPS.items():
        lines += [stages, "-" * len(stages), ""]
        for argument, kind, doc in arguments(stages):
            lines += entry(argument, argument, f"``{kind}``", doc, "")
        for param in own_params(name).values():
            default = "" if param.default is None else f", default ``{param.default!r}``"
            kind = f"``{param.constraint.annotation}``{default}"
            label = f"search-{param.name}" if (name, param.name) == ("Search", "seed") else param.name
            doc = f"{param.doc[0].upper()}{param.doc[1:]}."
            lines += entry(param.name, label, kind, doc, f"Accepts {param.constraint.expected}.")
    return "\n".join(lines)


def entry(name: str, label: str, kind: str, doc: str, accepted: str) -> list[str]:
    """The section of a Param or an argument: its name is a heading, so that there is a link to it.

    The search shows the paragraph after the index, so that has name, type and meaning.
    """
    words = [f"! {word}" for word in WORDS.get(name, "").split(", ") if word]
    words += [f"! {word}" for word in re.findall(r"``(\w+_\w+)``", ELSEWHERE.get(name, ""))]
    lines = [f".. _param-{label}:", "", name, "~" * len(name), "", f".. index:: ! {', '.join([name, *words])}", ""]
    lines += [f"``{name}`` : {kind}. {doc}", ""]
    rest = [accepted, f"Elsewhere: {ELSEWHERE[name]}." if name in ELSEWHERE else ""]
    return [*lines, " ".join(filter(None, rest)), ""] if any(rest) else lines


def arguments(stage: str) -> Iterator[tuple[str, str, str]]:
    """Name, type and description of the arguments of a stage, from its docstring."""
    if stage not in ARGUMENTS:
        return
    doc = inspect.getdoc({"OptunaSearch": OptunaSearch}.get(stage) or getattr(tfos_ml, stage)) or ""
    section = re.split(r"\n(?=\S.*\n-{3,}\n)", doc)[1]
    for name, kind, text in re.findall(r"^(\w+) : (.*)\n((?: {4}.*\n?)+)", section, re.MULTILINE):
        yield name, kind, inspect.cleandoc(text)


if __name__ == "__main__":
    KEYWORDS.write_text(source())
    REFERENCE.write_text(reference())
