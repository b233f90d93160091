"""Params of the stages of :mod:`tfos_ml.compat.pipeline`, a mixin each, with setters and getters."""

from __future__ import annotations

from typing import Any

from pyspark.ml.param import Param, Params, TypeConverters

from tfos_ml.compat.TFCluster import InputMode
from tfos_ml.errors import ParamError


class TFTypeConverters:
    """Converters of Params that Spark has none for."""

    @staticmethod
    def toDict(value: Any) -> dict[Any, Any]:
        """A dict as it is."""
        if not isinstance(value, dict):
            raise TypeError(f"Expected a dict. Received: {value!r}")
        return value


class HasBatchSize(Params):
    """``batch_size``."""

    batch_size = Param(Params._dummy(), "batch_size", "rows of a batch", typeConverter=TypeConverters.toInt)

    def setBatchSize(self, value: Any) -> Any:
        """Set ``batch_size``: rows of a batch."""
        return self._set(batch_size=value)

    def getBatchSize(self) -> Any:
        """``batch_size``."""
        return self.getOrDefault(self.batch_size)


class HasClusterSize(Params):
    """``cluster_size``."""

    cluster_size = Param(Params._dummy(), "cluster_size", "number of nodes", typeConverter=TypeConverters.toInt)

    def setClusterSize(self, value: Any) -> Any:
        """Set ``cluster_size``: number of nodes."""
        return self._set(cluster_size=value)

    def getClusterSize(self) -> Any:
        """``cluster_size``."""
        return self.getOrDefault(self.cluster_size)


class HasEpochs(Params):
    """``epochs``."""

    epochs = Param(Params._dummy(), "epochs", "how often the rows are fed", typeConverter=TypeConverters.toInt)

    def setEpochs(self, value: Any) -> Any:
        """Set ``epochs``: how often the rows are fed."""
        return self._set(epochs=value)

    def getEpochs(self) -> Any:
        """``epochs``."""
        return self.getOrDefault(self.epochs)


class HasGraceSecs(Params):
    """``grace_secs``."""

    grace_secs = Param(
        Params._dummy(),
        "grace_secs",
        "seconds that evaluators and parameter servers have left after the training",
        typeConverter=TypeConverters.toInt,
    )

    def setGraceSecs(self, value: Any) -> Any:
        """Set ``grace_secs``: seconds that evaluators and parameter servers have left after the training."""
        return self._set(grace_secs=value)

    def getGraceSecs(self) -> Any:
        """``grace_secs``."""
        return self.getOrDefault(self.grace_secs)


class HasInputMapping(Params):
    """``input_mapping``."""

    input_mapping = Param(
        Params._dummy(), "input_mapping", "{column: tensor name}", typeConverter=TFTypeConverters.toDict
    )

    def setInputMapping(self, value: Any) -> Any:
        """Set ``input_mapping``: {column: tensor name}."""
        return self._set(input_mapping=value)

    def getInputMapping(self) -> Any:
        """``input_mapping``."""
        return self.getOrDefault(self.input_mapping)


class HasInputMode(Params):
    """``input_mode``."""

    input_mode = Param(
        Params._dummy(), "input_mode", "who reads the data; InputMode.SPARK", typeConverter=TypeConverters.toInt
    )

    def setInputMode(self, value: Any) -> Any:
        """Set ``input_mode``; only ``InputMode.SPARK``, as there."""
        if value == InputMode.TENSORFLOW:
            raise ParamError(
                "input_mode=TENSORFLOW: an estimator feeds its DataFrame. To read files, run the train function with "
                "TFCluster.run(), or use tfos_ml.TFEstimator(inputMode=InputMode.TENSORFLOW)."
            )
        return self._set(input_mode=value)

    def getInputMode(self) -> Any:
        """``input_mode``."""
        return self.getOrDefault(self.input_mode)


class HasMasterNode(Params):
    """``master_node``."""

    master_node = Param(Params._dummy(), "master_node", "job name of the chief", typeConverter=TypeConverters.toString)

    def setMasterNode(self, value: Any) -> Any:
        """Set ``master_node``: job name of the chief."""
        return self._set(master_node=value)

    def getMasterNode(self) -> Any:
        """``master_node``."""
        return self.getOrDefault(self.master_node)


class HasModelDir(Params):
    """``model_dir``."""

    model_dir = Param(Params._dummy(), "model_dir", "directory of checkpoints", typeConverter=TypeConverters.toString)

    def setModelDir(self, value: Any) -> Any:
        """Set ``model_dir``: directory of checkpoints."""
        return self._set(model_dir=value)

    def getModelDir(self) -> Any:
        """``model_dir``."""
        return self.getOrDefault(self.model_dir)


