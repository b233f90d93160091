"""Common mistakes, which ``docs/mistakes.py`` makes for their page: those that need no Spark job, and some on nodes."""

from __future__ import annotations

import re
import shutil
import sys
from pathlib import Path

import pytest
from conftest import jobs_of

from tfos_ml import errors

sys.path.insert(0, str(Path(__file__).parents[2] / "docs"))

import mistakes

NAMES = [one.make.__name__ for one in mistakes.MISTAKES if one.is_known_before]
NAMES += ["train_function_raises", "train_function_exits"]
PAGE = Path(mistakes.__file__).parent / "reference" / "mistakes.rst"


pytestmark = pytest.mark.usefixtures("keras")


@pytest.mark.parametrize("name", NAMES)
def test_a_mistake_is_a_typed_error_as_the_page_shows_it(spark, name):
    (one,) = [one for one in mistakes.MISTAKES if one.make.__name__ == name]
    table, before = mistakes.Table(), jobs_of(spark)
    with pytest.raises(errors.TfosMlError) as caught:
        one.make(table)
    shutil.rmtree(table.directory)
    message = mistakes.as_seen(f"{type(caught.value).__name__}: {caught.value}")
    assert without_numbers(message) in without_numbers(PAGE.read_text()), "run: python docs/mistakes.py"
    assert not one.is_known_before or jobs_of(spark) == before
    if name == "train_function_raises":
        assert 'print("learning rate", rates["slow"])' in message


def without_numbers(text):
    """The words of a text: lines break elsewhere, and numbers differ, if other mistakes are made before."""
    return " ".join(re.sub(r"\d+", "#", text).split())


@pytest.mark.chaos
def test_the_console_shows_a_few_lines():
    outcomes = mistakes.outcomes_of(f"^({'|'.join(NAMES)})$")
    assert len(outcomes) == len(NAMES)
    assert [problem for outcome in outcomes for problem in mistakes.problems(outcome)] == []
