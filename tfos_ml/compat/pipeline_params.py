"""Params of the stages of :mod:`tfos_ml.compat.pipeline`, a mixin each, with setters and getters."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

from pyspark.ml.param import Param, Params, TypeConverters

from tfos_ml.compat.TFCluster import InputMode
from tfos_ml.errors import ParamError

Accessors = tuple[Callable[[Any, Any], Any], Callable[[Any], Any]]


class TFTypeConverters:
    """Converters of Params that Spark has none for."""

    @staticmethod
    def toDict(value: Any) -> dict[Any, Any]:
        """A dict as it is."""
        if not isinstance(value, dict):
            raise TypeError(f"Expected a dict. Received: {value!r}")
        return value


def _param(name: str, doc: str, converter: Callable[[Any], Any]) -> Param[Any]:
    return Param(Params._dummy(), name, doc, converter)


def _accessors(param: Param[Any]) -> Accessors:
    """Setter and getter of a Param."""

    def setter(self: Any, value: Any) -> Any:
        return self._set(**{param.name: value})

    def getter(self: Any) -> Any:
        return self.getOrDefault(param.name)

    setter.__doc__ = f"Set ``{param.name}``: {param.doc}."
    getter.__doc__ = f"``{param.name}``."
    return setter, getter


class HasBatchSize(Params):
    """``batch_size``."""

    batch_size = _param("batch_size", "rows of a batch", TypeConverters.toInt)
    setBatchSize, getBatchSize = _accessors(batch_size)


class HasClusterSize(Params):
    """``cluster_size``."""

    cluster_size = _param("cluster_size", "number of nodes", TypeConverters.toInt)
    setClusterSize, getClusterSize = _accessors(cluster_size)


class HasEpochs(Params):
    """``epochs``."""

    epochs = _param("epochs", "how often the rows are fed", TypeConverters.toInt)
    setEpochs, getEpochs = _accessors(epochs)


class HasGraceSecs(Params):
    """``grace_secs``."""

    grace_secs = _param(
        "grace_secs", "seconds that evaluators and parameter servers have left after the training", TypeConverters.toInt
    )
    setGraceSecs, getGraceSecs = _accessors(grace_secs)


class HasInputMapping(Params):
    """``input_mapping``."""

    input_mapping = _param("input_mapping", "{column: tensor name}", TFTypeConverters.toDict)
    setInputMapping, getInputMapping = _accessors(input_mapping)


class HasInputMode(Params):
    """``input_mode``."""

    input_mode = _param("input_mode", "who reads the data; InputMode.SPARK", TypeConverters.toInt)
    getInputMode = _accessors(input_mode)[1]

    def setInputMode(self, value: Any) -> Any:
        """Set ``input_mode``; only ``InputMode.SPARK``, as there."""
        if value == InputMode.TENSORFLOW:
            raise ParamError(
                "input_mode=TENSORFLOW: an estimator feeds its DataFrame. To read files, run the train function with "
                "TFCluster.run(), or use tfos_ml.TFEstimator(inputMode=InputMode.TENSORFLOW)."
            )
        return self._set(input_mode=value)


class HasMasterNode(Params):
    """``master_node``."""

    master_node = _param("master_node", "job name of the chief", TypeConverters.toString)
    setMasterNode, getMasterNode = _accessors(master_node)


class HasModelDir(Params):
    """``model_dir``."""

    model_dir = _param("model_dir", "directory of checkpoints", TypeConverters.toString)
    setModelDir, getModelDir = _accessors(model_dir)


class HasNumPS(Params):
    """``num_ps`` and ``driver_ps_nodes``."""

    num_ps = _param("num_ps", "number of parameter servers", TypeConverters.toInt)
    driver_ps_nodes = _param("driver_ps_nodes", "whether parameter servers run on the driver", TypeConverters.toBoolean)
    setNumPS, getNumPS = _accessors(num_ps)
    setDriverPSNodes, getDriverPSNodes = _accessors(driver_ps_nodes)


class HasOutputMapping(Params):
    """``output_mapping``."""

    output_mapping = _param("output_mapping", "{output name: column}", TFTypeConverters.toDict)
    setOutputMapping, getOutputMapping = _accessors(output_mapping)


class HasProtocol(Params):
    """``protocol``."""

    protocol = _param("protocol", "protocol of TensorFlow's servers; without effect", TypeConverters.toString)
    setProtocol, getProtocol = _accessors(protocol)


class HasReaders(Params):
    """``readers``."""

    readers = _param("readers", "number of reading threads, for train functions that count them", TypeConverters.toInt)
    setReaders, getReaders = _accessors(readers)


class HasSteps(Params):
    """``steps``."""

    steps = _param("steps", "steps to train, for train functions that count them", TypeConverters.toInt)
    setSteps, getSteps = _accessors(steps)


class HasTensorboard(Params):
    """``tensorboard``."""

    tensorboard = _param("tensorboard", "whether the chief starts TensorBoard", TypeConverters.toBoolean)
    setTensorboard, getTensorboard = _accessors(tensorboard)


class HasTFRecordDir(Params):
    """``tfrecord_dir``."""

    tfrecord_dir = _param(
        "tfrecord_dir", "directory of TFRecords, for train functions that read them", TypeConverters.toString
    )
    setTFRecordDir, getTFRecordDir = _accessors(tfrecord_dir)


class HasExportDir(Params):
    """``export_dir``."""

    export_dir = _param("export_dir", "directory of the SavedModel", TypeConverters.toString)
    setExportDir, getExportDir = _accessors(export_dir)


class HasSignatureDefKey(Params):
    """``signature_def_key``."""

    signature_def_key = _param("signature_def_key", "signature of the SavedModel", TypeConverters.toString)
    setSignatureDefKey, getSignatureDefKey = _accessors(signature_def_key)

    def __init__(self) -> None:
        super().__init__()
        self._setDefault(signature_def_key=None)


class HasTagSet(Params):
    """``tag_set``."""

    tag_set = _param("tag_set", "tags of the SavedModel, separated by commas", TypeConverters.toString)
    setTagSet, getTagSet = _accessors(tag_set)
