"""``TFModel``: a SavedModel as a Spark ML transformer."""

from __future__ import annotations

import hashlib
import io
import json
import tarfile
import tempfile
from collections.abc import Mapping
from pathlib import Path
from typing import TYPE_CHECKING, Any

import numpy as np
import pyarrow as pa
from pyspark import keyword_only
from pyspark.ml import Model
from pyspark.sql import functions as F

from tfos_ml import errors, schema
from tfos_ml.artifacts import publish
from tfos_ml.casting import TensorInfo
from tfos_ml.cluster.export import fetch, pack
from tfos_ml.feed.datafeed import RESULT_COLUMN
from tfos_ml.heads import HEAD_FILE, Head
from tfos_ml.inference import saved_model, udf
from tfos_ml.inference.saved_model import Signature
from tfos_ml.params import CLASSIFIER_PARAMS, SCORING_PARAMS, ClassifierParams, ScoringParams, accessors

if TYPE_CHECKING:
    import pandas as pd
    from pyspark.sql import Column, DataFrame
    from pyspark.sql.types import StructType

    from tfos_ml.cluster.launcher import RunResult


_STRUCT = "__tfos_ml_outputs"
_PARAMS = (*SCORING_PARAMS, *CLASSIFIER_PARAMS)


@accessors(*_PARAMS)
class TFModel(ScoringParams, ClassifierParams, Model):
    """Runs a SavedModel over the rows of a DataFrame.

    What ``TFEstimator.fit`` returns; or, with ``exportDir``, any SavedModel.

    Parameters
    ----------
    exportDir : str, optional
        URI of a SavedModel, as ``pyarrow.fs`` understands it.
    featuresCol, predictionCol : str, default "features", "prediction"
        The column of a single input, and of a single output.
    inputMapping : dict of str to str, optional
        ``{column: tensor name}``; replaces ``featuresCol``.
    outputMapping : dict of str to str, optional
        ``{output name: column}``; replaces ``predictionCol``.
    rawPredictionCol, probabilityCol : str, default "rawPrediction", "probability"
        Vectors, written by models of ``KerasEstimator`` that tell classes apart; empty for none.
    threshold : float, default 0.5
        Probability above which a model with one sigmoid unit predicts class 1.
    batchSize : int, default 100
        Rows in one call of the model, at most.
    signatureDefKey, tagSet : str, default "serving_default", "serve"
        Which signature.
    nullPolicy : {"error", "skip", "keep"}, default "error"
        What becomes of rows with a null in an input: the job fails, the row is left out, or it
        is kept with null outputs.
    padValue : float, default 0
        Fills rows of ragged columns up to the longest of their batch.

    Attributes
    ----------
    history : dict of str to list of float
        Metrics that the chief reported, by name, one value an epoch; the evaluator's with
        ``eval_`` in front.
    summary : dict
        Of the run: rows, seconds, and each node's address, rows and reports; of Keras models
        also steps, seconds of each epoch, rows per second of each node, and warnings.

    Examples
    --------
    >>> model = TFModel(exportDir="/models/digits", featuresCol="pixels")   # doctest: +SKIP
    >>> model.transform(df).select("prediction")                            # doctest: +SKIP
    """

    @keyword_only
    def __init__(self, **params: Any):
        super().__init__()
        self._set_scoring_defaults()
        self._set_classifier_defaults()
        self._archive: bytes | None = None
        self._extracted: tuple[str, tempfile.TemporaryDirectory[str]] | None = None
        self._results: list[bytes] = []
        self.history: dict[str, list[float]] = {}
        self.summary: dict[str, Any] = {}
        self.setParams(**self._input_kwargs)

    def setParams(self, **params: Any) -> TFModel:
        """Set any Param by keyword."""
        unknown = [name for name in params if not self.hasParam(name)]
        if unknown:
            raise errors.ParamError(f"Unknown parameters {unknown}. Known: {sorted(_PARAMS)}")
        return self._set_checked(**params)

    @classmethod
    def _from_run(cls, result: RunResult) -> TFModel:
        model = cls()
        model._archive = result.model
        model._results = result.results
        model.history = _history(result.reports)
        model.summary = {
            "rows": sum(r["rows"] for r in result.reports),
            "validation_rows": sum(r["validation_rows"] for r in result.reports),
            "seconds": max(r["seconds"] for r in result.reports),
            "nodes": result.reports,
        }
        chief = next(r for r in result.reports if r["chief"])
        model.summary.update({k: chief[k] for k in ("steps", "epoch_seconds", "warnings") if k in chief})
        return model

    def _transform(self, dataset: DataFrame) -> DataFrame:
        self.check_params()
        archive = self._packed()
        signature = self._signature_of(archive)
        inputs = self._bind_inputs(signature, dataset.schema)
        outputs, head = self._wanted(signature, archive)
        columns_of = self._new_columns(outputs, head, dataset.schema)
        if self._get("nullPolicy") == "skip":
            dataset = dataset.where(schema.no_nulls(dataset, [b.spec for b in inputs]))
        scoring = udf.Scoring(
            model=publish(dataset.sparkSession, archive, inline_up_to=0),
            signature_key=self._get("signatureDefKey"),
            tag=self._get("tagSet"),
            inputs=inputs,
            outputs=outputs,
            batch_size=self._get("batchSize"),
            null_policy=self._get("nullPolicy"),
            pad_value=self._get("padValue"),
            head=head,
            threshold=self._get("threshold"),
        )
        columns = [_input_column(b, dataset) for b in inputs]
        return _with_outputs(dataset, scoring, columns, columns_of)

    def transformSchema(self, schema: StructType) -> StructType:
        """Schema of ``transform`` for a DataFrame of this schema; raises as ``transform`` does."""
        from pyspark.ml.linalg import VectorUDT
        from pyspark.sql.types import StructField, StructType

        archive = self._packed()
        signature = self._signature_of(archive)
        self._bind_inputs(signature, schema)
        outputs, head = self._wanted(signature, archive)
        kinds = udf.output_fields(outputs, head)
        fields = [
            StructField(column, VectorUDT() if _is_vector(field, head) else kinds[field])
            for field, column in self._new_columns(outputs, head, schema).items()
        ]
        return StructType([*schema.fields, *fields])

    def _bind_inputs(self, signature: Signature, columns: StructType) -> tuple[udf.InputBinding, ...]:
        mapping = self._input_mapping(signature)
        if sorted(mapping.values()) != sorted(signature.inputs):
            raise errors.SignatureError(
                f"inputMapping={mapping} must name each input of the model once. Its signature: {signature}. "
                f"Columns: {columns.names}"
            )
        bound = []
        for column, tensor in mapping.items():
            spec = schema.column_spec(columns, column, tensor, "feature")
            bound.append(udf.InputBinding(spec, signature.inputs[tensor]))
            udf.check_binding(bound[-1])
        return tuple(bound)

    def _input_mapping(self, signature: Signature) -> dict[str, str]:
        """``{column: tensor name}``."""
        mapping: dict[str, str] | None = self._get("inputMapping")
        return mapping or {self._get("featuresCol"): saved_model.one_name("input", signature.inputs, signature)}

    def _wanted(self, signature: Signature, archive: bytes) -> tuple[dict[str, TensorInfo], Head | None]:
        """The outputs that are wanted, and what the only one means if it is more than a tensor."""
        mapping = self._get("outputMapping")
        if mapping is None:
            name = saved_model.one_name("output", signature.outputs, signature)
            content = _member(archive, HEAD_FILE)
            head = None if content is None else Head(**json.loads(content))
            output = signature.outputs[name]
            return {name: output}, head if head is not None and head.explains(output) else None
        unknown = [name for name in mapping if name not in signature.outputs]
        if unknown:
            raise errors.SignatureError(f"The model has no outputs {unknown}. Its signature: {signature}")
        return {name: signature.outputs[name] for name in mapping}, None

    def _new_columns(self, outputs: Mapping[str, TensorInfo], head: Head | None, columns: StructType) -> dict[str, str]:
        """The new column of each field of ``udf.output_fields``."""
        names = dict(self._get("outputMapping") or {name: self._get("predictionCol") for name in outputs})
        if head is not None:
            of_fields = {
                udf.RAW: "rawPredictionCol",
                udf.PROBABILITY: "probabilityCol",
                udf.PREDICTION: "predictionCol",
            }
            chosen = {field: self._get(of_fields[field]) for field in udf.output_fields(outputs, head)}
            names = {field: column for field, column in chosen.items() if column}
        new = list(names.values())
        taken = [c for c in new if c in columns.names]
        if taken or len(set(new)) < len(new):
            raise errors.ParamError(
                f"Output columns {new} must be new and different; {taken or 'some'} exist already. "
                f"Set predictionCol, rawPredictionCol, probabilityCol or outputMapping. Columns: {columns.names}"
            )
        return names

    def signature(self) -> Signature:
        """Inputs and outputs of the SavedModel, by name, with dtype and shape."""
        return self._signature_of(self._packed())

    def _signature_of(self, archive: bytes) -> Signature:
        key = self._get("signatureDefKey")
        content = _member(archive, saved_model.SIGNATURE_FILE)
        known = None if content is None else saved_model.parse_signature(content, key)
        return known or saved_model.read_signature(self._extract(archive), key, self._get("tagSet"))

    def _packed(self) -> bytes:
        """The SavedModel as one tar file."""
        if self._archive is not None:
            return self._archive
        uri = self._get("exportDir")
        if uri is None:
            raise errors.NothingExportedError(
                "This TFModel has no SavedModel: on the chief, trainFn did not call ctx.export_saved_model(model). "
                "Call it at the end of the train function, or set exportDir to a SavedModel."
            )
        with tempfile.TemporaryDirectory(prefix="tfos_ml-") as directory:
            fetch(uri, f"{directory}/saved_model")
            return pack(f"{directory}/saved_model", Path(directory)).read_bytes()

    def saved_model_dir(self) -> str:
        """A local directory with the SavedModel, for as long as this object lives."""
        return self._extract(self._packed())

    def _extract(self, archive: bytes) -> str:
        digest = hashlib.sha256(archive).hexdigest()
        if self._extracted is None or self._extracted[0] != digest:
            directory = tempfile.TemporaryDirectory(prefix="tfos_ml-model-")
            with tarfile.open(fileobj=io.BytesIO(archive)) as tar:
                tar.extractall(directory.name, filter="data")
            self._extracted = digest, directory
        return self._extracted[1].name

    def predict(self, rows: pd.DataFrame | np.ndarray[Any, Any] | Mapping[str, Any]) -> dict[str, np.ndarray[Any, Any]]:
        """Run the model here, without Spark; imports TensorFlow into this process.

        Parameters
        ----------
        rows : pandas.DataFrame, dict of arrays, or numpy.ndarray
            Columns as ``transform`` takes them; an array is the single input, batch first.

        Returns
        -------
        dict of str to numpy.ndarray
            Outputs by name, batch first.
        """
        archive = self._packed()
        signature = self._signature_of(archive)
        mapping = self._input_mapping(signature)
        columns = {next(iter(mapping)): rows} if isinstance(rows, np.ndarray) else rows
        tensors = {}
        for column, name in mapping.items():
            values = np.asarray(columns[column])
            if values.dtype == object and not isinstance(values[0], (str, bytes)):
                values = np.stack([np.asarray(v) for v in values])
            tensors[name] = udf.array_tensor(values, column, name, signature.inputs[name])
        function = saved_model.load(self._extract(archive), self._get("signatureDefKey"), self._get("tagSet"))
        return {name: value.numpy() for name, value in function(**tensors).items()}

    def results(self) -> list[Any]:
        """What ``DataFeed.batch_results`` answered during ``fit``, in the order of the DataFrame."""
        tables = [pa.ipc.open_file(pa.BufferReader(data)).read_all() for data in self._results]
        if not tables:
            return []
        answers = pa.concat_tables(tables).sort_by(schema.ROW_COLUMN)
        values: list[Any] = answers.column(RESULT_COLUMN).to_pylist()
        return values


