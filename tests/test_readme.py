"""README and the pages that go on from it: their Python as printed, in order, in one program; and their commands."""

from __future__ import annotations

import configparser
import re
import subprocess
import sys
import textwrap
from pathlib import Path

import pytest

ROOT = Path(__file__).parents[1]
PAGES = {  # in the order in which their programs run, in one session
    name: (ROOT / name).read_text()
    for name in (
        "README.rst",
        "docs/howto/install.rst",
        "docs/tutorials/train.rst",
        "docs/howto/callbacks.rst",
        "docs/howto/performance.rst",
        "docs/howto/rows.rst",
        "docs/howto/tuning.rst",
        "docs/howto/serving.rst",
        "docs/howto/migrate_elephas_horovod.rst",
        "docs/howto/mlflow.rst",
        "docs/howto/tfcluster.rst",
        "docs/howto/clusters.rst",
    )
}
PLATFORMS = [path.read_text() for path in sorted((ROOT / "docs" / "platforms").glob("*.rst"))]
FIRST = ["README.rst", "docs/howto/tfcluster.rst"]  # in make test: test_answers.py
RUN_ELSEWHERE = {
    "docs/index.rst",  # the README's: test_docs.py
    "docs/howto/answers.rst",  # test_answers.py
    "docs/howto/embeddings.rst",  # with networks that are not pretrained: e2e/test_embeddings.py
    "docs/howto/migrate_tensorflowonspark.rst",  # programs before and after: e2e/test_compat_flows.py
    "docs/reference/mistakes.rst",  # docs/mistakes.py writes them from what it runs: e2e/test_mistakes.py
}


def blocks(page, directive):
    """What follows a line of reStructuredText and is indented more than it."""
    found = []
    for match in re.finditer(rf"^( *){directive}\n\n?((?:\1 +\S.*\n|\n)+)", page, re.MULTILINE):
        found.append(textwrap.dedent(match[2]).strip() + "\n")
    return found


def commands():
    """The lines of shell blocks that are commands of ours, without comments."""
    pages = [*PAGES.values(), *PLATFORMS]
    text = "".join(block for page in pages for block in blocks(page, r"(?:(?!\.\.).*::|::)"))
    lines = text.replace("\\\n", "").splitlines()
    return [line.partition("  #")[0].strip() for line in lines if re.match(r"(pip|make|mlflow|python -m) ", line)]


def programs(pages):
    """The programs of some pages, in order."""
    found = [block for page in pages for block in blocks(PAGES[page], r"\.\. code-block:: python")]
    assert len(found) >= len(pages)
    return found


def run_as_one(snippets, directory):
    """What some programs print, run as one."""
    (directory / "readme.py").write_text("\n".join(snippets))

    done = subprocess.run(
        [sys.executable, "readme.py"], cwd=directory, capture_output=True, text=True, timeout=880, check=False
    )

    assert done.returncode == 0, done.stdout[-3000:] + done.stderr[-3000:]
    return done.stdout


@pytest.mark.chaos
def test_programs_of_all_pages_run_as_printed(tmp_path):
    shown = run_as_one(programs(PAGES), tmp_path)
    assert len(re.findall(r"^\|label\|\s*prediction\|(\s*probability\|)?$", shown, re.MULTILINE)) >= 3, shown
    for name in ("elephas", "Horovod"):
        assert float(re.search(rf"^{name} page: accuracy ([\d.]+)$", shown, re.MULTILINE)[1]) > 0.5


def test_pages_with_programs_are_run():
    written = {
        str(path.relative_to(ROOT))
        for path in (ROOT / "docs").rglob("*.rst")
        if ".. code-block:: python" in path.read_text()
    }
    assert written <= {*PAGES, *RUN_ELSEWHERE}


def test_commands_are_there():
    targets = set(re.findall(r"^([a-z]+):", (ROOT / "Makefile").read_text(), re.MULTILINE))
    setup = configparser.ConfigParser()
    setup.read(ROOT / "setup.cfg")
    given = commands()
    assert {line.split()[1] for line in given if line.startswith("make ")} <= targets
    named = {extra for line in given for extras in re.findall(r"\[([\w,]+)\]'", line) for extra in extras.split(",")}
    assert named >= set(setup["options.extras_require"]) - {"dev", "docs"}
    # `make demo` is run by test_demo.py, `mlflow models serve` as in notebooks/08 (make notebooks)
    assert {line.split()[0] for line in given} == {"pip", "make", "mlflow", "python"}


def test_options_of_our_commands_are_those_that_they_have():
    from tfos_ml.__main__ import parser

    asked = [line.split()[3:] for line in commands() if line.startswith("python -m tfos_ml ")]
    found = [parser().parse_args([part.strip("'") for part in arguments]).command for arguments in asked]
    assert found.count("doctor") >= 4
    assert found.count("pack") >= 2
