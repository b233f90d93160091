"""docs/explanation/architecture.rst: the files that it names are there."""

from __future__ import annotations

import re
from pathlib import Path

import pytest

ROOT = Path(__file__).parents[2]
PAGES = ("docs/explanation/architecture.rst", "CONTRIBUTING.rst", "tests/README.rst")


@pytest.mark.parametrize("page", [page for page in PAGES if (ROOT / page).exists()])
def test_files_that_a_page_names_are_there(page):
    text = (ROOT / page).read_text()
    named = set(re.findall(r"``([\w./-]+\.(?:py|rst|toml))``", text))
    assert named
    folders = ("", "tfos_ml", "docs", "docs/reference", "docs/explanation", "tests", "tools")
    places = [ROOT / folder for folder in folders]
    assert [file for file in sorted(named) if not any((place / file).exists() for place in places)] == []
