"""Params of the estimators and models."""

from __future__ import annotations

import difflib
import inspect
from collections.abc import Callable, Iterable, Mapping
from typing import TYPE_CHECKING, Any

from pyspark.ml.param import Param, Params
from pyspark.ml.param.shared import (
    HasFeaturesCol,
    HasLabelCol,
    HasPredictionCol,
    HasProbabilityCol,
    HasRawPredictionCol,
    HasSeed,
    HasThreshold,
    HasValidationIndicatorCol,
    HasWeightCol,
)

from tfos_ml.common.redact import redact
from tfos_ml.errors import ParamError
from tfos_ml.stages.constraints import CONSTRAINTS, Environment, check_value
from tfos_ml.stages.input_mode import InputMode

if TYPE_CHECKING:
    from typing_extensions import Self


def _checked(name: str, converter: Callable[[Any], Any]) -> Callable[[Any], Any]:
    def convert(value: Any) -> Any:
        return converter(check_value(name, value))

    convert.converter = converter  # type: ignore[attr-defined]  # by which tools tell the type
    return convert


def _param(name: str, doc: str, converter: Callable[[Any], Any]) -> Param[Any]:
    return Param(Params._dummy(), name, doc, _checked(name, converter))


def _class_weight(value: Mapping[Any, Any]) -> dict[int, float]:
    return {int(k): float(w) for k, w in value.items()}  # keys that were saved as JSON are strings


_int, _float, _text, _bool = int, float, str, bool  # converters of values that have been checked


class ParamsBase(Params):
    """What all our stages share: setting and getting by name, with constraints."""

    def _set_checked(self, **values: Any) -> Self:
        """Set Params, all but those that are None; those of pyspark's mixins are checked here."""
        given = {name: value for name, value in values.items() if value is not None}
        for name, value in given.items():
            if name in CONSTRAINTS:
                check_value(name, value)
        return self._set(**given)

    def _check_names(self, names: Iterable[str]) -> None:
        """Raise ``ParamError``, with the nearest names there are, for those that are no Params."""
        known = [p.name for p in self.params]
        unknown = [name for name in names if not self.hasParam(name)]
        if unknown:
            near = {name: difflib.get_close_matches(name, known, 3, 0.5) for name in unknown}
            hints = "; ".join(f"'{name}'" + (f", perhaps {' or '.join(n)}" if n else "") for name, n in near.items())
            raise ParamError(f"Unknown parameters: {hints}. Known: {sorted(known)}")

    def _get(self, name: str) -> Any:
        """Value of a Param; None if it is neither set nor has a default, or this stage has none of that name."""
        if not self.hasParam(name):
            return None
        param = self.getParam(name)
        return self.getOrDefault(param) if self.isDefined(param) else None

    def explainParam(self, param: str | Param[Any]) -> str:
        """Name, doc, default and value of a Param; of URIs without user and password."""
        return redact(super().explainParam(param))

    def check_params(self) -> None:
        """Check all values again; a grid or ``copy(extra)`` may have brought in others."""
        for param in self.params:
            if param.name in CONSTRAINTS and self.isDefined(param):
                check_value(param.name, self.getOrDefault(param))


def accessors(*names: str) -> Callable[[type], type]:
    """Class decorator: gives a class ``setX`` and ``getX`` for Params, with docstrings, and lists them in its own."""

    def decorate(cls: type) -> type:
        for name in names:
            suffix = name[0].upper() + name[1:]
            doc = getattr(cls, name).doc
            if f"set{suffix}" not in vars(cls):
                setattr(cls, f"set{suffix}", _setter(name, suffix, doc))
            if not hasattr(cls, f"get{suffix}"):
                setattr(cls, f"get{suffix}", _getter(name, suffix, doc))
        cls.__doc__ = f"{cls.__doc__}\n{_listing(cls, names)}"
        return cls

    return decorate


def _listing(cls: type, names: Iterable[str]) -> str:
    """Each Param with type and default, as the constructor has them, and what it is for; for ``help``."""
    keywords = inspect.signature(cls).parameters
    lines = ["    All Params", "    ----------"]
    for name in names:
        default = keywords[name].default
        shown = "" if default is None else f", default {default!r}"
        lines += [f"    {name} : {keywords[name].annotation}{shown}", f"        {getattr(cls, name).doc}"]
    return "\n".join([*lines, "    "])


