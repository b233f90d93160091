"""``TFModel``: a SavedModel as a Spark ML transformer."""

from __future__ import annotations

import dataclasses
import json
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Any

import numpy as np
import pyarrow as pa
from pyspark.ml import Model

from tfos_ml import errors
from tfos_ml.agent.scorer import make_udf_function
from tfos_ml.common.arguments import check_dataframe, check_not_streaming
from tfos_ml.common.hadoop import pyarrow_uri
from tfos_ml.common.interpreter import use_own_python
from tfos_ml.common.local_files import Content, bytes_of, file_of
from tfos_ml.common.redact import redact
from tfos_ml.common.tracebacks import concise
from tfos_ml.data import schema
from tfos_ml.data.attributes import check_vector_width
from tfos_ml.driver.session_facts import scoring_process
from tfos_ml.inference import arrow_udf, saved_model, udf
from tfos_ml.inference.appended_columns import AppendedColumns
from tfos_ml.inference.archive import Archive
from tfos_ml.inference.input_tensors import InputBinding
from tfos_ml.inference.local_scoring import numpy_of, score_rows
from tfos_ml.inference.prediction import PREDICTION_SPEC_FILE, PredictionSpec
from tfos_ml.inference.saved_model import Signature
from tfos_ml.protocol.artifacts import Artifact, publish, publish_for
from tfos_ml.stages import fit_listener
from tfos_ml.stages.evaluation_spec import EvaluationSpec, evaluate, named_params
from tfos_ml.stages.fit_outcome import history_of
from tfos_ml.stages.keywords import TFModelConstructor
from tfos_ml.stages.model_columns import input_mapping, output_columns
from tfos_ml.stages.model_repr import model_repr
from tfos_ml.stages.params import ClassifierParams
from tfos_ml.stages.params_base import document_params
from tfos_ml.stages.persistence import Saveable
from tfos_ml.stages.summary import TrainingSummary
from tfos_ml.worker.data_feed import RESULT_COLUMN

if TYPE_CHECKING:
    from pyspark.ml.param import Param
    from pyspark.sql import DataFrame, SparkSession
    from pyspark.sql.types import StructType

    from tfos_ml.driver.attempt import RunResult


MODEL_FILE, _RESULTS = "saved_model.tar", "results-"


