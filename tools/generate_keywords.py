"""Writes ``tfos_ml/stages/keywords.py``: ``python tools/generate_keywords.py``, after a Param was added or changed."""

from __future__ import annotations

import subprocess
import sys
from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import Any

from pyspark.ml.param import Param, TypeConverters

from tfos_ml.stages import params
from tfos_ml.stages.constraints import Environment

TARGET = Path(__file__).parents[1] / "tfos_ml" / "stages" / "keywords.py"
TYPES = {
    int: "int",
    float: "float",
    str: "str",
    bool: "bool",
    dict: "Mapping[str, Any]",
    list: "Sequence[str]",
    Environment: "Mapping[str, str]",
    params._class_weight: "Mapping[int, float]",
    TypeConverters.toInt: "int",
    TypeConverters.toFloat: "float",
    TypeConverters.toString: "str",
}
TF_ARGUMENTS = {
    "trainFn": "Callable[[Any, Any], Any] | None",
    "tfArgs": "Mapping[str, Any] | argparse.Namespace | Sequence[str] | None",
}
KERAS_ARGUMENTS = {
    "model": "Any",
    "callbacks": "Sequence[Any] | None",
    "customObjects": "Mapping[str, Any] | None",
}
HEADER = '''"""Constructors and accessors of the public stages, written out for editors, type checkers and ``help``.

Generated from ``tfos_ml/stages/params.py`` by ``python tools/generate_keywords.py``; not to be edited.
"""

# ruff: noqa: D102

from __future__ import annotations

import argparse
from collections.abc import Callable, Mapping, Sequence
from typing import TYPE_CHECKING, Any

from pyspark import keyword_only

if TYPE_CHECKING:
    from typing_extensions import Self


class Keywords:
    """What the constructors of all stages do with their keywords."""

    def _take_keywords(self) -> dict[str, Any]:
        given: dict[str, Any] = self.__dict__.pop("_input_kwargs")  # or each copy would keep functions and models
        return given

    def _construct(self, given: dict[str, Any]) -> None:
        raise NotImplementedError

    def _set_given(self, given: dict[str, Any]) -> Self:
        raise NotImplementedError
'''


class _Scoring(params.ScoringParams, params.ClassifierParams):
    def __init__(self) -> None:
        super().__init__()
        self._set_scoring_defaults()
        self._set_classifier_defaults()


class _Training(params.TrainFnParams):
    def __init__(self) -> None:
        super().__init__()
        self._set_train_fn_defaults()


class _Keras(params.KerasParams):
    def __init__(self) -> None:
        super().__init__()
        self._set_keras_defaults()


def source() -> str:
    """The module."""
    scoring = (*params.SCORING_PARAMS, *params.CLASSIFIER_PARAMS)
    text = "\n".join(
        [
            HEADER,
            *stage("TFModelKeywords", _Scoring(), scoring, {}),
            *stage("TFEstimatorKeywords", _Training(), params.TRAINING_PARAMS, TF_ARGUMENTS),
            *stage("KerasEstimatorKeywords", _Keras(), params.KERAS_PARAMS, KERAS_ARGUMENTS),
        ]
    )
    command = [sys.executable, "-m", "ruff", "format", "--stdin-filename", str(TARGET), "-"]
    return subprocess.run(command, input=text, capture_output=True, text=True, check=True).stdout


def stage(name: str, holder: Any, names: Sequence[str], arguments: dict[str, str]) -> Iterator[str]:
    """The class of one stage."""
    keywords = [f"{argument}: {kind} = None," for argument, kind in arguments.items()]
    keywords += [keyword(holder, holder.getParam(param)) for param in names]
    yield f"\n\nclass {name}(Keywords):"
    yield f'    """Keywords and accessors of ``{name.removesuffix("Keywords")}``."""\n'
    yield from method("__init__", "None", keywords, ["super().__init__()", "self._construct(self._take_keywords())"])
    yield from method(
        "setParams",
        "Self",
        keywords,
        ['"""Set any of them by keyword."""', "return self._set_given(self._take_keywords())"],
    )
    yield "    if TYPE_CHECKING:  # made by the decorator accessors"
    yield "        # fmt: off"
    for param in names:
        kind = type_of(holder.getParam(param))
        suffix = param[0].upper() + param[1:]
        yield f"        def set{suffix}(self, value: {kind}) -> Self: ..."
        yield f"        def get{suffix}(self) -> {kind}: ..."
    yield "        # fmt: on"


def method(name: str, result: str, keywords: Sequence[str], body: Sequence[str]) -> Iterator[str]:
    """One that takes the keywords; a name that is none of them reaches our own check, which has better advice."""
    yield "    @keyword_only"
    yield f"    def {name}(self, *, {' '.join(keywords)} **unknown: Any) -> {result}:"
    yield from (f"        {line}" for line in body)
    yield ""


def keyword(holder: Any, param: Param[Any]) -> str:
    """A Param in a signature, with its default if it has one that does not differ from process to process."""
    if param.name == "seed" or not holder.hasDefault(param):
        return f"{param.name}: {type_of(param)} | None = None,"
    default = holder.getOrDefault(param)
    return f"{param.name}: {type_of(param)} = {dict(default) if isinstance(default, dict) else default!r},"


def type_of(param: Param[Any]) -> str:
    """How the values of a Param are annotated."""
    converter = getattr(param.typeConverter, "converter", param.typeConverter)
    return TYPES[converter]


if __name__ == "__main__":
    TARGET.write_text(source())
