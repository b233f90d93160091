"""Logs one fit to one MLflow run."""

from __future__ import annotations

import functools
import logging
import os
from collections import Counter
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from typing import TYPE_CHECKING, Any

import pyarrow as pa
from mlflow import MlflowClient
from mlflow.entities import DatasetInput, InputTag, Metric, Param, RunTag
from mlflow.utils.mlflow_tags import MLFLOW_AUTOLOGGING, MLFLOW_DATASET_CONTEXT

from tfos_ml import errors
from tfos_ml.common.timeouts import SYSTEM_METRICS_SECONDS
from tfos_ml.data.arrow import to_storage
from tfos_ml.mlflow import flavor, pipelines, run_facts, versions
from tfos_ml.mlflow.run_choice import Run, Runs
from tfos_ml.mlflow.signature import model_signature
from tfos_ml.mlflow.writer import Writer
from tfos_ml.protocol.messages import Report
from tfos_ml.protocol.node_task import Telemetry
from tfos_ml.stages.fit_listener import FitListener
from tfos_ml.stages.tf_model import scoring_at

if TYPE_CHECKING:
    from pyspark.ml import PipelineModel
    from pyspark.sql import DataFrame

    from tfos_ml.data.schema import ColumnSpec
    from tfos_ml.driver.attempt import RunResult
    from tfos_ml.keras.model.overview import ModelOverview
    from tfos_ml.stages.cluster_estimator import ClusterEstimator
    from tfos_ml.stages.tf_model import TFModel

logger = logging.getLogger("tfos_ml.mlflow")
EXAMPLE_ROWS = 5
ERROR_FILE, SUMMARY_FILE, TIMELINE_FILE = "error.txt", "model_summary.txt", "timeline.json"
ERROR_TAG, ERROR_TAG_CHARACTERS = "tfos_ml.error", 5000  # MLflow's limit
DATASET_CONTEXT = "train"


@dataclass(frozen=True)
class AutologOptions:
    """Arguments of :func:`tfos_ml.mlflow.autolog`, with the same names."""

    log_models: bool = True
    log_input_examples: bool = True
    log_datasets: bool = True
    log_system_metrics: bool = False
    log_every_n_epoch: int = 1
    registered_model_name: str | None = None
    extra_tags: Mapping[str, str] | None = None


def _never_raises(method: Callable[..., None]) -> Callable[..., None]:
    """Wrap a method of a listener so that errors are logged and do not fail the fit."""

    @functools.wraps(method)
    def safe(self: FitRun, *args: Any) -> None:
        try:
            method(self, *args)
        except Exception as error:
            logger.warning("MLflow run %s is not complete: %s", self._run.run_id, run_facts.error_text(error, {}))

    return safe


