"""Common mistakes, made in a process of their own as users make them, and what its console then shows.

``docs/mistakes.py`` makes them all, for the page; here are those that need no Spark job, and some whose nodes fail.
"""

from __future__ import annotations

import re
import sys
from pathlib import Path

import pytest

sys.path.insert(0, str(Path(__file__).parents[2] / "docs"))

import mistakes

BEFORE_ANY_JOB = [one.make.__name__ for one in mistakes.MISTAKES if one.is_known_before]
ON_NODES = ["train_function_raises", "train_function_exits"]
PAGE = Path(mistakes.__file__).parent / "reference" / "mistakes.rst"
OFTEN = {"train_function_raises", "misspelled_param"}  # which need no Keras in the program


class Outcomes:
    """Outcomes of the mistakes, by name; all of a group are made when one is wanted."""

    def __init__(self):
        self._known = {}

    def __getitem__(self, name):
        if name not in self._known:
            group = OFTEN if name in OFTEN else {*BEFORE_ANY_JOB, *ON_NODES}.difference(OFTEN)
            made = mistakes.outcomes_of(f"^({'|'.join(group)})$")
            self._known.update({outcome.name: outcome for outcome in made})
        return self._known[name]


@pytest.fixture(scope="module")
def outcomes():
    with pytest.MonkeyPatch.context() as patched:
        patched.setenv("TFOS_ML_PRELOAD", "0")  # nodes of these need no TensorFlow
        yield Outcomes()


def named(name):
    """The errors themselves have their tests elsewhere; a few show that the console has no more than they say."""
    return pytest.param(name, marks=() if name in OFTEN else pytest.mark.chaos)


@pytest.mark.parametrize("name", map(named, [*BEFORE_ANY_JOB, *ON_NODES]))
def test_a_mistake_is_a_typed_error_of_few_lines_and_soon(outcomes, name):
    outcome = outcomes[name]
    print(outcome.console)
    assert outcome.console
    assert mistakes.problems(outcome) == []


@pytest.mark.parametrize("name", map(named, [*BEFORE_ANY_JOB, *ON_NODES]))
def test_the_page_shows_the_message_of_today(outcomes, name):
    message = mistakes.message(outcomes[name])

    assert without_numbers(message) in without_numbers(PAGE.read_text()), "run: python docs/mistakes.py"


def without_numbers(text):
    """The words of a text: lines break elsewhere, and numbers differ, if other mistakes are made before."""
    return " ".join(re.sub(r"\d+", "#", text).split())


def test_the_message_of_a_node_has_what_helps(outcomes):
    for line in ("KeyError: 'slow'", 'print("learning rate", rates["slow"])'):
        assert line in outcomes["train_function_raises"].console
