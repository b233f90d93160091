"""``TFModel.evaluate``: the estimator that a fitted model keeps for it, and its run."""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

from tfos_ml import errors
from tfos_ml.common.local_files import Content, bytes_of
from tfos_ml.common.user_warnings import warn
from tfos_ml.keras.model.source import ADAPTED_FILE, WEIGHTS_FILE
from tfos_ml.protocol.pickling import pack_program, unpack_program
from tfos_ml.stages.persistence import metadata_of, restore, without_secrets

if TYPE_CHECKING:
    from collections.abc import Mapping

    from pyspark.ml.param import Param
    from pyspark.sql import DataFrame

    from tfos_ml.inference.archive import Archive
    from tfos_ml.stages.keras_estimator import KerasEstimator
    from tfos_ml.stages.tf_model import TFModel

PARAMS = (
    "featuresCol",
    "labelCol",
    "weightCol",
    "inputMapping",
    "labelMapping",
    "weightMapping",
    "handleInvalid",
    "padValue",
    "batchSize",
    "clusterSize",
    "minClusterSize",
    "nodeCpus",
    "nodeGpus",
    "nodeEnv",
    "communication",
    "reservationTimeout",
    "feedTimeout",
    "maxRestarts",
)
_OF_MODEL = ("modelArgs", "adaptLayers")
_FOLDER, _METADATA = "estimator/", "estimator/described"


@dataclass(frozen=True)
class EvaluationSpec:
    """The part of a ``KerasEstimator`` that evaluates: how it is restored, without exports, checkpoints and callbacks.

    It has pickled functions and arguments, which are not unpickled before :meth:`restored` is called.
    """

    files: Mapping[str, Content]
    metadata: Mapping[str, Any] | None = None  # None: as in the files, which lack what may be secrets

    @classmethod
    def of(cls, estimator: KerasEstimator) -> EvaluationSpec:
        """What to keep of an estimator."""
        kept = estimator.copy().setCallbacks([])
        for param in estimator.params:
            if param.name not in (*PARAMS, *_OF_MODEL):
                kept.clear(param)
        return cls({f"{_FOLDER}{name}": content for name, content in kept._files().items()}, metadata_of(kept))

    def to_files(self) -> dict[str, Content]:
        """The files of a stage that keeps it."""
        if self.metadata is None:
            return dict(self.files)
        return {**self.files, _METADATA: pack_program("modelArgs", None, without_secrets(self.metadata), {})}

    @classmethod
    def read(cls, files: Mapping[str, Content]) -> EvaluationSpec | None:
        """What a stage has kept, if it has."""
        own = {name: content for name, content in files.items() if name.startswith(_FOLDER)}
        return cls(own) if own else None

    def restored(self, model: TFModel, given: Mapping[str, Any]) -> KerasEstimator:
        """The estimator, with the Params of a model and those that are given by name."""
        from tfos_ml.stages.keras_estimator import KerasEstimator

        unknown = sorted(set(given) - set(PARAMS))
        if unknown:
            raise errors.ParamError(f"evaluate does not take {unknown}. It takes {', '.join(PARAMS)}.")
        metadata = self.metadata or unpack_program(bytes_of(self.files[_METADATA]))
        files = {name.removeprefix(_FOLDER): content for name, content in self.files.items()}
        estimator: KerasEstimator = restore(KerasEstimator, dict(metadata), files, "This TFModel")
        for name in PARAMS:
            if model.hasParam(name) and model.isSet(name):
                estimator.set(estimator.getParam(name), model.getOrDefault(name))
        return estimator._set_checked(**given).setShuffle(False)


def named_params(params: Mapping[Param[Any], Any] | None) -> dict[str, Any]:
    """A param map by the names of its Params; raises ``ParamError`` if it is none."""
    if not isinstance(params or {}, dict) or not all(hasattr(param, "name") for param in params or {}):
        raise errors.ParamError(f"params must be a param map such as {{estimator.batchSize: 64}}. Received: {params!r}")
    return {param.name: value for param, value in (params or {}).items()}


def evaluate(estimator: KerasEstimator, archive: Archive, dataset: DataFrame) -> dict[str, float]:
    """Run one pass over all rows; returns the loss and the metrics by name."""
    session = estimator._check_settings(dataset.sparkSession)
    weights = archive.member_file(WEIGHTS_FILE)
    if weights is None:
        raise errors.ModelError(f"The model has no {WEIGHTS_FILE}, which fits of KerasEstimator write. Fit it again.")
    columns, program = estimator._prepare_evaluation(dataset, weights, archive.member(ADAPTED_FILE))
    rows, settings = estimator._rows(dataset, columns), estimator._settings(dataset, session.facts)
    result = estimator._run(session, rows, program, settings, verbose=0)
    chief = next(report for report in result.reports if report["chief"])
    for text in chief["warnings"]:
        warn(text)
    metrics: dict[str, float] = chief["metrics"][-1]["metrics"]
    return metrics
