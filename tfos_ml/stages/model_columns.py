"""The columns that a transform reads and appends, from its Params."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import TYPE_CHECKING

from pyspark.sql import SparkSession

from tfos_ml.data.casting import TensorInfo
from tfos_ml.data.schema import CASE_SENSITIVE
from tfos_ml.errors import ParamError, SignatureError
from tfos_ml.inference import udf
from tfos_ml.inference.appended_columns import AppendedColumns
from tfos_ml.inference.prediction import PredictionSpec
from tfos_ml.inference.saved_model import Signature, shown_tensors
from tfos_ml.stages.params import ScoringParams

if TYPE_CHECKING:
    from pyspark.sql.types import StructType


def input_mapping(stage: ScoringParams, signature: Signature, columns: Sequence[str] = ()) -> dict[str, str]:
    """The tensor name of each input by column. Raises ``SignatureError`` if the Params do not fit the model."""
    mapping: dict[str, str] | None = stage._get("inputMapping")
    if mapping is None:
        if len(signature.inputs) != 1:
            raise SignatureError(
                f"The model has {len(signature.inputs)} inputs; bind each with inputMapping. Its signature: {signature}"
            )
        mapping = {stage._get("featuresCol"): next(iter(signature.inputs))}
    if sorted(mapping.values()) != sorted(signature.inputs):
        raise SignatureError(
            f"inputMapping={mapping} must name each input of the model once. Its signature: {signature}. "
            f"Columns: {list(columns)}"
        )
    scalars = {name: str(tensor) for name, tensor in signature.inputs.items() if tensor.shape == ()}
    if scalars:
        raise SignatureError(
            f"Inputs {scalars} are scalars without a batch dimension, but the model gets many rows at once. Save it "
            "with a signature that takes a batch, for instance of tf.map_fn over its function."
        )
    return mapping


def output_columns(
    stage: ScoringParams,
    outputs: Mapping[str, TensorInfo],
    prediction_spec: PredictionSpec | None,
    given: StructType,
    labels: Sequence[str] = (),
    spark: SparkSession | None = None,
) -> AppendedColumns:
    """The columns that a stage appends to those `given`.

    `outputs` are all outputs of its model, `prediction_spec` is the meaning of the only one if that is known, `labels`
    are the names of the classes, `spark` is the session, by default the active one.

    Raises ``SignatureError`` if an output is missing or has no Spark type, or if there are several outputs and no
    ``outputMapping``. Raises ``ParamError`` if `given` has a column of the same name.
    """
    mapping: dict[str, str] | None = stage._get("outputMapping")
    binary, vectors = stage._get("binaryOutputs") or (), stage._get("vectorOutputs") or ()
    _check_outputs(outputs, mapping, binary, vectors)
    if mapping is None:
        ((name, output),) = outputs.items()
        mapping = {name: stage._get("predictionCol")}
        prediction_spec = prediction_spec if prediction_spec is not None and prediction_spec.explains(output) else None
    else:
        prediction_spec = None
    types = udf.output_fields({name: outputs[name] for name in mapping}, prediction_spec, binary)
    if prediction_spec is not None:
        chosen = {
            udf.RAW: stage._get("rawPredictionCol"),
            udf.PROBABILITY: stage._get("probabilityCol"),
            udf.PREDICTION: stage._get("predictionCol"),
        }
        mapping = {field: chosen[field] for field in types if chosen[field]}
        vectors = [udf.RAW, udf.PROBABILITY] if prediction_spec.is_classifier else []
    _check_new(list(mapping.values()), given, spark or SparkSession.getActiveSession())
    return AppendedColumns(
        {field: types[field] for field in mapping}, mapping, prediction_spec, tuple(labels), frozenset(vectors)
    )


def _check_outputs(
    outputs: Mapping[str, TensorInfo], mapping: Mapping[str, str] | None, binary: Sequence[str], vectors: Sequence[str]
) -> None:
    """Raise ``SignatureError`` unless Params name outputs that the model has, and say which of several to append."""
    names = shown_tensors(outputs)
    unknown = [name for name in [*(mapping or ()), *binary, *vectors] if name not in outputs]
    if unknown:
        raise SignatureError(f"The model has no outputs {unknown}. Its outputs: {names}")
    for name in vectors:
        if not _is_vector(outputs[name]):
            raise SignatureError(f"Output '{name}' of vectorOutputs is {outputs[name]}; expected numbers (batch, n).")
    if mapping is None and len(outputs) != 1:
        raise SignatureError(f"The model has {len(outputs)} outputs; bind each with outputMapping: {names}")


def _check_new(new: Sequence[str], given: StructType, spark: SparkSession | None) -> None:
    """Raise ``ParamError`` unless columns have other names than those `given`, and than each other."""
    in_case = spark is not None and spark.conf.get(CASE_SENSITIVE, "false") == "true"
    seen = {name if in_case else name.lower() for name in given.names}
    taken = [c for c in new if (c if in_case else c.lower()) in seen]
    if taken or len({c if in_case else c.lower() for c in new}) < len(new):
        more = "" if in_case else f" Spark takes names that differ only in case for the same ({CASE_SENSITIVE}=false)."
        raise ParamError(
            f"Output columns {new} must be new and different; {taken or 'some'} exist already.{more} "
            f"Set predictionCol, rawPredictionCol, probabilityCol or outputMapping. Columns: {given.names}"
        )


def _is_vector(output: TensorInfo) -> bool:
    return output.shape is not None and len(output.shape) == 2 and output.dtype not in ("string", "bool")
