"""The public API: names and arguments, as they were when they were last agreed on (public_api.json).

After a change on purpose: ``python tests/unit/test_public_api.py`` writes the file anew; the change log says so.
"""

from __future__ import annotations

import importlib
import inspect
import json
from pathlib import Path
from typing import Any

RECORDED = Path(__file__).with_name("public_api.json")
MADE_BY_US = {"DataFeed", "NodeContext", "SparkClusterResolver", "TFCluster"}  # users do not call their constructors
MODULES = ("tfos_ml", "tfos_ml.mlflow", "tfos_ml.tuning", "tfos_ml.tfrecord", "tfos_ml.errors")


def public_api() -> dict[str, Any]:
    """Arguments of functions and methods by name, of all that the public modules offer."""
    found: dict[str, Any] = {}
    for module in map(importlib.import_module, MODULES):
        own = [n for n, value in vars(module).items() if getattr(value, "__module__", "") == module.__name__]
        for name in sorted(getattr(module, "__all__", own)):
            value = getattr(module, name)
            if inspect.isclass(value):
                found[f"{module.__name__}.{name}"] = _members(value)
            elif callable(value) and not name.startswith("_"):
                found[f"{module.__name__}.{name}"] = _arguments(value)
    return found


def _members(cls: type) -> dict[str, str]:
    """What a class offers, but for what is Spark's or Python's own."""
    members = {"base": ", ".join(c.__name__ for c in cls.__mro__ if c.__module__.startswith(("builtins", "pyspark")))}
    for name in dir(cls):
        value = inspect.getattr_static(cls, name)
        owner = next(c for c in cls.__mro__ if name in vars(c))
        if name.startswith("_") and (name != "__init__" or cls.__name__ in MADE_BY_US):
            continue
        if owner.__module__.startswith(("builtins", "pyspark", "tensorflow", "typing", "enum")):
            continue
        function = value.__func__ if isinstance(value, (classmethod, staticmethod)) else value
        members[name] = _arguments(function) if callable(function) else type(value).__name__
    return members


def _arguments(function: Any) -> str:
    signature = inspect.signature(function)
    plain = [p.replace(annotation=inspect.Parameter.empty) for p in signature.parameters.values()]
    return str(signature.replace(parameters=plain, return_annotation=inspect.Signature.empty))


def test_names_and_arguments_are_those_agreed_on():
    recorded, found = json.loads(RECORDED.read_text()), json.loads(json.dumps(public_api()))
    assert found.keys() == recorded.keys()
    for name, members in recorded.items():
        assert found[name] == members, name


if __name__ == "__main__":
    RECORDED.write_text(json.dumps(public_api(), indent=1, sort_keys=True) + "\n")
