"""``OptunaSearch``: trials are fits, which end when they are pruned; a search goes on where it was interrupted."""

from __future__ import annotations

import pytest
from conftest import jobs_of, seconds
from pyspark.ml import Pipeline, PipelineModel
from pyspark.ml.evaluation import RegressionEvaluator
from pyspark.ml.feature import VectorAssembler
from pyspark.sql import functions as F
from tracking import logged, models_of, runs_of, series

from tfos_ml import KerasEstimator, errors

optuna = pytest.importorskip("optuna")  # which sessions of other versions lack
from optuna.distributions import CategoricalDistribution, FloatDistribution  # noqa: E402

from tfos_ml.tuning import OptunaSearch, OptunaSearchModel  # noqa: E402

LONG = 5000  # epochs of a fit that only its pruner ends within the time of a test
pytestmark = pytest.mark.filterwarnings("ignore::optuna.exceptions.ExperimentalWarning")


@pytest.fixture(scope="module", autouse=True)
def quiet():
    """Keras on the driver, which changes the environment; and Optuna without a line for each trial."""
    import keras  # noqa: F401

    level = optuna.logging.get_verbosity()
    optuna.logging.set_verbosity(optuna.logging.WARNING)
    yield
    optuna.logging.set_verbosity(level)


def line(rate=0.1):
    """A straight line; a rate of 0 learns nothing, and a negative one is an error."""
    import keras

    if rate < 0:
        raise ValueError("a rate below 0")
    keras.utils.set_random_seed(1)
    model = keras.Sequential([keras.layers.Input((1,)), keras.layers.Dense(1, kernel_initializer="zeros")])
    model.compile(keras.optimizers.SGD(rate), "mse")
    return model


def rows(spark):
    number = F.col("id")
    return spark.range(0, 120, 1, 2).select("id", (number / 120).alias("x"), (number / 60 + 1).alias("label"))


def pipeline(**params):
    assembler = VectorAssembler(inputCols=["x"], outputCol="features")
    return Pipeline(stages=[assembler, KerasEstimator(model=line, batchSize=32, seed=1, verbose=0, **params)])


def rates(keras):
    """A space in which fits whose rate is 0 are long."""

    def space(trial):
        rate = trial.suggest_float("rate", -1, 1)
        return {"rate": rate, keras.epochs: 3 if rate else LONG}

    return space


def search(estimator, **params):
    """Four trials: one that fails, one that learns nothing, and two that are good."""
    sampler = optuna.samplers.GridSampler({"rate": [-1.0, 0.0, 0.05, 0.2]}, seed=0)
    pruner = optuna.pruners.ThresholdPruner(upper=4.0)
    given = {"space": rates(estimator.getStages()[-1]), "metric": "val_loss", "trainRatio": 0.75, "seed": 3}
    return OptunaSearch(estimator=estimator, pruner=pruner, **{**given, "sampler": sampler, **params})


