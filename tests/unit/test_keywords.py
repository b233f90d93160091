"""What editors, type checkers, ``help`` and ``repr`` tell of the stages."""

from __future__ import annotations

import pickle
import sys
from pathlib import Path

import pytest

from tfos_ml import KerasEstimator
from tfos_ml.errors import ParamError

ROOT = Path(__file__).parents[2]


def test_what_is_generated_is_what_the_params_make_it(monkeypatch):
    monkeypatch.setattr(sys, "path", [str(ROOT / "tools"), *sys.path])
    import generate_keywords

    advice = "run: python tools/generate_keywords.py"
    assert (ROOT / "tfos_ml" / "stages" / "keywords.py").read_text() == generate_keywords.source(), advice
    assert (ROOT / "docs" / "reference" / "params.rst").read_text() == generate_keywords.reference(), advice


def test_a_stage_can_be_pickled_and_checks_its_params_afterwards():
    made = KerasEstimator(predictionCol="answer")
    again = pickle.loads(pickle.dumps(made))
    assert again.params == made.params
    assert again.copy({again.predictionCol: "other"}).getPredictionCol() == "other"
    assert (again.getPredictionCol(), again.uid) == ("answer", made.uid)
    with pytest.raises(ParamError, match="predictBatchSize must be"):
        again.setPredictBatchSize(0)


@pytest.mark.parametrize(
    ("name", "expected"),
    [
        ("num_workers", "did you mean clusterSize?"),
        ("batch_size", "did you mean batchSize or predictBatchSize?"),
        ("metrics", "pass it to model.compile(metrics=...)"),
    ],
)
def test_the_words_of_other_libraries_lead_to_ours(name, expected):
    with pytest.raises(ParamError) as caught:
        KerasEstimator(**{name: 1})
    assert expected in str(caught.value).split("Known:")[0]
