"""All numbers of seconds, and what each has to be longer or shorter than."""

import ast
from pathlib import Path

import pytest

from tfos_ml.common import timeouts

PACKAGE = Path(timeouts.__file__).parents[1]


@pytest.mark.parametrize("relation", timeouts.SHORTER)
def test_what_must_be_shorter_is(relation):
    shorter, longer = timeouts.SHORTER[relation]
    assert shorter < longer


def test_seconds_are_in_one_place():
    elsewhere = [
        f"{path}: {target.id}"
        for path in PACKAGE.rglob("*.py")
        if path.name != "timeouts.py"
        for node in ast.parse(path.read_text()).body
        if isinstance(node, ast.Assign) and isinstance(node.value, ast.Constant)
        for target in node.targets
        if isinstance(target, ast.Name) and target.id.endswith(("SECONDS", "TIMEOUT", "DEADLINE"))
    ]
    assert not elsewhere