class FitRun(FitListener):
    """Logs a fit while it runs."""

    def __init__(self, options: AutologOptions, run: Run, estimator: ClusterEstimator, dataset: DataFrame, runs: Runs):
        self._options = options
        self._run = run
        self._runs = runs
        self._registers_pipeline = pipelines.is_within(dataset)
        self._client = MlflowClient(run.tracking_uri)
        self._dataset = dataset
        self._estimator = estimator
        self._writer = Writer(self._client, run.run_id)
        self._logged_step = 0  # the last one
        self._last_epoch = -1  # the newest one reported
        self._not_due: list[Report] = []  # of that epoch, which are logged only if it is the last one
        self._counts: Counter[str] = Counter()
        self._result: RunResult | None = None
        self._has_overview = False
        self.telemetry = self._telemetry()
        self._writer.attempt(self._log_start)

    def _telemetry(self) -> Telemetry:
        telemetry = Telemetry()
        if self._options.log_models and self._options.log_input_examples and self._run.keeps_model:
            telemetry = replace(telemetry, example_rows=EXAMPLE_ROWS)
        if self._options.log_system_metrics:
            interval = os.environ.get("MLFLOW_SYSTEM_METRICS_SAMPLING_INTERVAL")
            seconds = float(interval) if interval else SYSTEM_METRICS_SECONDS
            telemetry = replace(telemetry, system_metrics=seconds)
        return telemetry

    def _log_start(self) -> None:
        params = self._new_params(run_facts.params_of(self._estimator))
        tags = {MLFLOW_AUTOLOGGING: flavor.FLAVOR_NAME, **(self._options.extra_tags or {})} if self._run.is_own else {}
        tags.update(run_facts.tags_of(self._estimator))
        self._client.log_batch(
            self._run.run_id, params=params, tags=[RunTag(name, str(value)) for name, value in tags.items()]
        )

    def _new_params(self, params: Mapping[str, str]) -> list[Param]:
        """Leave out Params that the user has already logged to the run."""
        known = {} if self._run.is_own else self._client.get_run(self._run.run_id).data.params
        return [Param(name, value) for name, value in params.items() if name not in known]

    # While the job runs

    def _write_overview(self) -> None:
        """Log the summary and settings of a Keras model, once."""
        describe = getattr(self._estimator, "_describe", None)
        if describe is not None and not self._has_overview:
            self._has_overview = True
            self._writer.do(lambda: self._log_overview(describe(self._dataset.sparkSession).overview))

    def _log_overview(self, overview: ModelOverview) -> None:
        self._client.log_batch(self._run.run_id, params=self._new_params(overview.settings))
        self._client.log_text(self._run.run_id, overview.summary, SUMMARY_FILE)

    @_never_raises
    def reported(self, reports: Sequence[Report]) -> None:
        """Log new metrics; see :class:`FitListener`."""
        self._write_overview()
        for report in reports:
            if report.epoch is None or (report.epoch + 1) % self._options.log_every_n_epoch == 0:
                self._writer.write(self._metrics(report))
            else:
                self._not_due.append(report)
            self._last_epoch = max(self._last_epoch, -1 if report.epoch is None else report.epoch)
            self._not_due = [held for held in self._not_due if held.epoch == self._last_epoch]

    def _metrics(self, report: Report) -> list[Metric]:
        """The metrics of a report; their step is the epoch, or else the step, or else the number of earlier values."""
        prefix = "eval_" if report.label.startswith("evaluator") and not report.system else ""
        step = report.step if report.epoch is None else report.epoch
        metrics = []
        for short, value in report.metrics.items():
            name = run_facts.metric_name(f"{prefix}{short}")
            metrics.append(Metric(name, value, int(report.time * 1000), self._counts[name] if step is None else step))
            self._counts[name] += 1
        if not report.system:
            self._logged_step = max([self._logged_step, *(metric.step for metric in metrics)])
        return metrics

    # At the end

    @_never_raises
    def trained(self, result: RunResult) -> None:
        """Log the last epoch, though it may not be due; see :class:`FitListener`."""
        self._write_overview()
        self._result = result
        for report in self._not_due:
            self._writer.write(self._metrics(report))

    @_never_raises
    def fitted(self, model: TFModel) -> None:
        """Log the dataset and the model, and end the run; see :class:`FitListener`."""
        self._writer.close()
        self._runs.of_models[model.uid] = self._run
        timeline = model.summary.timeline
        self._writer.attempt(lambda: self._client.log_dict(self._run.run_id, timeline, TIMELINE_FILE))
        if self._options.log_datasets:
            self._writer.attempt(self._log_dataset)
        if self._options.log_models and self._run.keeps_model:
            self._writer.attempt(lambda: self._log_model(model))
        self._end("FINISHED")

    @_never_raises
    def _log_pipeline(self, model: PipelineModel) -> None:
        """Log the pipeline of which the fitted model is a stage."""
        name = self._options.registered_model_name if self._registers_pipeline else None
        log = functools.partial(pipelines.log_pipeline, step=self._logged_step, registered=name)
        self._writer.attempt(lambda: log(self._run.run_id, model, self._dataset.sparkSession))

    @_never_raises
    def failed(self, error: BaseException) -> None:
        """Log the error, and end the run; see :class:`FitListener`."""
        if isinstance(error, errors.NodeError):  # so the job had started
            self._write_overview()
        self._writer.close()
        was_canceled = not isinstance(error, Exception) or isinstance(error, errors.FitCancelledError)
        self._writer.attempt(lambda: self._log_error(error))
        self._end("KILLED" if was_canceled else "FAILED")

    def _end(self, status: str) -> None:
        try:
            self._run.end(status, is_down=self._writer.is_down)
        except Exception:
            logger.debug("Run %s could not be ended", self._run.run_id, exc_info=True)  # the writer has already warned

    def _log_error(self, error: BaseException) -> None:
        environment = self._estimator.getNodeEnv()
        summary = run_facts.error_summary(error, environment)
        self._client.set_tag(self._run.run_id, ERROR_TAG, summary[:ERROR_TAG_CHARACTERS])
        self._client.log_text(self._run.run_id, run_facts.error_text(error, environment), ERROR_FILE)

    def _log_dataset(self) -> None:
        assert self._result is not None
        inputs = self._client.get_run(self._run.run_id).inputs if not self._run.is_own else None
        for known in inputs.dataset_inputs if inputs is not None else ():
            if any(tag.key == MLFLOW_DATASET_CONTEXT and tag.value == DATASET_CONTEXT for tag in known.tags):
                return  # logged by the user or by mlflow.pyspark.ml.autolog
        rows = {
            "num_rows": sum(r["rows"] for r in self._result.reports),
            "num_validation_rows": sum(r["validation_rows"] for r in self._result.reports),
        }
        dataset = run_facts.FittedDataset(self._dataset, rows)
        tags = [InputTag(MLFLOW_DATASET_CONTEXT, DATASET_CONTEXT)]
        self._client.log_inputs(self._run.run_id, [DatasetInput(dataset._to_mlflow_entity(), tags)])

    def _log_model(self, model: TFModel) -> None:
        columns = {spec.column: spec for spec in self._feed_columns()}
        try:
            flavor.log_model(
                model,
                "model",
                run_id=self._run.run_id,
                **versions.at_step(self._logged_step),
                signature=model_signature(scoring_at(model, Path()), columns),
                input_example=self._example(),
                registered_model_name=None if self._registers_pipeline else self._options.registered_model_name,
                validate_serving_input=False,  # or the driver would load TensorFlow and the model
            )
            pipelines.add_logger(self._log_pipeline)
        except errors.NothingExportedError:
            logger.debug("No model is logged, because trainFn has exported none")

    def _feed_columns(self) -> Sequence[ColumnSpec]:
        return self._estimator._feed_schema(self._dataset.schema).columns

    def _example(self) -> Any:
        """The input example that the nodes have sent, by column."""
        if self._result is None or self._result.example is None:
            return None
        rows = pa.ipc.open_stream(self._result.example).read_all()
        columns = [spec.column for spec in self._feed_columns()]
        return {
            columns[int(name[1:])]: to_storage(rows.column(name).combine_chunks()).to_pylist()
            for name in rows.column_names
        }
