"""The keywords of the stages: as the Params make them, and by the names of other libraries."""

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


def test_the_words_of_other_libraries_lead_to_ours():
    with pytest.raises(ParamError, match=r"did you mean batchSize or predictBatchSize\?"):
        KerasEstimator(batch_size=1)
    with pytest.raises(ParamError, match=r"pass it to model\.compile\(metrics=\.\.\.\)"):
        KerasEstimator(metrics=1)
