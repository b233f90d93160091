"""The page of answers: each of its programs runs after the first one, in one session; in make test after README's."""

from __future__ import annotations

import re

import pytest
from test_readme import FIRST, ROOT, blocks, programs, run_as_one

PAGE = (ROOT / "docs" / "howto" / "answers.rst").read_text()
OPENING, *SECTIONS = re.split(r"^(.+)\n~+\n", PAGE, flags=re.MULTILINE)
BEGIN, *ANSWERS = [blocks(text, r"\.\. code-block:: python") for text in (OPENING, *SECTIONS[1::2])]
PROGRAMS = dict(zip(SECTIONS[::2], ("".join(answer) for answer in ANSWERS), strict=True))
SOON = ["How do I score with a model that was trained elsewhere?"]  # what Keras's own export makes of it


def answers(questions):
    """A program of some answers; each has the names of the first program only. Prints the seconds of each."""
    lines = ["import time", *BEGIN]
    for question in questions:
        lines.append("began = time.monotonic()")
        lines.append(f"exec(compile({PROGRAMS[question]!r}, {question!r}, 'exec'), dict(globals()))")
        lines.append(f"print(f'{{time.monotonic() - began:5.1f}} s', {question!r}, flush=True)")
    return lines


def test_programs_of_the_first_pages_and_some_answers_run_as_printed(tmp_path):
    """Nothing faster proves that what a user copies first runs, in a program and with a Spark of its own."""
    shown = run_as_one([*programs(FIRST), "print('answers')", *answers(SOON)], tmp_path)
    first, _, others = shown.partition("answers\n")
    assert re.search(r"^\|label\|\s*prediction\|\s*probability\|$", first, re.MULTILINE), shown
    assert float(re.search(r"^accuracy ([\d.]+)$", first, re.MULTILINE)[1]) > 0.5
    assert first.splitlines()[-1] == "333283335000", shown
    assert [line.partition(" s ")[2] for line in others.splitlines()] == SOON


@pytest.mark.chaos
def test_all_answers(tmp_path):
    print(run_as_one(answers(PROGRAMS), tmp_path))
