"""A bar where there is a terminal for it, else a line an epoch."""

import re
import sys
from pathlib import Path

import nbformat
import pytest

from tfos_ml.driver.progress import Progress
from tfos_ml.protocol.control_messages import NodeProgress
from tfos_ml.protocol.position import Position

PROGRESS = {0: NodeProgress(rows=100, complete=True, trained=Position(0, 3, 7))}


def report(epoch):
    return {"metrics": {"loss": 0.5}, "epoch": epoch, "label": "worker:0", "shown": True}


def show_two_epochs(**options):
    with Progress(1, 2, **options) as progress:
        progress.begin(1)
        for _ in range(50):
            progress.update(PROGRESS, [])
        progress.update(PROGRESS, [report(0)])
        progress.begin(1)  # the second attempt reports the first epoch again
        for epoch in range(2):
            progress.update(PROGRESS, [report(epoch)])


def test_into_a_pipe_goes_a_line_an_epoch(capsys):
    show_two_epochs()
    shown = capsys.readouterr()
    assert shown.out == ""
    assert shown.err == "Epoch 1/2 [worker:0] loss: 0.5\nEpoch 2/2 [worker:0] loss: 0.5\n"


@pytest.mark.parametrize("shares_terminal", [False, True], ids=["own terminal", "with Spark's stage bar"])
def test_on_a_terminal_is_one_bar(capsys, monkeypatch, shares_terminal):
    monkeypatch.setattr(sys.stderr, "isatty", lambda: True, raising=False)
    show_two_epochs(shares_terminal=shares_terminal)
    shown = capsys.readouterr().err
    assert ("2/2 epochs" in shown and "step=3/7" in shown) is not shares_terminal
    assert shown.count("\n") == (2 if shares_terminal else 1)


@pytest.mark.slow
def test_in_a_notebook_curves_grow_below_the_bar():
    here = Path(__file__)
    code = f"import sys; sys.path.insert(0, {str(here.parent)!r}); import {here.stem}; {here.stem}.show_two_epochs()"
    notebook = nbformat.v4.new_notebook(cells=[nbformat.v4.new_code_cell(code)])
    nbclient = pytest.importorskip("nbclient")
    nbclient.NotebookClient(notebook, timeout=60, kernel_name="python3").execute()
    (shown,) = [output.data for output in notebook.cells[0].outputs]
    assert re.fullmatch(r"Trained \S+ 2/2 epochs \[00:00, rows=100, step=3/7, loss=0.5\]", shown["text/plain"])
    assert shown["text/plain"] in shown["text/html"]
    assert shown["text/html"].count("<polyline") == 1
