"""Typical mistakes, made in a process of their own as users make them, and all that its console then shows.

``docs/mistakes.py`` makes them all, for the page; here are those that need no Spark job, and some whose nodes fail.
"""

from __future__ import annotations

import sys
from pathlib import Path

import pytest

sys.path.insert(0, str(Path(__file__).parents[2] / "docs"))

import mistakes

pytestmark = pytest.mark.timeout(900)  # the first test waits for all of them
BEFORE_ANY_JOB = [one.make.__name__ for one in mistakes.MISTAKES if one.is_known_before]
ON_NODES = ["train_function_raises", "train_function_exits", "instance_fails"]


@pytest.fixture(scope="module")
def outcomes():
    names = "|".join([*BEFORE_ANY_JOB, *ON_NODES])
    return {outcome.name: outcome for outcome in mistakes.outcomes_of(f"^({names})$")}


@pytest.mark.parametrize("name", [*BEFORE_ANY_JOB, *ON_NODES])
def test_a_mistake_is_a_typed_error_of_few_lines_and_soon(outcomes, name):
    outcome = outcomes[name]
    print(outcome.console)
    assert outcome.console
    assert mistakes.problems(outcome) == []


@pytest.mark.parametrize(
    ("name", "lines"),
    [
        ("train_function_raises", ["KeyError: 'slow'", 'print("learning rate", rates["slow"])']),
        ("train_function_exits", ["called sys.exit(1)", "sys.exit(1)"]),
        ("several_inputs", ["left: float32", "right: float32", "inputMapping"]),
        ("custom_layer", ["Could not locate class 'Double'", "customObjects"]),
        ("lock_in_model_function", ["the captured variable 'lock'"]),
    ],
)
def test_its_message_has_what_helps(outcomes, name, lines):
    for line in lines:
        assert line in outcomes[name].console