def _setter(name: str, suffix: str, doc: str) -> Callable[[Any, Any], Any]:
    def setter(self: Any, value: Any) -> Any:
        return self._set_checked(**{name: value})

    setter.__name__ = f"set{suffix}"
    setter.__doc__ = f"Set ``{name}``: {doc}"
    return setter


def _getter(name: str, suffix: str, doc: str) -> Callable[[Any], Any]:
    def getter(self: Any) -> Any:
        return self.getOrDefault(self.getParam(name))

    getter.__name__ = f"get{suffix}"
    getter.__doc__ = f"Get ``{name}``: {doc}"
    return getter


class ScoringParams(ParamsBase, HasFeaturesCol, HasPredictionCol):
    """Params of both the estimators and the models."""

    inputMapping = _param("inputMapping", "{column: tensor name} for several inputs; replaces featuresCol", dict)
    outputMapping = _param("outputMapping", "{output name: column} for several outputs; replaces predictionCol", dict)
    batchSize = _param(
        "batchSize", "global batch: rows a step over all workers; in transform, rows in one call of the model", _int
    )
    exportDir = _param("exportDir", "URI where the SavedModel is published, and read from", _text)
    signatureDefKey = _param("signatureDefKey", "signature of the SavedModel", _text)
    tagSet = _param("tagSet", "tags of the SavedModel, separated by commas", _text)
    nullPolicy = _param(
        "nullPolicy", "rows with a null: 'error', 'skip', or 'keep' them with null outputs (in fit as 'error')", _text
    )
    nanPolicy = _param(
        "nanPolicy", "rows with NaN or infinity: 'error', 'skip', or 'keep' them as they are for the model", _text
    )
    padValue = _param(
        "padValue", "fills rows of different lengths where the model's dimension is None, in fit to the longest", _float
    )
    binaryOutputs = _param("binaryOutputs", "names of outputs whose strings are bytes rather than text", list)

    def _set_scoring_defaults(self) -> None:
        self._setDefault(
            featuresCol="features",
            predictionCol="prediction",
            batchSize=100,
            signatureDefKey="serving_default",
            tagSet="serve",
            nullPolicy="error",
            nanPolicy="error",
            padValue=0.0,
        )


SCORING_PARAMS = (
    "featuresCol",
    "predictionCol",
    "inputMapping",
    "outputMapping",
    "batchSize",
    "exportDir",
    "signatureDefKey",
    "tagSet",
    "nullPolicy",
    "nanPolicy",
    "padValue",
    "binaryOutputs",
)


class ClassifierParams(ParamsBase, HasRawPredictionCol, HasProbabilityCol, HasThreshold):
    """Params of classification; without effect on other models."""

    threshold = _param("threshold", "probability above which a binary model predicts class 1", _float)

    def _set_classifier_defaults(self) -> None:
        self._setDefault(rawPredictionCol="rawPrediction", probabilityCol="probability", threshold=0.5)


CLASSIFIER_PARAMS = ("rawPredictionCol", "probabilityCol", "threshold")


