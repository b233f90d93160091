"""What editors, type checkers, ``help`` and ``repr`` tell of the stages."""

from __future__ import annotations

import inspect
import io
import json
import pickle
import sys
import tarfile
from pathlib import Path

import pytest

from tfos_ml import KerasEstimator, TFEstimator, TFModel
from tfos_ml.common.local_files import LocalFile
from tfos_ml.errors import ParamError
from tfos_ml.inference.archive import Archive
from tfos_ml.inference.saved_model import SIGNATURE_FILE
from tfos_ml.stages.summary import TrainingSummary

ROOT = Path(__file__).parents[2]
STAGES = [TFEstimator, KerasEstimator, TFModel]


def test_what_is_generated_is_what_the_params_make_it(monkeypatch):
    monkeypatch.setattr(sys, "path", [str(ROOT / "tools"), *sys.path])
    import generate_keywords

    advice = "run: python tools/generate_keywords.py"
    assert (ROOT / "tfos_ml" / "stages" / "keywords.py").read_text() == generate_keywords.source(), advice
    assert (ROOT / "docs" / "reference" / "params.rst").read_text() == generate_keywords.reference(), advice


@pytest.mark.parametrize("stage", STAGES)
@pytest.mark.parametrize("method", ["__init__", "setParams"])
def test_each_param_is_a_keyword_with_its_type_and_default(stage, method):
    made = stage()
    keywords = inspect.signature(getattr(stage, method)).parameters
    for param in made.params:
        keyword = keywords[param.name]
        assert keyword.kind is keyword.KEYWORD_ONLY
        assert keyword.annotation
        if param.name != "seed":
            assert keyword.default == (made.getOrDefault(param) if made.hasDefault(param) else None)


@pytest.mark.parametrize("stage", STAGES)
def test_a_stage_can_be_pickled_and_checks_its_params_afterwards(stage):
    made = stage(predictionCol="answer")
    again = pickle.loads(pickle.dumps(made))
    assert again.params == made.params
    assert again.copy({again.predictionCol: "other"}).getPredictionCol() == "other"
    assert (again.getPredictionCol(), again.uid) == ("answer", made.uid)
    with pytest.raises(ParamError, match="predictBatchSize must be"):
        again.setPredictBatchSize(0)


def test_the_model_can_be_given_by_position():
    def make():
        raise NotImplementedError

    assert KerasEstimator(make).getModel() is make
    with pytest.raises(ParamError, match="given twice"):
        KerasEstimator(make, model=make)


@pytest.mark.parametrize(
    ("name", "expected"),
    [
        ("num_proc", "did you mean clusterSize?"),
        ("num_workers", "did you mean clusterSize?"),
        ("custom_objects", "did you mean customObjects?"),
        ("outputCol", "did you mean predictionCol?"),
        ("inputCols", "did you mean inputMapping?"),
        ("batch_size", "did you mean batchSize or predictBatchSize?"),
        ("metrics", "pass it to model.compile(metrics=...)"),
        ("steps_per_epoch", "an epoch has all rows"),
        ("store", "modelDir"),
    ],
)
def test_the_words_of_other_libraries_lead_to_ours(name, expected):
    with pytest.raises(ParamError) as caught:
        KerasEstimator(**{name: 1})
    assert expected in str(caught.value).split("Known:")[0]


def test_a_model_tells_what_it_is():
    assert repr(TFModel()).endswith(", no SavedModel)")
    assert "exportDir='s3://***@bucket/model'" in repr(TFModel(exportDir="s3://key:word@bucket/model"))

    model = TFModel()
    model._archives[None] = Archive(LocalFile.of(packed_signature()))
    model._summary = TrainingSummary({}, 1500, 0, 0, 12.34, [])
    assert repr(model) == (
        f"TFModel({model.uid}, inputs={{features: float32(batch, 4)}}, outputs={{dense: float32(batch, 3)}}, "
        "0.0102 MB, fitted on 1,500 rows in 12.3 s)"
    )
    assert str(model.uid) in str([model])


def packed_signature():
    tensors = [{"dtype": "float32", "shape": [None, width], "ragged": False} for width in (4, 3)]
    signature = {"serving_default": {"inputs": {"features": tensors[0]}, "outputs": {"dense": tensors[1]}}}
    content, file = json.dumps(signature).encode(), io.BytesIO()
    with tarfile.open(fileobj=file, mode="w") as tar:
        member = tarfile.TarInfo(SIGNATURE_FILE)
        member.size = len(content)
        tar.addfile(member, io.BytesIO(content))
    return file.getvalue()
