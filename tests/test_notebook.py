"""The quickstart notebook: runs from start to end, and is kept with its outputs."""

import os
import re
from pathlib import Path

import nbformat
import pytest
from nbclient import NotebookClient

NOTEBOOK = Path(__file__).parents[1] / "notebooks" / "01_quickstart.ipynb"
CELL_TIMEOUT = 300


@pytest.mark.chaos  # it fits as the demo does, and its outputs are looked at as they are kept
@pytest.mark.timeout(600)
def test_notebook_runs_from_start_to_end(tmp_path):
    notebook = nbformat.read(NOTEBOOK, as_version=4)
    clear(notebook)

    # Act: raises CellExecutionError if a cell fails
    client = NotebookClient(
        notebook, timeout=CELL_TIMEOUT, kernel_name="python3", resources={"metadata": {"path": str(tmp_path)}}
    )
    client.execute(env=outside_pytest())

    # Assert
    assert_shows_results(notebook)
    assert noise(notebook) == []


def test_notebook_is_kept_with_its_outputs():
    notebook = nbformat.read(NOTEBOOK, as_version=4)

    nbformat.validate(notebook)
    assert_shows_results(notebook)
    assert all(cell.execution_count for cell in notebook.cells if cell.cell_type == "code")
    assert noise(notebook) == []


def outside_pytest():
    """The environment of a kernel that shows what processes write to stderr; ipykernel does not below pytest."""
    return {name: value for name, value in os.environ.items() if name != "PYTEST_CURRENT_TEST"}


def clear(notebook):
    for cell in notebook.cells:
        if cell.cell_type == "code":
            cell.outputs, cell.execution_count = [], None


def outputs(notebook):
    return [output for cell in notebook.cells if cell.cell_type == "code" for output in cell.outputs]


def noise(notebook):
    """Lines on stderr, in any cell."""
    text = "".join(output.text for output in outputs(notebook) if output.get("name") == "stderr")
    return [line for line in text.splitlines() if line.strip()]


def assert_shows_results(notebook):
    shown = outputs(notebook)
    assert "error" not in {output.output_type for output in shown}
    printed = "".join(output.text for output in shown if output.output_type == "stream")
    accuracy = re.search(r"Accuracy on \d+ held-out digits: ([\d.]+)", printed)
    assert accuracy, printed
    assert float(accuracy[1]) >= 0.95
    displayed = [output.data for output in shown if output.output_type == "display_data"]
    assert len(displayed) == 3  # the bar, and
    assert sum("image/png" in data for data in displayed) == 2
