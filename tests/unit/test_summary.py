"""``model.summary`` without a fit: what it says, in text, in notebooks and as a figure."""

from __future__ import annotations

import math
import xml.etree.ElementTree as ElementTree

import pytest

from tfos_ml import TFModel, errors
from tfos_ml.stages.summary import TrainingSummary

HISTORY = {"loss": [0.5, 0.25, math.nan], "val_loss": [0.6, 0.3, 0.2], "accuracy": [0.8, 0.9, 0.95]}


@pytest.fixture
def summary():
    return TrainingSummary(HISTORY, 1500, 100, 3, 12.34, [{}, {}], steps=45, warnings=["a < b"])


def test_a_model_that_no_fit_has_made_has_none():
    model = TFModel()
    assert not model.hasSummary
    with pytest.raises(errors.NoSummaryError, match="No training summary available for this TFModel"):
        _ = model.summary
    assert issubclass(errors.NoSummaryError, RuntimeError)  # as Spark ML's


def test_text_has_the_last_values(summary):
    assert repr(summary) == (
        "TrainingSummary(rows=1,500, validationRows=100, skippedRows=3, seconds=12.3, nodes=2, epochs=3, steps=45, "
        "loss=nan, val_loss=0.2, accuracy=0.95, warnings=1)"
    )


def test_text_has_the_epoch_whose_weights_were_restored_and_the_nodes_of_several_attempts(summary):
    summary.restoredEpoch = 1
    summary.attempts = [{"nodes": 3}, {"nodes": 1}]
    assert "nodes=2, attempts=2, of 3, 1 nodes, epochs=3" in repr(summary)
    assert "steps=45, restoredEpoch=2 of 3, loss=0.25, val_loss=0.3, accuracy=0.9" in repr(summary)


def test_notebooks_show_a_table_the_phases_and_a_chart_for_each_metric(summary):
    summary.timeline = {"checks": 1.0, "training": 3.0}
    root = ElementTree.fromstring(f"<div>{summary._repr_html_()}</div>")
    assert {row[0].text: row[1].text for row in root.find("table")}["steps"] == "45"
    assert [item.text for item in root.iter("li")] == ["a < b"]
    charts = root.findall("div[1]/{http://www.w3.org/2000/svg}svg")
    points = [[len(line.get("points").split()) for line in chart if line.tag.endswith("polyline")] for chart in charts]
    assert points == [[2, 3], [3]]  # NaN is left out
    (phases,) = root.findall("div[2]/*")
    assert [item.text for item in phases if item.tag.endswith("text")] == ["checks", "1.0 s", "training", "3.0 s"]
