"""README: its Python snippets, as printed and in order, in one program; and what its other blocks name."""

from __future__ import annotations

import configparser
import re
import subprocess
import sys
import textwrap
from pathlib import Path

import pytest

ROOT = Path(__file__).parents[1]
README = (ROOT / "README.rst").read_text()


def blocks(directive):
    """What follows a line of reStructuredText and is indented more than it."""
    found = []
    for match in re.finditer(rf"^( *){directive}\n\n?((?:\1 +\S.*\n|\n)+)", README, re.MULTILINE):
        found.append(textwrap.dedent(match[2]).strip() + "\n")
    return found


def commands():
    """The lines of shell blocks, without comments."""
    lines = "".join(blocks("(?:.*::|::)")).splitlines()
    return [line.partition("  #")[0].strip() for line in lines if line and not line.startswith("#")]


@pytest.mark.timeout(900)
def test_snippets_run_as_printed(tmp_path):
    snippets = blocks(r"\.\. code-block:: python")
    assert len(snippets) >= 4
    (tmp_path / "readme.py").write_text("\n".join(snippets))

    done = subprocess.run(
        [sys.executable, "readme.py"], cwd=tmp_path, capture_output=True, text=True, timeout=880, check=False
    )

    assert done.returncode == 0, done.stderr
    tables = re.findall(r"^\|label\|\s*prediction\|(\s*probability\|)?$", done.stdout, re.MULTILINE)
    assert len(tables) == 2, done.stdout
    assert done.stdout.splitlines()[-1] == "333283335000", done.stdout


def test_commands_are_there():
    targets = set(re.findall(r"^([a-z]+):", (ROOT / "Makefile").read_text(), re.MULTILINE))
    setup = configparser.ConfigParser()
    setup.read(ROOT / "setup.cfg")
    given = commands()
    assert {line.split()[1] for line in given if line.startswith("make ")} <= targets
    named = {extra for line in given for extras in re.findall(r"\[([\w,]+)\]", line) for extra in extras.split(",")}
    assert named == set(setup["options.extras_require"]) - {"dev", "docs"}
    # `make demo` is run by test_demo.py, `mlflow models serve` by e2e/test_mlflow.py
    assert {line.split()[0] for line in given} == {"pip", "make", "mlflow"}


@pytest.mark.parametrize("path", sorted(set(re.findall(r"`[^`]+<([\w./-]+)>`_", README))))
def test_files_that_it_links_to_are_there(path):
    assert (ROOT / path).exists()