class HasNumPS(Params):
    """``num_ps`` and ``driver_ps_nodes``."""

    num_ps = Param(Params._dummy(), "num_ps", "number of parameter servers", typeConverter=TypeConverters.toInt)
    driver_ps_nodes = Param(
        Params._dummy(),
        "driver_ps_nodes",
        "whether parameter servers run on the driver",
        typeConverter=TypeConverters.toBoolean,
    )

    def setNumPS(self, value: Any) -> Any:
        """Set ``num_ps``: number of parameter servers."""
        return self._set(num_ps=value)

    def getNumPS(self) -> Any:
        """``num_ps``."""
        return self.getOrDefault(self.num_ps)

    def setDriverPSNodes(self, value: Any) -> Any:
        """Set ``driver_ps_nodes``: whether parameter servers run on the driver."""
        return self._set(driver_ps_nodes=value)

    def getDriverPSNodes(self) -> Any:
        """``driver_ps_nodes``."""
        return self.getOrDefault(self.driver_ps_nodes)


class HasOutputMapping(Params):
    """``output_mapping``."""

    output_mapping = Param(
        Params._dummy(), "output_mapping", "{output name: column}", typeConverter=TFTypeConverters.toDict
    )

    def setOutputMapping(self, value: Any) -> Any:
        """Set ``output_mapping``: {output name: column}."""
        return self._set(output_mapping=value)

    def getOutputMapping(self) -> Any:
        """``output_mapping``."""
        return self.getOrDefault(self.output_mapping)


class HasProtocol(Params):
    """``protocol``."""

    protocol = Param(
        Params._dummy(),
        "protocol",
        "protocol of TensorFlow's servers; without effect",
        typeConverter=TypeConverters.toString,
    )

    def setProtocol(self, value: Any) -> Any:
        """Set ``protocol``: protocol of TensorFlow's servers; without effect."""
        return self._set(protocol=value)

    def getProtocol(self) -> Any:
        """``protocol``."""
        return self.getOrDefault(self.protocol)


class HasReaders(Params):
    """``readers``."""

    readers = Param(
        Params._dummy(),
        "readers",
        "number of reading threads, for train functions that count them",
        typeConverter=TypeConverters.toInt,
    )

    def setReaders(self, value: Any) -> Any:
        """Set ``readers``: number of reading threads, for train functions that count them."""
        return self._set(readers=value)

    def getReaders(self) -> Any:
        """``readers``."""
        return self.getOrDefault(self.readers)


class HasSteps(Params):
    """``steps``."""

    steps = Param(
        Params._dummy(),
        "steps",
        "steps to train, for train functions that count them",
        typeConverter=TypeConverters.toInt,
    )

    def setSteps(self, value: Any) -> Any:
        """Set ``steps``: steps to train, for train functions that count them."""
        return self._set(steps=value)

    def getSteps(self) -> Any:
        """``steps``."""
        return self.getOrDefault(self.steps)


class HasTensorboard(Params):
    """``tensorboard``."""

    tensorboard = Param(
        Params._dummy(), "tensorboard", "whether the chief starts TensorBoard", typeConverter=TypeConverters.toBoolean
    )

    def setTensorboard(self, value: Any) -> Any:
        """Set ``tensorboard``: whether the chief starts TensorBoard."""
        return self._set(tensorboard=value)

    def getTensorboard(self) -> Any:
        """``tensorboard``."""
        return self.getOrDefault(self.tensorboard)


class HasTFRecordDir(Params):
    """``tfrecord_dir``."""

    tfrecord_dir = Param(
        Params._dummy(),
        "tfrecord_dir",
        "directory of TFRecords, for train functions that read them",
        typeConverter=TypeConverters.toString,
    )

    def setTFRecordDir(self, value: Any) -> Any:
        """Set ``tfrecord_dir``: directory of TFRecords, for train functions that read them."""
        return self._set(tfrecord_dir=value)

    def getTFRecordDir(self) -> Any:
        """``tfrecord_dir``."""
        return self.getOrDefault(self.tfrecord_dir)


class HasExportDir(Params):
    """``export_dir``."""

    export_dir = Param(
        Params._dummy(), "export_dir", "directory of the SavedModel", typeConverter=TypeConverters.toString
    )

    def setExportDir(self, value: Any) -> Any:
        """Set ``export_dir``: directory of the SavedModel."""
        return self._set(export_dir=value)

    def getExportDir(self) -> Any:
        """``export_dir``."""
        return self.getOrDefault(self.export_dir)


class HasSignatureDefKey(Params):
    """``signature_def_key``."""

    signature_def_key = Param(
        Params._dummy(), "signature_def_key", "signature of the SavedModel", typeConverter=TypeConverters.toString
    )

    def __init__(self) -> None:
        super().__init__()
        self._setDefault(signature_def_key=None)

    def setSignatureDefKey(self, value: Any) -> Any:
        """Set ``signature_def_key``: signature of the SavedModel."""
        return self._set(signature_def_key=value)

    def getSignatureDefKey(self) -> Any:
        """``signature_def_key``."""
        return self.getOrDefault(self.signature_def_key)


class HasTagSet(Params):
    """``tag_set``."""

    tag_set = Param(
        Params._dummy(), "tag_set", "tags of the SavedModel, separated by commas", typeConverter=TypeConverters.toString
    )

    def setTagSet(self, value: Any) -> Any:
        """Set ``tag_set``: tags of the SavedModel, separated by commas."""
        return self._set(tag_set=value)

    def getTagSet(self) -> Any:
        """``tag_set``."""
        return self.getOrDefault(self.tag_set)
