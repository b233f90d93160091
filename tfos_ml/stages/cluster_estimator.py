"""The common part of both estimators: columns and Params -> one barrier job -> a TFModel."""

from __future__ import annotations

import uuid
import weakref
from abc import abstractmethod
from collections.abc import Iterator, Mapping, Sequence
from contextlib import ExitStack
from dataclasses import dataclass, field, replace
from typing import TYPE_CHECKING, Any, NamedTuple

from pyspark.ml import Estimator

from tfos_ml import errors
from tfos_ml.common import filesystems
from tfos_ml.common.arguments import check_not_streaming
from tfos_ml.common.hadoop import pyarrow_uri
from tfos_ml.common.local_files import LocalFile
from tfos_ml.common.redact import redact
from tfos_ml.common.sessions import is_connect, is_local
from tfos_ml.common.timeline import Timeline, line
from tfos_ml.common.tracebacks import concise
from tfos_ml.common.user_warnings import warn
from tfos_ml.data import schema
from tfos_ml.data.snapshot_layout import SnapshotRows
from tfos_ml.data.validation_draw import ValidationDraw
from tfos_ml.driver.attempt import RunResult
from tfos_ml.driver.executor_check import check_executors
from tfos_ml.driver.fit_job import launch
from tfos_ml.driver.progress import write_lines
from tfos_ml.driver.resources import make_profile
from tfos_ml.driver.session_facts import SessionFacts, node_settings
from tfos_ml.driver.snapshot import WrittenSnapshot, delete_snapshot
from tfos_ml.inference.publishing import check_destination, check_log_dir
from tfos_ml.protocol.artifacts import publish
from tfos_ml.protocol.cluster_template import ClusterTemplate, make_template
from tfos_ml.protocol.node_task import NodeSettings, NodeTask
from tfos_ml.protocol.paths import is_remote
from tfos_ml.stages import fit_listener
from tfos_ml.stages.fit_listener import FitListener
from tfos_ml.stages.fit_outcome import timeline_of, warn_of_outcome
from tfos_ml.stages.input_mode import InputMode
from tfos_ml.stages.input_rows import InputRows, feed_schema, files_to_read
from tfos_ml.stages.params import TrainingParams
from tfos_ml.stages.persistence import Saveable
from tfos_ml.stages.tf_model import TFModel

if TYPE_CHECKING:
    from pyspark.ml.param import Param
    from pyspark.sql import DataFrame, SparkSession
    from pyspark.sql.types import StructType


@dataclass(frozen=True)
class Program:
    """What runs on the nodes: the pickled function and arguments, and large files that it reads, by name."""

    payload: bytes
    files: Mapping[str, LocalFile] = field(default_factory=dict)


class FitSession(NamedTuple):
    """What a fit asks of its session: settings, the roles of its nodes, and the resources of each."""

    facts: SessionFacts
    template: ClusterTemplate
    profile: Any


