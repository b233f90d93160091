"""The pages: links lead somewhere, and what is public is described."""

from __future__ import annotations

import json
import re
from pathlib import Path
from urllib.parse import unquote, urlsplit

import pytest

import tfos_ml
from tfos_ml.tuning import OptunaSearch

ROOT = Path(__file__).parents[2]


@pytest.fixture(scope="module")
def site():
    """The pages, which ``make docs`` has built just before it runs these tests."""
    built = ROOT / "build" / "docs"
    if not built.is_dir():
        pytest.skip("make docs builds the pages")
    return built


of_the_site = pytest.mark.chaos
ROOT_PAGES = [*sorted(ROOT.glob("*.rst")), ROOT / "tests" / "README.rst"]  # Sphinx does not read them


def links(page):
    """Addresses that a page leads to."""
    found = re.findall(r'<a [^>]*href="([^"]+)"', page.read_text())
    return [urlsplit(link.replace("&amp;", "&")) for link in found]


@of_the_site
def test_links_between_pages_lead_to_pages_and_to_places_in_them(site):
    wrong = []
    for page in site.rglob("*.html"):
        for link in links(page):
            if link.scheme or not (link.path or link.fragment):
                continue
            target = (page.parent / unquote(link.path)).resolve() if link.path else page
            place = f'id="{link.fragment}"' if link.fragment and target.suffix == ".html" else ""
            if not target.is_file() or place not in target.read_text(errors="replace"):
                wrong.append((page.name, link.geturl()))
    assert wrong == []


@of_the_site
def test_links_to_the_repository_lead_to_its_files(site):
    named = {
        link.path.partition("/blob/main/")[2]
        for page in site.rglob("*.html")
        for link in links(page)
        if "/blob/main/" in link.path and link.netloc == "github.com" and "tfos_ml" in link.path
    }
    assert len(named) > 20
    assert [path for path in sorted(named) if not (ROOT / path).exists()] == []


def test_files_that_pages_name_are_there():
    pages = [ROOT / "README.rst", ROOT / "CONTRIBUTING.rst", *(ROOT / "docs").rglob("*.rst")]
    pages += (ROOT / "notebooks").glob("*.ipynb")
    named = re.compile(r"`{1,2}((?:tfos_ml|tests|docs|examples|benchmarks|notebooks|tools)/[\w./-]*\w)`{1,2}")
    found = {path for page in pages for path in named.findall(page.read_text())}
    assert len(found) > 10
    assert [path for path in sorted(found) if not (ROOT / path).exists()] == []


def test_pages_outside_of_the_site_are_well_formed():
    from docutils.core import publish_doctree  # comes with Sphinx, which the oldest environment has not
    from docutils.nodes import system_message

    for page in ROOT_PAGES:
        quiet = {"report_level": 5, "halt_level": 5}
        document = publish_doctree(page.read_text(), str(page), settings_overrides=quiet)
        found = [*document.parse_messages, *document.transform_messages, *document.findall(system_message)]
        assert [message.astext() for message in found if message["level"] > 1] == [], page


@of_the_site
def test_all_public_names_are_described(site):
    from tfos_ml import errors

    pages = "".join(path.read_text() for path in (site / "reference").glob("*.html"))
    names = [f"tfos_ml.{name}" for name in tfos_ml.__all__]
    own = [name for name, value in vars(errors).items() if getattr(value, "__module__", "") == errors.__name__]
    names += [f"tfos_ml.errors.{name}" for name in own if not name.startswith("_")]
    assert [name for name in names if f'id="{name}"' not in pages] == []


@of_the_site
def test_each_param_and_argument_has_a_place_of_its_own_that_index_and_search_know(site):
    page, index = (site / "reference" / "params.html").read_text(), (site / "genindex.html").read_text()
    search = json.loads((site / "searchindex.js").read_text().partition("(")[2].rpartition(")")[0])
    stages = [tfos_ml.KerasEstimator(), tfos_ml.TFEstimator(), OptunaSearch()]
    names = {param.name for stage in stages for param in stage.params}
    names |= {"model", "callbacks", "customObjects", "trainFn", "tfArgs", "estimator", "space", "sampler", "pruner"}
    for name in names:
        assert f'id="{name.lower()}"' in page
        assert re.search(rf'<a href="reference/params.html#[\w-]+">(?:<strong>)?{name}<', index), name
        assert name in search["alltitles"]


def test_the_first_page_shows_the_program_of_the_readme():
    example = re.compile(r"^\.\. code-block:: python\n\n(?:    .*\n|\n)+", re.MULTILINE)
    readme, first = (ROOT / "README.rst").read_text(), (ROOT / "docs" / "index.rst").read_text()

    assert example.findall(first) == example.findall(readme)


def test_the_page_of_mistakes_has_those_of_its_program_at_their_lines(monkeypatch):
    monkeypatch.syspath_prepend(str(ROOT / "docs"))
    import mistakes

    page = (ROOT / "docs" / "reference" / "mistakes.rst").read_text()
    lines = Path(mistakes.__file__).read_text().splitlines()

    titles = [one.title for one in mistakes.MISTAKES]
    assert re.findall(r"^(.+)\n-+$", page, re.MULTILINE) == titles
    assert f"shows {len(titles)} common mistakes" in page
    shown = re.findall(r'File "docs/mistakes.py", line (\d+), in \w+\n +(.*)', page)
    assert len(shown) >= 3
    assert [text for number, text in shown if lines[int(number) - 1].strip() != text] == [], (
        "run: python docs/mistakes.py"
    )