@document_params
class TFModel(TFModelConstructor, ClassifierParams, Model, Saveable):
    """Runs a SavedModel over the rows of a DataFrame.

    ``fit`` of the estimators returns it. ``TFModel(exportDir=...)`` runs any SavedModel.

    Examples
    --------
    >>> model = TFModel(exportDir="/models/digits", featuresCol="pixels")   # doctest: +SKIP
    >>> model.transform(df).select("prediction")                            # doctest: +SKIP
    """

    __module__ = "tfos_ml"

    def _construct(self, given: dict[str, Any]) -> None:
        self._archives: dict[str | None, Archive] = {}  # the SavedModel, by exportDir; copies share it
        self._results: list[bytes] = []
        self._labels: tuple[str, ...] = ()
        self._tag_set = "serve"  # tags of the SavedModel, separated by commas; tfos_ml.compat sets others
        self._summary: TrainingSummary | None = None
        self._evaluation: EvaluationSpec | None = None  # for evaluate
        super()._construct(given)

    def __repr__(self) -> str:
        return model_repr(self)

    @classmethod
    def _from_run(cls, result: RunResult, label_names: Sequence[str]) -> TFModel:
        model = cls()
        model._labels = tuple(label_names)
        if result.model is not None:
            model._archives[None] = Archive(result.model)
        model._results = result.results
        model._summary = TrainingSummary._of_run(result, history_of(result.reports))
        return model

    @property
    def hasSummary(self) -> bool:
        """Whether the model comes from a fit, so that it has a summary."""
        return self._summary is not None

    @property
    def summary(self) -> TrainingSummary:
        """What the fit reported: history, rows, seconds, warnings and more.

        Raises
        ------
        NoSummaryError
            If the model comes from ``exportDir`` rather than from a fit.
        """
        if self._summary is None:
            raise errors.NoSummaryError(
                f"No training summary available for this {type(self).__name__}: it was made from a SavedModel, not by "
                "fit. Look at hasSummary first."
            )
        return self._summary

    @concise
    def _transform(self, dataset: DataFrame) -> DataFrame:
        check_dataframe(dataset, "TFModel.transform")
        self._check_params()
        use_own_python(dataset.sparkSession)
        archive = self._packed()
        signature = self._signature_of(archive)
        inputs = self._bind_inputs(signature, dataset.schema)
        outputs = self._bind_outputs(signature, archive, dataset.schema, dataset.sparkSession)
        if self._get("handleInvalid") == "skip":
            dataset = dataset.where(schema.no_nulls(dataset, inputs) & schema.all_finite(dataset, inputs))
        bindings = [InputBinding(s.column, s.name, signature.inputs[s.name]) for s in inputs]
        model = publish_for(dataset, archive.file)
        scoring = self._scoring(model, signature, bindings, outputs)
        columns = [schema.spark_column(spec, dataset) for spec in inputs]
        process = scoring_process(dataset.sparkSession, archive.file.size)
        return outputs.append(dataset, make_udf_function(scoring, process), columns)

    def _scoring(
        self,
        model: Artifact | Path,
        signature: Signature,
        inputs: Sequence[InputBinding],
        outputs: AppendedColumns,
    ) -> udf.ScoringSpec:
        wanted = self._get("outputMapping") or signature.outputs
        return udf.ScoringSpec(
            model=model,
            signature_key=self._get("signatureDefKey"),
            tag=self._tag_set,
            inputs=tuple(inputs),
            outputs={name: signature.outputs[name] for name in wanted},
            fields=outputs.types,
            names=outputs.names,
            batch_size=self._get("predictBatchSize"),
            handle_invalid=self._get("handleInvalid"),
            pad_value=self._get("padValue"),
            prediction_spec=outputs.prediction_spec,
            threshold=self._get("threshold"),
        )

    def transformSchema(self, schema: StructType) -> StructType:
        """Schema of ``transform`` for a DataFrame of this schema; raises as ``transform`` does."""
        from pyspark.sql.types import StructType

        archive = self._packed()
        signature = self._signature_of(archive)
        self._bind_inputs(signature, schema)
        return StructType([*schema.fields, *self._bind_outputs(signature, archive, schema).schema_fields()])

    def _bind_inputs(self, signature: Signature, columns: StructType) -> list[schema.ColumnSpec]:
        mapping = input_mapping(self, signature, columns.names)
        specs = [schema.column_spec(columns, column, tensor, "feature") for column, tensor in mapping.items()]
        for spec in specs:
            udf.check_binding(spec, signature.inputs[spec.name])
            check_vector_width(columns, spec, signature.inputs[spec.name])
        return specs

    def _bind_outputs(
        self, signature: Signature, archive: Archive, columns: StructType, spark: SparkSession | None = None
    ) -> AppendedColumns:
        content = archive.member(PREDICTION_SPEC_FILE)
        prediction_spec = None if content is None else PredictionSpec(**json.loads(content))
        return output_columns(self, signature.outputs, prediction_spec, columns, self._labels, spark)

    def signature(self) -> Signature:
        """Inputs and outputs of the SavedModel, by name, with dtype and shape."""
        return self._signature_of(self._packed())

    def _signature_of(self, archive: Archive) -> Signature:
        key = self._get("signatureDefKey")
        reason = archive.member(saved_model.REASON_FILE)
        if reason is not None:
            raise errors.NothingExportedError(reason.decode())
        content = archive.member(saved_model.SIGNATURE_FILE)
        known = None if content is None else saved_model.parse_signature(content, key)
        if known is not None:
            return known
        try:
            return saved_model.read_signature(archive.directory, key, self._tag_set)
        except errors.ModelError as error:  # of a copy
            path = redact(self._get("exportDir") or "this TFModel")
            raise errors.ModelError(str(error).replace(archive.directory, path)) from None

    def _packed(self) -> Archive:
        """The SavedModel as one tar file; fetched again only if sizes or times at ``exportDir`` have changed."""
        uri = self._get("exportDir")
        known = self._archives.get(uri)
        if known is not None and known.is_current():
            return known
        if uri is None:
            raise errors.NothingExportedError(
                "This TFModel has no SavedModel: on the chief, trainFn did not call ctx.export_saved_model(model). "
                "Call it at the end of the train function, or set exportDir to a SavedModel."
            )
        archive = Archive.fetch(pyarrow_uri(uri))
        for other in [name for name, kept in list(self._archives.items()) if kept.is_fetched]:
            self._archives.pop(other, None)
        self._archives[uri] = archive
        return archive

    def savedModelDir(self) -> str:
        """A local directory with the SavedModel, for as long as this object lives."""
        return self._packed().directory

    def predict(self, rows: Any) -> dict[str, np.ndarray[Any, Any]]:
        """Score rows in this process, without Spark. This imports TensorFlow.

        Parameters
        ----------
        rows : pandas.DataFrame, dict, list of Row, vector, array, list, or number
            Columns by name, as for ``transform``. For a single input also its values: one row (a vector of Spark ML,
            a list, an array) or a batch of rows. NaN in a pandas column of numbers is a null.

        Returns
        -------
        dict of str to numpy.ndarray
            The columns that ``transform`` appends, by name. The first dimension is the rows, also for one row. A row
            that ``handleInvalid="skip"`` would leave out gives NaN or None.

        Raises
        ------
        ShapeError, SignatureError, ColumnNotFoundError
            If the rows do not fit the model's inputs.
        NullValueError, NonFiniteValueError
            As in ``transform``.

        Examples
        --------
        >>> model.predict([0.1, 0.2, 0.3, 0.4])["prediction"]                # doctest: +SKIP
        >>> model.predict({"height": [1.7, 1.8], "weight": [60, 70]})       # doctest: +SKIP
        """
        scoring = scoring_at(self, Path(self._packed().directory))
        return {name: numpy_of(array) for name, array in score_rows(scoring, rows).items()}

    @concise
    def evaluate(
        self, dataset: DataFrame, params: Mapping[Param[Any], Any] | None = None, **keywords: Any
    ) -> dict[str, float]:
        """The loss and the metrics that the model was compiled with, over all rows, as of ``keras.Model.evaluate``.

        Nodes evaluate as they train: all take the rows of each batch together, in the order of the DataFrame, and the
        states of their metrics are added up. So the result is that of Keras in one process with
        ``batch_size=batchSize``, whatever the number of partitions and nodes.

        Parameters
        ----------
        dataset : pyspark.sql.DataFrame
            Rows with the columns of ``fit``: features, labels, and weights if the estimator has any.
        params : dict, optional
            A param map, as pyspark.ml's ``fit`` takes it: Params of ``KerasEstimator`` in place of those of the fit,
            such as columns (``labelCol``...), ``batchSize``, ``clusterSize`` and other Params of nodes.
        **keywords
            The same by name.

        Returns
        -------
        dict of str to float
            "loss", and the metrics by the names that Keras gives them.

        Raises
        ------
        ModelError
            If the model does not come from a fit of ``KerasEstimator``, or if metrics cannot be combined exactly.
        ParamError
            If a Param does not matter here, or has a wrong value.

        Examples
        --------
        >>> model = KerasEstimator(model=make_model, clusterSize=2).fit(training)      # doctest: +SKIP
        >>> model.evaluate(test)                                                       # doctest: +SKIP
        {'accuracy': 0.93, 'loss': 0.21}
        >>> model.evaluate(test, {estimator.clusterSize: 4})                           # doctest: +SKIP
        {'accuracy': 0.93, 'loss': 0.21}
        """
        check_not_streaming(dataset, "TFModel.evaluate")
        if self._evaluation is None:
            raise errors.ModelError(
                "This TFModel cannot evaluate: it has no loss and metrics, because it does not come from a fit of "
                "KerasEstimator (or it was loaded from MLflow or exportDir, which keep the SavedModel alone). Save a "
                "fitted model with model.save, or use an evaluator of pyspark.ml.evaluation on transform(df)."
            )
        given = {**named_params(params), **keywords}
        metrics = evaluate(self._evaluation.restored(self, given), self._packed(), dataset)
        fit_listener.current.evaluated(self, dataset, metrics)
        return metrics

    def _files(self) -> dict[str, Content]:
        files = {MODEL_FILE: self._packed().file} if self._archives or self._get("exportDir") is not None else {}
        kept = {} if self._evaluation is None else self._evaluation.to_files()
        return {**files, **kept, **{f"{_RESULTS}{i:06d}": answers for i, answers in enumerate(self._results)}}

    def _extra_metadata(self) -> dict[str, Any]:
        summary = None if self._summary is None else dataclasses.asdict(self._summary)
        return {"summary": summary, "labels": self._labels}

    def _restore(self, files: Mapping[str, Content], metadata: dict[str, Any]) -> None:
        if MODEL_FILE in files:
            self._archives[self._get("exportDir")] = Archive(file_of(files[MODEL_FILE]))
        self._results = [bytes_of(files[name]) for name in sorted(files) if name.startswith(_RESULTS)]
        saved = metadata.get("summary")
        self._summary = None if saved is None else TrainingSummary._from_json(saved)
        self._labels = tuple(metadata.get("labels", ()))
        self._evaluation = EvaluationSpec.read(files)

    def registerUDF(self, spark: SparkSession, name: str) -> Any:
        """Register the model as a function for SQL, ``SELECT name(x) FROM t``.

        Its arguments are columns in the order of ``inputMapping`` (one for a single input); it returns
        what ``predictionCol`` would hold, or with ``outputMapping`` a struct of the output columns. Rows
        with a null give null unless ``handleInvalid`` is "error". Before Spark 4.1 the function cannot tell NaN
        from null: NaN counts as null.

        Parameters
        ----------
        spark : pyspark.sql.SparkSession
            The session in which to register it.
        name : str
            Name of the function.

        Returns
        -------
        callable
            The same function, for columns.

        Examples
        --------
        >>> model.registerUDF(spark, "score")                               # doctest: +SKIP
        >>> spark.sql("SELECT id, score(features) FROM t")                   # doctest: +SKIP
        """
        use_own_python(spark)
        archive, signature, bindings, outputs = self._unbound()
        if outputs.prediction_spec is not None:
            outputs = dataclasses.replace(outputs, types={udf.PREDICTION: outputs.types[udf.PREDICTION]})
        scoring = self._scoring(publish(spark, archive.file), signature, bindings, outputs)
        function = make_udf_function(scoring, scoring_process(spark, archive.file.size))
        integers = ["int" in binding.tensor.dtype for binding in bindings]
        return arrow_udf.register(spark, name, function, outputs.result_type(), integers)

    def _unbound(self) -> tuple[Archive, Signature, list[InputBinding], AppendedColumns]:
        """The packed SavedModel, its signature, and the columns that the Params name."""
        from pyspark.sql.types import StructType

        self._check_params()
        archive = self._packed()
        signature = self._signature_of(archive)
        bindings = [
            InputBinding(column, tensor, signature.inputs[tensor])
            for column, tensor in input_mapping(self, signature).items()
        ]
        return archive, signature, bindings, self._bind_outputs(signature, archive, StructType())

    def results(self) -> list[Any]:
        """The results of ``DataFeed.batch_results`` during ``fit``, in the order of the DataFrame."""
        tables = [pa.ipc.open_file(pa.BufferReader(data)).read_all() for data in self._results]
        if not tables:
            return []
        answers = pa.concat_tables(tables).sort_by(schema.ROW_COLUMN)
        values: list[Any] = answers.column(RESULT_COLUMN).to_pylist()
        return values


def scoring_at(model: TFModel, directory: Path) -> udf.ScoringSpec:
    """How to call a model whose SavedModel is in a directory."""
    _, signature, bindings, outputs = model._unbound()
    return model._scoring(directory, signature, bindings, outputs)
