"""What is told to MLflow of a fit, and what is kept from it."""

from __future__ import annotations

import pytest

from tfos_ml import KerasEstimator, TFEstimator, errors


@pytest.fixture(scope="module")
def run_facts():
    """MLflow takes seconds to import, which processes that run other tests need not."""
    from tfos_ml.mlflow import run_facts

    return run_facts


def test_defaults_of_the_machinery_are_no_params(run_facts):
    """Red before: 27 Params, feedTimeout among them."""
    assert run_facts.params_of(KerasEstimator(shuffle=False)) == {
        "clusterSize": "1",
        "epochs": "1",
        "batchSize": "100",
        "shuffle": "False",
    }


def test_secrets_are_not_logged(run_facts):
    for name in ("db_PASSWD", "PGPWD", "hf_token", "apiKey", "access.key", "credentials"):
        estimator = TFEstimator(tfArgs={name: "hunter2"}, nodeEnv={"HF_HOME": "hunter2", name: "hunter2"})
        params = run_facts.params_of(estimator)
        assert params[f"tfArgs.{name}"] == "(not logged)"
        assert params["nodeEnv"] == str(sorted(["HF_HOME", name]))
        assert "hunter2" not in str(params)


def takes(kind, name, value):
    try:
        kind(**{name: value})
    except errors.TfosMlError:
        return False
    return True


@pytest.mark.parametrize("kind", [KerasEstimator, TFEstimator])
def test_no_param_that_takes_a_uri_is_told_with_its_password(run_facts, kind):
    uri = "abfss://user:hunter2@store/x?sig=hunter2"
    forms = (uri, {"a": uri}, [uri])
    values = [(p.name, value) for p in kind().params for value in forms if takes(kind, p.name, value)]
    assert len(values) > 10
    for name, value in values:
        assert "hunter2" not in str(run_facts.params_of(kind(**{name: value}))), name
    location = {"modelDir": "s3://key:hunter2@bucket/models?region=x"}
    assert run_facts.params_of(kind(**location))["modelDir"] == "s3://bucket/models?region=x"


def test_metric_names_are_in_the_characters_that_mlflow_takes(run_facts):
    assert [run_facts.metric_name(name) for name in ("top-5 @ 1", "f1/macro")] == ["top-5 _ 1", "f1/macro"]


def raised(message):
    try:
        raise OSError(message)
    except OSError as error:
        return error


def test_errors_tell_no_secret(run_facts):
    environment = {"MY_TOKEN": "hunter2", "HF_HOME": "/homes/hf", "DEPTH": "1"}
    error = raised("s3://key:wordpass@bucket/1 of /homes/hf: 401 for hunter2")
    assert run_facts.error_summary(error, environment) == "OSError: s3://***@bucket/1 of ***: 401 for ***"
    text = run_facts.error_text(error, environment)
    assert text.startswith("Traceback (most recent call last)")
    assert text.endswith("OSError: s3://***@bucket/1 of ***: 401 for ***\n")
