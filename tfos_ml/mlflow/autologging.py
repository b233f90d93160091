"""``autolog``: logs fits to MLflow automatically."""

from __future__ import annotations

import functools
import sys
import time
from collections.abc import Mapping
from typing import TYPE_CHECKING, Any

from mlflow import MlflowClient
from mlflow.entities import Metric

from tfos_ml import errors
from tfos_ml.mlflow import run_facts, tracking_server
from tfos_ml.mlflow.fit_run import AutologOptions, FitRun
from tfos_ml.mlflow.run_choice import NOBODY, Run, Runs
from tfos_ml.stages import fit_listener
from tfos_ml.stages.fit_listener import FitListener, Listening

if TYPE_CHECKING:
    from pyspark.sql import DataFrame

    from tfos_ml.stages.cluster_estimator import ClusterEstimator
    from tfos_ml.stages.tf_model import TFModel

_UNNAMED = "dataset"


def autolog(
    *,
    log_models: bool = True,
    log_input_examples: bool = True,
    log_datasets: bool = True,
    log_system_metrics: bool = False,
    log_every_n_epoch: int = 1,
    registered_model_name: str | None = None,
    exclusive: bool = False,
    disable: bool = False,
    extra_tags: Mapping[str, str] | None = None,
) -> None:
    """Log every following fit of ``TFEstimator`` and ``KerasEstimator`` to MLflow.

    A fit is logged to the active run, to a child run if the active run already has a fit, or to a new run.
    ``CrossValidator``, ``TrainValidationSplit`` and ``OptunaSearch`` make one run with a child run for each fit. Only
    the model of the last fit, with the best Params on all rows, is logged. Child runs of a grid have the Params
    ``fold`` and ``candidate`` (the number of the param map), and the evaluator's metric as ``search/name``. Their
    parent has its average for each candidate (step = candidate). A run has

    - Params by name, and your own arguments as ``modelArgs.name`` and ``tfArgs.name``. The values of ``nodeEnv``, and
      values whose names look like secrets, are not logged;
    - metrics by epoch (step = epoch, from 0), while the job runs. The chief sends them to the driver, and the driver
      sends them to MLflow, so executors need no credentials. On Spark Connect they are logged at the end, with the
      time of the measurement;
    - tags: the estimator, the number of nodes by role, versions;
    - the dataset, with the numbers of training and validation rows;
    - the model (flavor ``tfos_ml``) with signature and input example. If the estimator is a stage of a ``Pipeline``,
      also the whole ``PipelineModel`` (name ``pipeline``, Spark's flavor; not on Spark Connect);
    - what ``model.evaluate(test)`` returns, as ``loss_test``, after the variable that has the DataFrame;
    - if the fit fails, the cause: status FAILED, or KILLED if it was canceled; tag ``tfos_ml.error``, artifact
      ``error.txt``.

    If MLflow does not answer, the fit continues and one warning is logged.

    Parameters
    ----------
    log_models : bool, default True
        Whether to log models.
    log_input_examples : bool, default True
        Whether to log the input example of the model: five rows of the features.
    log_datasets : bool, default True
        Whether to log datasets.
    log_system_metrics : bool, default False
        Whether every node reports the CPU, memory, disk, network and GPU usage of its host, such as
        ``system/worker_0/cpu_utilization_percentage``, every 10 s or every
        ``MLFLOW_SYSTEM_METRICS_SAMPLING_INTERVAL`` seconds.
    log_every_n_epoch : int, default 1
        Log metrics of every n-th epoch, and of the last epoch.
    registered_model_name : str, optional
        Name under which to register the model: the ``PipelineModel`` of a ``Pipeline``, except on Spark Connect.
    exclusive : bool, default False
        Whether to skip fits within a run that you have started.
    disable : bool, default False
        Whether to stop logging.
    extra_tags : dict of str to str, optional
        Tags for the runs that are started for fits.

    Raises
    ------
    ParamError
        If an argument has a wrong value.

    Notes
    -----
    You can also use ``mlflow.pyspark.ml.autolog``; nothing is logged twice. MLflow then starts the run and logs the
    dataset. After a search, it adds its own child runs: one for each param map, with the average metric.

    Examples
    --------
    >>> import mlflow, tfos_ml.mlflow                                       # doctest: +SKIP
    >>> mlflow.set_experiment("digits")
    >>> tfos_ml.mlflow.autolog(log_system_metrics=True)
    >>> model = estimator.fit(df)
    >>> tfos_ml.mlflow.autolog(disable=True)
    """
    if not isinstance(log_every_n_epoch, int) or isinstance(log_every_n_epoch, bool) or log_every_n_epoch < 1:
        raise errors.ParamError(f"log_every_n_epoch must be an integer of at least 1. Received: {log_every_n_epoch!r}")
    from tfos_ml.mlflow.pipelines import follow_pipelines, leave_pipelines
    from tfos_ml.mlflow.searching import follow_searches, leave_searches

    if disable:
        fit_listener.current = Listening()
        leave_searches()
        leave_pipelines()
        return
    options = AutologOptions(
        log_models=log_models,
        log_input_examples=log_input_examples,
        log_datasets=log_datasets,
        log_system_metrics=log_system_metrics,
        log_every_n_epoch=log_every_n_epoch,
        registered_model_name=registered_model_name,
        extra_tags=extra_tags,
    )
    runs = Runs(exclusive)
    fit_listener.current = _Tracking(options, runs)
    follow_searches(runs)
    follow_pipelines()


class _Tracking(Listening):
    """Opens a run for each fit."""

    def __init__(self, options: AutologOptions, runs: Runs):
        self._options = options
        self._runs = runs

    def begin(self, estimator: ClusterEstimator, dataset: DataFrame) -> FitListener:
        if estimator._parent_run is NOBODY:
            return FitListener()
        runs: list[Run | None] = []
        tracking_server.attempt(
            lambda: runs.append(self._runs.open(estimator._parent_run)),
            "cannot start a run for this fit: %s. The fit continues; its metrics are in the model's history.",
        )
        run = runs[0] if runs else None
        return FitListener() if run is None else FitRun(self._options, run, estimator, dataset, self._runs)

    def evaluated(self, model: TFModel, dataset: DataFrame, metrics: Mapping[str, float]) -> None:
        run = self._runs.of_models.get(model.uid)
        if run is not None:
            log = functools.partial(_log_evaluation, run, dataset, metrics)
            tracking_server.attempt(log, "cannot log the evaluation: %s. Its result is returned.")


def _log_evaluation(run: Run, dataset: Any, metrics: Mapping[str, float]) -> None:
    """Log metrics of a dataset, each with the name of the caller's variable, as autologging of scikit-learn does.

    A second evaluation under the same name is the next step.
    """
    client, now, suffix = MlflowClient(run.tracking_uri), int(time.time() * 1000), _variable_of(dataset)
    for metric, value in metrics.items():
        name = run_facts.metric_name(f"{metric}_{suffix}")
        step = len(client.get_metric_history(run.run_id, name))
        client.log_batch(run.run_id, metrics=[Metric(name, value, now, step)])


def _variable_of(value: Any) -> str:
    """The name of a variable outside of tfos_ml that has a value, seen from here; ``dataset`` if there is none."""
    frame = sys._getframe(1)
    while frame is not None and frame.f_globals.get("__name__", "").startswith("tfos_ml"):
        frame = frame.f_back  # type: ignore[assignment]
    names = [name for name, held in frame.f_locals.items() if held is value] if frame is not None else []
    return names[0] if names else _UNNAMED