def _input_column(binding: udf.InputBinding, df: DataFrame) -> Column:
    """A column as the UDF takes it; vectors become float arrays in the JVM."""
    narrow = binding.tensor.dtype in ("float32", "float16", "bfloat16")
    return schema.spark_column(binding.spec, df, "float32" if narrow else "float64")


def _with_outputs(df: DataFrame, scoring: udf.Scoring, inputs: list[Column], columns: dict[str, str]) -> DataFrame:
    """Append the outputs; several come as one struct, so that the model runs once a row."""
    from pyspark.sql.functions import arrow_udf
    from pyspark.sql.types import StructField, StructType

    fields = udf.output_fields(scoring.outputs, scoring.head)
    function = udf.make_udf_function(scoring)
    if len(fields) == 1:
        ((name, kind),) = fields.items()
        return df.withColumn(columns[name], arrow_udf(function, kind)(*inputs))
    struct = StructType([StructField(name, kind) for name, kind in fields.items()])
    scored = df.withColumn(_STRUCT, arrow_udf(function, struct)(*inputs))
    kept = [F.col(f"`{c}`") for c in df.columns]
    return scored.select(*kept, *(_field(name, scoring.head).alias(column) for name, column in columns.items()))


def _field(name: str, head: Head | None) -> Column:
    """One field of the struct; those that are vectors to Spark ML as vectors."""
    from pyspark.ml.functions import array_to_vector

    field = F.col(_STRUCT)[name]
    if not _is_vector(name, head):
        return field
    return F.when(field.isNotNull(), array_to_vector(field))


def _is_vector(field: str, head: Head | None) -> bool:
    return head is not None and head.is_classifier and field in (udf.RAW, udf.PROBABILITY)


def _member(archive: bytes, name: str) -> bytes | None:
    """A small file that lies beside the SavedModel, if it is there."""
    with tarfile.open(fileobj=io.BytesIO(archive)) as tar:
        if name not in tar.getnames():
            return None
        file = tar.extractfile(name)
        return file.read() if file else None


def _history(reports: list[dict[str, Any]]) -> dict[str, list[float]]:
    """Metrics of the chief and the evaluator by name: the last value of each epoch.

    Reports without an epoch count one by one.
    """
    history: dict[str, dict[int, float]] = {}
    for node in reports:
        if not (node["chief"] or node["evaluator"]):
            continue
        for report in node["metrics"]:
            for name, value in report["metrics"].items():
                series = history.setdefault(f"eval_{name}" if node["evaluator"] else name, {})
                series[len(series) if report["epoch"] is None else report["epoch"]] = value
    return {name: [series[epoch] for epoch in sorted(series)] for name, series in history.items()}
