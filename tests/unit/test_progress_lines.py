"""A bar where there is a terminal for it, else a line an epoch."""

import sys

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
