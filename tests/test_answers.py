"""The page of answers: each of its programs runs after the first one, in one session."""

from __future__ import annotations

import re
import subprocess
import sys

import pytest
from test_readme import ROOT, blocks

PAGE = (ROOT / "docs" / "howto" / "answers.rst").read_text()
OPENING, *SECTIONS = re.split(r"^(.+)\n~+\n", PAGE, flags=re.MULTILINE)
FIRST, *ANSWERS = [blocks(text, r"\.\. code-block:: python") for text in (OPENING, *SECTIONS[1::2])]
PROGRAMS = dict(zip(SECTIONS[::2], ("".join(answer) for answer in ANSWERS), strict=True))
SOON = [  # each has what no other test of make test has
    "How do I train a model with several outputs?",
    "How many steps does a learning rate schedule need?",
    "How do I score with a model that was trained elsewhere?",
]


def run(questions, directory):
    """Run answers as one program; each has the names of the first program only. Prints the seconds of each."""
    lines = ["import time", *FIRST]
    for question in questions:
        lines.append("began = time.monotonic()")
        lines.append(f"exec(compile({PROGRAMS[question]!r}, {question!r}, 'exec'), dict(globals()))")
        lines.append(f"print(f'{{time.monotonic() - began:5.1f}} s', {question!r}, flush=True)")
    (directory / "answers.py").write_text("\n".join(lines))

    done = subprocess.run(
        [sys.executable, "answers.py"], cwd=directory, capture_output=True, text=True, timeout=880, check=False
    )

    print(done.stdout)
    assert done.returncode == 0, done.stdout[-3000:] + done.stderr[-3000:]


def test_some_answers(tmp_path):
    run(SOON, tmp_path)


@pytest.mark.chaos
def test_all_answers(tmp_path):
    run(PROGRAMS, tmp_path)


@pytest.mark.parametrize("question", PROGRAMS)
def test_each_answer_is_one_short_program_that_checks_itself(question):
    assert PROGRAMS[question].count("\n") <= 40
    assert "assert" in PROGRAMS[question].splitlines()[-1]
