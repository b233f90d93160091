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


@pytest.mark.chaos  # what they say has a test of its own where it is made
def test_all_answers(tmp_path):
    """As one program; each has the names of the first program only. Prints the seconds of each."""
    lines = ["import time", *FIRST]
    for question, program in PROGRAMS.items():
        lines.append("began = time.monotonic()")
        lines.append(f"exec(compile({program!r}, {question!r}, 'exec'), dict(globals()))")
        lines.append(f"print(f'{{time.monotonic() - began:5.1f}} s', {question!r}, flush=True)")
    (tmp_path / "answers.py").write_text("\n".join(lines))

    done = subprocess.run(
        [sys.executable, "answers.py"], cwd=tmp_path, capture_output=True, text=True, timeout=880, check=False
    )

    print(done.stdout)
    assert done.returncode == 0, done.stdout[-3000:] + done.stderr[-3000:]


@pytest.mark.parametrize("question", PROGRAMS)
def test_each_answer_is_one_short_program_that_checks_itself(question):
    assert PROGRAMS[question].count("\n") <= 40
    assert "assert" in PROGRAMS[question].splitlines()[-1]