class ClusterEstimator(TrainingParams, Estimator[TFModel], Saveable):
    """An estimator that trains on a cluster of TensorFlow nodes."""

    _parent_run: Any = None
    """The MLflow run that is the parent of this estimator's fits, if ``tfos_ml.mlflow`` has set one; copies keep it."""

    _watch: Any = None
    """Called with the reports of a fit's nodes while it runs, if a search has set it; ends the fit by raising."""

    @concise
    def _fit(self, dataset: DataFrame) -> TFModel:
        check_not_streaming(dataset, f"{type(self).__name__}.fit")
        listener = fit_listener.current.begin(self, dataset)
        try:
            model = self._train(dataset, listener)
            listener.fitted(model)
        except BaseException as error:
            listener.failed(error)
            raise
        return model

    def _train(self, dataset: DataFrame, listener: FitListener) -> TFModel:
        timeline, spark = Timeline(), dataset.sparkSession
        session = self._check_settings(spark)
        columns, program = self._prepare(dataset)
        settings = replace(self._settings(dataset, session.facts), telemetry=listener.telemetry)
        timeline.end("checks")
        rows = self._rows(dataset, columns)
        written, snapshot = self._snapshot(rows, session)
        notice = "" if written is None else written.notice(dataset)
        if notice:
            warn(notice)
        if written is not None:
            timeline.end("snapshot")
        result = self._run(
            session,
            rows,
            program,
            settings,
            snapshot,
            verbose=self._get("verbose"),
            reported=[listener.reported, *([] if self._watch is None else [self._watch])],
            driver_program=program.payload if self._driver_nodes() else None,
        )
        timeline.end("run")
        assert result.template is not None
        warn_of_outcome(result, result.template)
        listener.trained(result)
        model = self._make_model(result, dataset.schema)
        timeline.end("model")
        if written is not None:
            model.summary.snapshot = written.summary()
            model.summary.warnings = [*model.summary.warnings, *filter(None, [notice])]
        model.summary.timeline = timeline_of(timeline.seconds, result)
        if self._get("verbose") > 1:
            write_lines([f"{type(self).__name__}.fit: {line(model.summary.timeline)}"])
        return model

    def _check_settings(self, spark: SparkSession) -> FitSession:
        """What a fit asks of its session, and its nodes; raises for what is wrong whatever the rows are."""
        self._check_params()
        if is_local(spark):
            check_executors(spark, 0)  # before anything that takes long
        least, most = self._get("minClusterSize"), self._get("clusterSize")
        template = self._template(most)
        if least and least > most:
            raise errors.ParamError(f"minClusterSize={least} is more than clusterSize={most}. Lower it.")
        if least:
            self._template(least)
        if self._driver_nodes() and is_connect(spark):
            raise errors.ClusterConfigError(
                "driverPSNodes=True needs a classic session: on Spark Connect the driver is not on this host. Unset it."
            )
        facts = SessionFacts.of(spark)
        self._check_directories(facts)
        return FitSession(facts, template, make_profile(spark, self._get("nodeCpus"), self._get("nodeGpus")))

    def _run(
        self,
        session: FitSession,
        rows: InputRows,
        program: Program,
        settings: NodeSettings,
        snapshot: SnapshotRows | None = None,
        **options: Any,
    ) -> RunResult:
        """Run the nodes of a fit, or of an evaluation, to their end; `options` are those of :func:`launch`."""
        spark, facts, export_dir = rows.df.sparkSession, session.facts, self._get("exportDir")
        task = NodeTask(
            run_id="",  # each attempt has its own, and its server
            template=session.template,
            schema=rows.columns,
            payload=publish(spark, program.payload),
            files={name: publish(spark, file) for name, file in program.files.items()},
            settings=settings,
            environment=self._environment(),
            reservation_timeout=self._get("reservationTimeout"),
            export_dir=pyarrow_uri(export_dir) if export_dir else None,
            control=None,
            snapshot=snapshot,
            lease=facts.lease,
            driver_nodes=self._driver_nodes(),
            grace_periods=facts.grace_periods,
        )
        return launch(
            spark,
            facts,
            lambda template: rows.by_node(template, task.driver_nodes, is_fed=snapshot is None),
            task,
            templates=self._template,
            min_nodes=self._get("minClusterSize"),
            profile=session.profile,
            max_restarts=self._get("maxRestarts"),
            **options,
        )

    @abstractmethod
    def _prepare(self, dataset: DataFrame) -> tuple[schema.FeedSchema, Program]:
        """The columns to feed, and what runs on the nodes; raises if one of them is wrong."""

    def transformSchema(self, schema: StructType) -> StructType:
        """Schema of ``transform`` of the fitted model, as far as it is known; raises if a column does not fit.

        Before ``trainFn`` has run, nobody knows what it will export.
        """
        self._check_params()
        self._feed_schema(schema)
        return schema

    def _environment(self) -> dict[str, str]:
        return dict(self._get("nodeEnv"))

    def _template(self, size: int) -> ClusterTemplate:
        """The roles of so many nodes; raises ``ParamError`` if they are too few."""
        return make_template(size, self._get("numPS") or 0, self._get("masterNode"), bool(self._get("evalNode")))

    def _driver_nodes(self) -> int:
        """How many parameter servers run on the host of the driver; they have the first ranks."""
        if not self._get("driverPSNodes"):
            return 0
        if not self._get("numPS"):
            raise errors.ParamError("driverPSNodes=True, but numPS=0: there are no parameter servers. Set numPS.")
        return int(self._get("numPS"))

    def _feed_schema(self, given: StructType) -> schema.FeedSchema:
        """The columns to feed, checked against the schema of the DataFrame."""
        if self._get("inputMode") == InputMode.TENSORFLOW:
            return schema.FeedSchema(())
        return feed_schema(self, given)

    def _check_directories(self, facts: SessionFacts) -> None:
        uri = self._get("exportDir")
        problem = check_destination(pyarrow_uri(uri)) if uri else None
        if problem:
            raise errors.DestinationError(
                f"exportDir={redact(uri)!r} cannot be published to: {problem}. Choose a new directory."
            )
        store = self._log_store(facts)
        if store:
            check_log_dir(store)

    def _log_store(self, facts: SessionFacts) -> str | None:
        """``logDir`` with the store's settings from Spark, if TensorFlow itself cannot write there."""
        given = self._get("logDir")
        path = facts.absolute_path(given) if given else ""
        return pyarrow_uri(path) if is_remote(path) else None

    def _settings(self, df: DataFrame, facts: SessionFacts) -> NodeSettings:
        return replace(
            facts.node_settings,
            epochs=self._get("epochs"),
            batch_size=self._get("batchSize"),
            shuffle=self._get("shuffle"),
            seed=self._get("seed"),
            pad_value=self._get("padValue"),
            communication=self._get("communication"),
            model_dir=self._get("modelDir"),
            log_dir=self._get("logDir"),
            log_store=self._log_store(facts),
            tensorboard=self._get("tensorboard"),
            signature_def_key=self._get("signatureDefKey"),
            files=files_to_read(df) if self._get("inputMode") == InputMode.TENSORFLOW else [],
            feed_timeout=self._get("feedTimeout"),
        )

    def _rows(self, df: DataFrame, columns: schema.FeedSchema) -> InputRows:
        """The rows of a DataFrame, with the columns to feed."""
        return InputRows(df, columns, self._validation_rule())

    def _snapshot(self, rows: InputRows, session: FitSession) -> tuple[WrittenSnapshot | None, SnapshotRows | None]:
        """The snapshot to read, and its columns, if ``cacheDir`` is set; raises ``SnapshotError``."""
        given = self._get("cacheDir")
        if not (given and rows.columns.columns):
            return None, None
        directory = session.facts.absolute_path(given)
        written, columns = rows.snapshot(directory, len(session.template.feed_ranks))
        if self._get("verbose") and not written.is_new:
            write_lines([f"{type(self).__name__}.fit: cacheDir={redact(given)!r} has {written}"])
        return written, columns

    def _validation_rule(self) -> str | ValidationDraw | None:
        """Selects the validation rows: a boolean column, or a draw; None if there are none."""
        indicator: str | None = self._get("validationIndicatorCol")
        return indicator

    def _make_model(self, result: RunResult, given: StructType) -> TFModel:
        model = TFModel._from_run(result, self._label_names(given))
        model._resetUid(self.uid)
        self._copyValues(model)
        return model

    def _label_names(self, given: StructType) -> list[str]:
        """Names of the classes, if a stage such as StringIndexer has stored them in the only label column."""
        labels = list(self._get("labelMapping") or [self._get("labelCol")])
        if len(labels) > 1 or labels[0] not in given.names:
            return []
        names: list[str] = given[labels[0]].metadata.get("ml_attr", {}).get("vals", [])
        return names

    def fitMultiple(
        self, dataset: DataFrame, paramMaps: Sequence[Mapping[Param[Any], Any]]
    ) -> Iterator[tuple[int, TFModel]]:
        """Fit a model for each param map, on rows that are computed once.

        Parameters
        ----------
        dataset : pyspark.sql.DataFrame
            The rows; persisted while the iterator exists, unless they are already. With ``cacheDir`` they are written
            to a directory in it instead, which is deleted then.
        paramMaps : sequence of dict
            Params by param.

        Returns
        -------
        iterator of tuple of int and TFModel
            Index of a param map and its model, in order of completion. Several threads may share it, as
            those of ``CrossValidator`` do.
        """
        check_not_streaming(dataset, f"{type(self).__name__}.fitMultiple")
        estimator, shared = self.copy(), ExitStack()
        level = dataset.storageLevel
        if self._get("inputMode") == InputMode.TENSORFLOW:
            pass  # the nodes read the files of this very plan
        elif self._get("cacheDir"):  # a search gives each of its folds to a call of its own
            estimator.setCacheDir(snapshot_of_search(self._get("cacheDir"), dataset.sparkSession, shared))
        elif not (level.useMemory or level.useDisk):
            dataset = dataset.persist()
            shared.callback(dataset.unpersist)
        models: Iterator[tuple[int, TFModel]] = Estimator.fitMultiple(estimator, dataset, list(map(dict, paramMaps)))
        weakref.finalize(models, shared.close).atexit = False  # Spark ends with the program, too
        return models


def snapshot_of_search(cache_dir: str, spark: SparkSession, shared: ExitStack) -> str:
    """A directory in ``cacheDir`` for the fits of a search on the same rows; `shared` deletes it when it is closed."""
    directory = filesystems.child_uri(cache_dir, f"search-{uuid.uuid4().hex[:12]}")
    shared.callback(delete_snapshot, pyarrow_uri(node_settings(spark).absolute_path(directory)))
    return directory


def cluster_estimators(estimator: Estimator[Any]) -> Iterator[ClusterEstimator]:
    """The estimators of tfos_ml within an estimator, a pipeline or a search."""
    if isinstance(estimator, ClusterEstimator):
        yield estimator
    for inner in getattr(estimator, "getStages", list)():
        yield from cluster_estimators(inner)
    if hasattr(estimator, "getEstimator"):
        yield from cluster_estimators(estimator.getEstimator())