class TrainingParams(ScoringParams, HasLabelCol, HasWeightCol, HasValidationIndicatorCol, HasSeed):
    """Params of the estimators."""

    weightMapping = _param("weightMapping", "{column: output name} for weights by output; replaces weightCol", dict)
    labelMapping = _param("labelMapping", "{column: output name} for several labels; replaces labelCol", dict)
    clusterSize = _param("clusterSize", "number of all nodes", _int)
    masterNode = _param("masterNode", "job name of the chief, 'chief' or 'master'; unset: worker 0 is chief", _text)
    epochs = _param("epochs", "passes over the data", _int)
    shuffle = _param("shuffle", "whether each pass has a new, seeded order", _bool)
    modelDir = _param("modelDir", "directory of checkpoints (ctx.checkpoint_dir)", _text)
    logDir = _param("logDir", "directory of TensorBoard's event files (ctx.log_dir)", _text)
    tensorboard = _param("tensorboard", "whether the chief starts TensorBoard for the time of the fit", _bool)
    reservationTimeout = _param("reservationTimeout", "seconds the nodes may take to start and meet", _float)
    feedTimeout = _param("feedTimeout", "seconds a node may wait for rows, or rows for a node", _float)
    maxRestarts = _param("maxRestarts", "how often a failed fit is run again (ctx.restart_count)", _int)
    nodeCpus = _param("nodeCpus", "CPUs of a node, by stage-level scheduling; unset: spark.task.cpus", _int)
    nodeGpus = _param("nodeGpus", "GPUs of a node, by stage-level scheduling; unset: as Spark is configured", _int)
    communication = _param("communication", "collectives of TensorFlow: 'auto', 'ring' or 'nccl'", _text)
    nodeEnv = _param(
        "nodeEnv", "environment of the TensorFlow processes, set before TensorFlow is imported", Environment
    )
    verbose = _param("verbose", "0 silent, 1 progress bar, 2 a line per epoch and what nodes print", _int)

    def _set_training_defaults(self) -> None:
        self._set_scoring_defaults()
        self._setDefault(
            labelCol="label",
            clusterSize=1,
            tensorboard=False,
            epochs=1,
            shuffle=True,
            reservationTimeout=600.0,
            feedTimeout=600.0,
            maxRestarts=0,
            communication="auto",
            nodeEnv={},
            verbose=1,
        )


TRAINING_PARAMS = (
    *SCORING_PARAMS,
    "labelCol",
    "weightCol",
    "validationIndicatorCol",
    "seed",
    "labelMapping",
    "weightMapping",
    "clusterSize",
    "numPS",
    "driverPSNodes",
    "masterNode",
    "evalNode",
    "inputMode",
    "epochs",
    "steps",
    "shuffle",
    "modelDir",
    "logDir",
    "tensorboard",
    "reservationTimeout",
    "feedTimeout",
    "maxRestarts",
    "nodeCpus",
    "nodeGpus",
    "communication",
    "protocol",
    "nodeEnv",
    "verbose",
)


class TrainFnParams(TrainingParams):
    """Params of TFEstimator alone."""

    numPS = _param("numPS", "number of parameter servers", _int)
    driverPSNodes = _param("driverPSNodes", "whether parameter servers run on the driver's host", _bool)
    evalNode = _param("evalNode", "whether one node is an evaluator", _bool)
    inputMode = _param("inputMode", "InputMode.SPARK feeds rows, InputMode.TENSORFLOW hands out files", _text)
    steps = _param("steps", "steps to train, for train functions that count steps (args.steps)", _int)
    protocol = _param("protocol", "protocol of TensorFlow's own servers, for instance 'grpc'", _text)

    def _set_train_fn_defaults(self) -> None:
        self._set_training_defaults()
        self._setDefault(numPS=0, driverPSNodes=False, evalNode=False, inputMode=InputMode.SPARK, protocol="grpc")


class KerasParams(TrainingParams, ClassifierParams):
    """Params of KerasEstimator alone."""

    modelArgs = _param("modelArgs", "keyword arguments of the model function", dict)
    validationSplit = _param("validationSplit", "fraction of the rows to validate on, chosen by seed", _float)
    classWeight = _param("classWeight", "{class: weight}, multiplied into weightCol", _class_weight)
    adaptLayers = _param("adaptLayers", "names of preprocessing layers to adapt on the training rows", list)
    adaptRows = _param("adaptRows", "rows to adapt them on, at most; unset: all", _int)
    initialModel = _param(
        "initialModel", "weights to start from: .keras or .weights.h5 file, or a fit's exportDir", _text
    )

    def _set_keras_defaults(self) -> None:
        self._set_training_defaults()
        self._set_classifier_defaults()
        self._setDefault(modelArgs={}, validationSplit=0.0)


KERAS_PARAMS = (
    *(name for name in TRAINING_PARAMS if hasattr(KerasParams, name)),
    *CLASSIFIER_PARAMS,
    "modelArgs",
    "validationSplit",
    "classWeight",
    "adaptLayers",
    "adaptRows",
    "initialModel",
)
