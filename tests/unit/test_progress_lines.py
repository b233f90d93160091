"""A bar where there is a terminal for it, else a line an epoch."""

import re
import sys
from pathlib import Path

import nbformat
import pytest

from tfos_ml.driver.progress import Progress
from tfos_ml.protocol.control_messages import NodeProgress
from tfos_ml.protocol.messages import Report
from tfos_ml.protocol.training_position import Position

PROGRESS = {0: NodeProgress(rows=100, complete=True, trained=Position(0, 3, 7))}


def report(epoch):
    return Report({"loss": 0.5}, epoch, None, 0.0, "worker:0")


def show_two_epochs(**options):
    with Progress(1, 2, **options) as progress:
        progress.begin(1)
        for _ in range(50):
            progress.update(PROGRESS)
        show(progress, report(0))
        progress.begin(1)
        show(progress, report(1))


def show(progress, *reports):
    progress.show(reports)
    progress.update(PROGRESS)


@pytest.mark.parametrize("shares_terminal", [False, True], ids=["own terminal", "with Spark's stage bar"])
def test_on_a_terminal_is_one_bar(capsys, monkeypatch, shares_terminal):
    monkeypatch.setattr(sys.stderr, "isatty", lambda: True, raising=False)
    show_two_epochs(shares_terminal=shares_terminal)
    shown = capsys.readouterr().err
    assert ("2/2 epochs" in shown and "step=3/7" in shown) is not shares_terminal
    assert shown.count("\n") == (2 if shares_terminal else 1)
    if not shares_terminal:
        assert re.fullmatch(r"Trained \S+ 2/2 epochs \[00:00, loss=0.5\]", shown.rstrip().rpartition("\r")[2])


def test_into_a_pipe_a_line_replaces_the_bar_of_spark(capsys):
    show_two_epochs(shares_terminal=True)
    for line in capsys.readouterr().err.rstrip("\n").split("\n"):
        start, blank, shown = line.split("\r")
        assert (start, blank) == ("", " " * 80)
        assert shown.startswith("Epoch ")


@pytest.mark.parametrize(
    ("epochs", "restored", "told"),
    [
        (20, 0, "Stopped early after epoch 2 of 20. The model has the weights of epoch 1."),
        (2, 0, "The model has the weights of epoch 1."),
        (2, None, None),
    ],
)
def test_the_end_is_told_if_it_is_not_the_last_epoch(capsys, epochs, restored, told):
    with Progress(1, epochs) as progress:
        progress.begin(1)
        show(progress, report(0), report(1))
        progress.show_end(restored)
    assert capsys.readouterr().err.splitlines()[2:] == ([told] if told else [])


@pytest.mark.slow
def test_in_a_notebook_curves_grow_below_the_bar():
    here = Path(__file__)
    code = f"import sys; sys.path.insert(0, {str(here.parent)!r}); import {here.stem}; {here.stem}.show_two_epochs()"
    notebook = nbformat.v4.new_notebook(cells=[nbformat.v4.new_code_cell(code)])
    nbclient = pytest.importorskip("nbclient")
    nbclient.NotebookClient(notebook, timeout=60, kernel_name="python3").execute()
    (shown,) = [output.data for output in notebook.cells[0].outputs]
    assert re.fullmatch(r"Trained \S+ 2/2 epochs \[00:00, loss=0.5\]", shown["text/plain"])
    assert shown["text/plain"] in shown["text/html"]
    assert shown["text/html"].count("<polyline") == 1
