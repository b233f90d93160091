"""How Sphinx builds the pages: ``make docs``."""

from __future__ import annotations

import os
import posixpath
import re
import shutil
import sys
from pathlib import Path
from typing import Any

ROOT = Path(__file__).parents[1]
sys.path.insert(0, str(ROOT))

from tfos_ml.common.version import __version__  # noqa: E402

project, author, copyright = "tfos_ml", "The tfos_ml developers", "The tfos_ml developers"
release = version = __version__
extensions = ["sphinx.ext.autodoc", "sphinx.ext.napoleon", "sphinx.ext.doctest", "sphinx_copybutton", "myst_nb"]
exclude_patterns = ["matrix", "**.ipynb_checkpoints"]
nb_execution_mode = "off"  # notebooks are kept with their outputs
nb_merge_streams = True
nitpicky = False
root_doc = "index"
toc_object_entries_show_parents = "hide"
highlight_language = "none"  # of blocks that do not say

napoleon_google_docstring = False
napoleon_use_ivar = True
autodoc_typehints = "signature"
autodoc_member_order = "bysource"
autodoc_default_options = {"members": True}
doctest_global_setup = "import tfos_ml"
os.environ.setdefault("PYSPARK_PYTHON", sys.executable)

html_theme = "furo"
html_title = "tfos_ml"
html_favicon = "_static/favicon.svg"
html_static_path = ["_static"]
html_css_files = ["pages.css"]
templates_path = ["_templates"]
html_sidebars = {
    "**": [
        "sidebar/brand.html",
        "sidebar/versions.html",
        "sidebar/search.html",
        "sidebar/scroll-start.html",
        "sidebar/navigation.html",
        "sidebar/scroll-end.html",
    ]
}
html_theme_options = {
    "source_repository": "https://github.com/tfos-ml/tfos_ml",
    "source_branch": "main",
    "source_directory": "docs/",
    "light_css_variables": {"color-brand-primary": "#b4540a", "color-brand-content": "#a34a05"},
    "dark_css_variables": {"color-brand-primary": "#ffb067", "color-brand-content": "#ffb067"},
}
copybutton_prompt_text = r">>> |\.\.\. |\$ "
copybutton_prompt_is_regexp = True
REPOSITORY = "https://github.com/tfos-ml/tfos_ml"
SOURCE = f"{REPOSITORY}/blob/main/"


NOTEBOOKS = Path(__file__).parent / "notebooks"  # copies: Sphinx reads files below docs/ only
COPIED = {"contributing": "CONTRIBUTING.rst"}  # pages that are files elsewhere


def copy_notebooks() -> None:
    """Copy the notebooks with their times, so that Sphinx reads again only those that have changed."""
    shutil.rmtree(NOTEBOOKS, ignore_errors=True)
    NOTEBOOKS.mkdir()
    for notebook in (ROOT / "notebooks").glob("*.ipynb"):
        shutil.copy2(notebook, NOTEBOOKS)


copy_notebooks()


def source_of(page: str) -> str:
    """The file in the repository that a page is made of."""
    if page in COPIED:
        return COPIED[page]
    return f"{page}.ipynb" if page.startswith("notebooks/") else f"docs/{page}.rst"


def versions(changelog: str) -> list[tuple[str, bool]]:
    """Versions in the changelog, the newest first, and whether each has been released."""
    headings = re.findall(r"^(\d+\.\d+\.\d+)(?: \((.*)\))?\n-+$", changelog, re.MULTILINE)
    return [(name, note != "unreleased") for name, note in headings]


VERSIONS = versions((ROOT / "CHANGELOG.rst").read_text())
html_context = {
    "released": dict(VERSIONS).get(release, False),
    "other_versions": [
        *((name, f"{REPOSITORY}/tree/v{name}/docs") for name, done in VERSIONS if done and name != release),
        ("newest, in the repository", f"{REPOSITORY}/tree/main/docs"),
        ("all releases", f"{REPOSITORY}/releases"),
        ("what has changed", f"{SOURCE}CHANGELOG.rst"),
    ],
}


def without_params(app: Any, what: str, name: str, obj: Any, options: Any, lines: list[str]) -> None:
    """Leave the list of all Params out of a docstring: it has a page."""
    if "All Params" in lines:
        del lines[lines.index("All Params") :]


def resolve_file_links(app: Any, doctree: Any, docname: str) -> None:
    """Links to files of the repository lead to the page that is made of the file, or to the repository."""
    from docutils import nodes

    pages = {source_of(page): page for page in app.env.found_docs}
    for node in doctree.findall(nodes.reference):
        link, _, fragment = node.get("refuri", "").partition("#")
        if not link or "://" in link or link.startswith("mailto:") or node.get("internal"):
            continue
        path = posixpath.normpath(posixpath.join(posixpath.dirname(source_of(docname)), link))
        page = pages.get(path)
        if page is not None:
            link = app.builder.get_relative_uri(docname, page)
        elif (ROOT / path).exists():
            link = SOURCE + path
        else:
            raise ValueError(f"{source_of(docname)} links to {link}, which is not there")
        node["refuri"] = link + (f"#{fragment}" if fragment else "")


def link_to_source(app: Any, page: str, template: str, context: dict[str, Any], doctree: Any) -> None:
    """Links "View" and "Edit" lead to the file in the repository that the page is made of."""
    if page in COPIED or page.startswith("notebooks/"):
        context["theme_source_view_link"] = SOURCE + source_of(page)
        context["theme_source_edit_link"] = f"{REPOSITORY}/edit/main/{source_of(page)}"


def setup(app: Any) -> None:
    """Called by Sphinx."""
    app.connect("autodoc-process-docstring", without_params, priority=400)  # before napoleon
    app.connect("doctree-resolved", resolve_file_links)
    app.connect("html-page-context", link_to_source)