def test_a_search_prunes_goes_on_from_its_storage_and_is_saved(spark, tmp_path):
    df = rows(spark)
    stored = {"storage": f"sqlite:///{tmp_path}/study.db", "studyName": "line"}
    study = optuna.create_study(storage=stored["storage"], study_name="line", direction="minimize")
    known = {"rate": FloatDistribution(-1, 1)}
    study.add_trial(optuna.trial.create_trial(params={"rate": 0.05}, distributions=known, value=9.0))
    for rate in (0.0, -1.0, 0.2):
        study.enqueue_trial({"rate": rate})
    study.ask(known)  # by a program that has ended since

    estimator = pipeline(cacheDir=f"{tmp_path}/rows")
    search(estimator, **stored, sampler=None, numTrials=4).write().save(f"{tmp_path}/search")
    model = Pipeline(stages=[OptunaSearch.load(f"{tmp_path}/search")]).fit(df).stages[0]
    done, interrupted, failed, best, pruned = model.trials
    assert [trial["params"]["rate"] for trial in model.trials] == [0.05, 0.0, -1.0, 0.2, 0.0]
    states = [trial["state"] for trial in (done, interrupted, failed, best, pruned)]
    assert states == ["COMPLETE", "FAIL", "FAIL", "COMPLETE", "PRUNED"]
    assert (done["value"], interrupted["error"]) == (9.0, None)
    assert "ValueError: a rate below 0" in failed["error"]
    assert list(pruned["epochs"]) == ["0"]
    assert pruned["epochs"]["0"] > 4
    assert 0 < pruned["prune_seconds"] <= seconds(2)
    assert best["value"] == best["epochs"]["2"] < 4
    assert (model.study["best_value"], model.study["best_params"]) == (best["value"], {"rate": 0.2})
    assert isinstance(model.bestModel, PipelineModel)
    assert list(model.bestModel.stages[-1].summary.history) == ["loss"]  # of all rows
    assert not list(tmp_path.glob("rows/search-*"))

    PipelineModel(stages=[model]).write().save(f"{tmp_path}/model")
    again = PipelineModel.load(f"{tmp_path}/model").stages[0]
    assert isinstance(again, OptunaSearchModel)
    assert (again.study, again.trials) == (model.study, model.trials)
    assert again.transform(df).select("prediction").collect() == model.transform(df).select("prediction").collect()


def test_wrong_searches_are_typed_errors_before_any_job(spark):
    df, keras = rows(spark), KerasEstimator(model=line, verbose=0)
    before = jobs_of(spark)
    space = {"rate": FloatDistribution(0.1, 0.2)}
    for params, message in (
        ({"space": space}, "Set either metric"),
        ({"space": space, "metric": "val_ours"}, "Set direction"),
        ({"space": space, "evaluator": RegressionEvaluator()}, "An evaluator needs validation rows"),
        ({"space": space, "metric": "loss", "trainRatio": 0.5, "numFolds": 3}, "trainRatio=0.5 is one"),
        ({"space": space, "metric": "loss", "storage": "sqlite:///:memory:"}, "storage needs studyName"),
        ({"space": {"rate": 0.1}, "metric": "loss"}, "space must have distributions"),
        ({"space": space, "metric": "loss", "foldCol": "x", "numFolds": 2}, "'x' of foldCol has the type float64"),
    ):
        with pytest.raises(errors.InvalidInputError, match=message):
            OptunaSearch(estimator=keras, **params).fit(df)
    wrong = OptunaSearch(estimator=keras, space={"epochs": CategoricalDistribution([1])}, metric="loss", numTrials=2)
    with pytest.raises(errors.ParamError, match=r"Give the Params: estimator\.epochs"):
        wrong.fit(df)
    assert jobs_of(spark) == before


@pytest.mark.chaos
def test_a_search_is_one_mlflow_run_with_a_child_for_each_trial(spark, tmp_path):
    with logged(f"sqlite:///{tmp_path}/runs.db", "search") as client:
        model = search(pipeline(), numTrials=4).fit(rows(spark))
        parent, *children = runs_of(client, "search")
        assert parent.data.tags["estimator_name"] == "OptunaSearch"
        assert parent.data.params["numTrials"] == "4"
        assert parent.data.params["best_rate"] == "0.2"
        values = {t["number"]: t["value"] for t in model.trials if t["state"] == "COMPLETE"}
        assert dict(series(client, parent, "search/val_loss")) == pytest.approx(values)
        assert {child.data.tags["mlflow.parentRunId"] for child in children} == {parent.info.run_id}
        status = sorted(child.info.status for child in children)
        assert status == ["FAILED", "FINISHED", "FINISHED", "FINISHED", "KILLED"]  # with the fit on all rows
        with_model = [child for child in children if models_of(client, child)]
        assert [child.data.params["modelArgs.rate"] for child in with_model] == ["0.2"]
