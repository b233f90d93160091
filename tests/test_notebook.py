"""The notebooks: each runs from start to end, and is kept with its outputs and plots."""

from __future__ import annotations

import os
import re
from pathlib import Path

import nbformat
import pytest
from nbclient import NotebookClient

ROOT = Path(__file__).parents[1]
CELL_TIMEOUT = 400
# What an interpreter does when it ends. Jupyter's kernels may be killed instead: ipykernel 7.4 misses requests to end.
LAST_CELL = "import weakref; weakref.finalize._exitfunc()"


# What each has to show: a number that it prints, at least and at most so large, and its plots.
NOTEBOOKS = {
    "01_quickstart": (r"Accuracy on \d+ held-out digits: ([\d.]+)", 0.95, 1.0, 2),
    "02_table": (r"Area under ROC on [\d,]+ flights of held-out days: ([\d.]+)", 0.67, 0.8, 3),
    "03_text": (r"Accuracy on [\d,]+ held-out docstrings: ([\d.]+)", 0.75, 1.0, 2),
    "04_images": (r"Accuracy on [\d,]+ held-out pictures: ([\d.]+)", 0.88, 1.0, 4),
    "05_recommendation": (r"Root mean squared error of the network: ([\d.]+)", 0.8, 0.9, 2),
    "06_custom_loop": (r"Accuracy on \d+ held-out digits: ([\d.]+)", 0.95, 1.0, 2),
    "07_streaming": (r"Mean error of the network: +([\d.]+)", 0.3, 1.4, 2),
    "08_tfrecords_to_served": (r"Largest difference between server and this process: ([\d.e+-]+)", 0.0, 1e-4, 2),
}


@pytest.mark.parametrize("name", NOTEBOOKS)
@pytest.mark.chaos  # each fits as what e2e/ has does, and its outputs are looked at as they are kept
def test_notebook_runs_from_start_to_end(name, tmp_path):
    notebook = read(name)
    for cell in code_cells(notebook):
        cell.outputs, cell.execution_count = [], None

    # Act: raises CellExecutionError if a cell fails
    client = NotebookClient(
        notebook, timeout=CELL_TIMEOUT, kernel_name="python3", resources={"metadata": {"path": str(tmp_path)}}
    )
    notebook.cells.append(nbformat.v4.new_code_cell(LAST_CELL))
    client.execute(env=outside_pytest())
    notebook.cells.pop()

    # Assert
    assert_shows_results(notebook, NOTEBOOKS[name])
    assert noise(notebook) == []


def test_every_notebook_is_listed_and_kept_with_its_outputs():
    page = (ROOT / "docs" / "tutorials" / "notebooks.rst").read_text()
    assert {path.stem for path in (ROOT / "notebooks").glob("*.ipynb")} == set(NOTEBOOKS)
    assert set(re.findall(r"notebooks/(\w+)\.ipynb", page)) == set(NOTEBOOKS)
    for name, shown in NOTEBOOKS.items():
        notebook = read(name)
        nbformat.validate(notebook)
        assert_shows_results(notebook, shown)
        assert all(cell.execution_count for cell in code_cells(notebook))
        assert noise(notebook) == []


def read(name):
    return nbformat.read(ROOT / "notebooks" / f"{name}.ipynb", as_version=4)


def outside_pytest():
    """The environment of a kernel that shows what processes write to stderr; ipykernel does not below pytest."""
    return {name: value for name, value in os.environ.items() if name != "PYTEST_CURRENT_TEST"}


def code_cells(notebook):
    return [cell for cell in notebook.cells if cell.cell_type == "code"]


def outputs(notebook):
    return [output for cell in code_cells(notebook) for output in cell.outputs]


def noise(notebook):
    """Lines on stderr, in any cell."""
    text = "".join(output.text for output in outputs(notebook) if output.get("name") == "stderr")
    return [line for line in text.splitlines() if line.strip()]


def assert_shows_results(notebook, shown):
    found = outputs(notebook)
    assert "error" not in {output.output_type for output in found}
    printed = "".join(output.text for output in found if output.output_type == "stream")
    pattern, least, most, plots = shown
    number = re.search(pattern, printed)
    assert number, printed
    assert least <= float(number[1]) <= most
    displayed = [output.data for output in found if output.output_type == "display_data"]
    assert sum("image/png" in data for data in displayed) == plots
    bars = [data["text/plain"] for data in displayed if data["text/plain"].startswith("Trained ")]
    assert bars
    assert not [bar for bar in bars if "step=" in bar]
