"""Generates text from the Params. Run ``python tools/generate_keywords.py`` after you change one.

It writes ``tfos_ml/stages/keywords.py``, for type checkers and editors, and ``docs/reference/params.rst``.
"""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path

from tfos_ml.stages import params
from tfos_ml.stages.declared import Param

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

from pyspark import keyword_only

from tfos_ml.stages.declared import ParamsBase

if TYPE_CHECKING:
    from typing_extensions import Self, Unpack
'''
TITLE = """Params
======

Every Param is a keyword of the constructor and of ``setParams``, and has a setter and a getter (``setEpochs``,
``getEpochs``). A value that a Param does not accept raises ``ParamError``.

.. Generated from tfos_ml/stages/params.py by tools/generate_keywords.py; do not edit.
"""


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
    yield "    @keyword_only"
    yield f"    def __init__(self, **params: Unpack[{name}Keywords]) -> None:"
    yield "        super().__init__()"
    yield "        self._construct(self._take_keywords())\n"
    yield "    @keyword_only"
    yield f"    def setParams(self, **params: Unpack[{name}Keywords]) -> Self:"
    yield '        """Set any of them by keyword."""'
    yield "        return self._set_given(self._take_keywords())\n"


def reference() -> str:
    """The page of all Params."""
    lines = [TITLE]
    for name, (_, stages) in GROUPS.items():
        lines += [stages, "-" * len(stages), ""]
        for param in own_params(name).values():
            default = "" if param.default is None else f", default ``{param.default!r}``"
            doc = param.doc[0].upper() + param.doc[1:]
            lines += [
                f"``{param.name}`` : ``{param.constraint.annotation}``{default}",
                f"    {doc}.",
                "",
                f"    *Accepts {param.constraint.expected}.*",
                "",
            ]
    return "\n".join(lines)


if __name__ == "__main__":
    KEYWORDS.write_text(source())
    REFERENCE.write_text(reference())
