"""Keywords, setters and getters of the stages, written out for type checkers and editors.

Generated from ``tfos_ml/stages/params.py`` by ``python tools/generate_keywords.py``; not to be edited.
"""

# ruff: noqa: D101, E501, E702, E704
# fmt: off

from __future__ import annotations

import argparse
from collections.abc import Callable, Mapping, Sequence
from typing import TYPE_CHECKING, Any, TypedDict

from tfos_ml.stages.params_base import ParamsBase

if TYPE_CHECKING:
    from typing_extensions import Self, Unpack


class ScoringKeywords(TypedDict, total=False):
    featuresCol: str
    predictionCol: str
    inputMapping: Mapping[str, str] | None
    outputMapping: Mapping[str, str] | None
    predictBatchSize: int
    exportDir: str | None
    signatureDefKey: str
    handleInvalid: str
    padValue: float
    binaryOutputs: Sequence[str] | None
    vectorOutputs: Sequence[str] | None


class ScoringAccessors(ParamsBase):
    def setFeaturesCol(self, value: str) -> Self: """Set ``featuresCol``: column of a single input."""; return self._set_checked(featuresCol=value)
    def getFeaturesCol(self) -> str: """Value of ``featuresCol``."""; return self.getOrDefault("featuresCol")
    def setPredictionCol(self, value: str) -> Self: """Set ``predictionCol``: column of a single output."""; return self._set_checked(predictionCol=value)
    def getPredictionCol(self) -> str: """Value of ``predictionCol``."""; return self.getOrDefault("predictionCol")
    def setInputMapping(self, value: Mapping[str, str]) -> Self: """Set ``inputMapping``: {column: input name} for several inputs; replaces featuresCol."""; return self._set_checked(inputMapping=value)
    def getInputMapping(self) -> Mapping[str, str]: """Value of ``inputMapping``."""; return self.getOrDefault("inputMapping")
    def setOutputMapping(self, value: Mapping[str, str]) -> Self: """Set ``outputMapping``: {output name: column} for several outputs; replaces predictionCol."""; return self._set_checked(outputMapping=value)
    def getOutputMapping(self) -> Mapping[str, str]: """Value of ``outputMapping``."""; return self.getOrDefault("outputMapping")
    def setPredictBatchSize(self, value: int) -> Self: """Set ``predictBatchSize``: rows in one call of the model in transform, at most."""; return self._set_checked(predictBatchSize=value)
    def getPredictBatchSize(self) -> int: """Value of ``predictBatchSize``."""; return self.getOrDefault("predictBatchSize")
    def setExportDir(self, value: str) -> Self: """Set ``exportDir``: where the SavedModel is published, and read from: a path, or a URI as pyarrow.fs understands it."""; return self._set_checked(exportDir=value)
    def getExportDir(self) -> str: """Value of ``exportDir``."""; return self.getOrDefault("exportDir")
    def setSignatureDefKey(self, value: str) -> Self: """Set ``signatureDefKey``: signature of the SavedModel."""; return self._set_checked(signatureDefKey=value)
    def getSignatureDefKey(self) -> str: """Value of ``signatureDefKey``."""; return self.getOrDefault("signatureDefKey")
    def setHandleInvalid(self, value: str) -> Self: """Set ``handleInvalid``: rows with null, NaN or infinity: 'error', 'skip' them, or 'keep' them: the model gets NaN and infinity; null gives null outputs, and is an error in fit."""; return self._set_checked(handleInvalid=value)
    def getHandleInvalid(self) -> str: """Value of ``handleInvalid``."""; return self.getOrDefault("handleInvalid")
    def setPadValue(self, value: float) -> Self: """Set ``padValue``: value that pads rows of different lengths if the dimension of the model is None; fit pads by step."""; return self._set_checked(padValue=value)
    def getPadValue(self) -> float: """Value of ``padValue``."""; return self.getOrDefault("padValue")
    def setBinaryOutputs(self, value: Sequence[str]) -> Self: """Set ``binaryOutputs``: names of outputs whose strings are bytes, not text."""; return self._set_checked(binaryOutputs=value)
    def getBinaryOutputs(self) -> Sequence[str]: """Value of ``binaryOutputs``."""; return self.getOrDefault("binaryOutputs")
    def setVectorOutputs(self, value: Sequence[str]) -> Self: """Set ``vectorOutputs``: names of outputs that become vectors of Spark ML rather than arrays."""; return self._set_checked(vectorOutputs=value)
    def getVectorOutputs(self) -> Sequence[str]: """Value of ``vectorOutputs``."""; return self.getOrDefault("vectorOutputs")


class ClassifierKeywords(TypedDict, total=False):
    rawPredictionCol: str
    probabilityCol: str
    threshold: float


class ClassifierAccessors(ParamsBase):
    def setRawPredictionCol(self, value: str) -> Self: """Set ``rawPredictionCol``: column of the vectors of logits if the loss has from_logits=True; else of probabilities, for one unit of the margins [-z, z], where its output is the sigmoid of z."""; return self._set_checked(rawPredictionCol=value)
    def getRawPredictionCol(self) -> str: """Value of ``rawPredictionCol``."""; return self.getOrDefault("rawPredictionCol")
    def setProbabilityCol(self, value: str) -> Self: """Set ``probabilityCol``: column of the vectors of class probabilities."""; return self._set_checked(probabilityCol=value)
    def getProbabilityCol(self) -> str: """Value of ``probabilityCol``."""; return self.getOrDefault("probabilityCol")
    def setThreshold(self, value: float) -> Self: """Set ``threshold``: probability above which a binary model predicts class 1."""; return self._set_checked(threshold=value)
    def getThreshold(self) -> float: """Value of ``threshold``."""; return self.getOrDefault("threshold")


class TrainingKeywords(TypedDict, total=False):
    labelCol: str
    weightCol: str | None
    validationIndicatorCol: str | None
    seed: int | None
    labelMapping: Mapping[str, str] | None
    weightMapping: Mapping[str, str] | None
    clusterSize: int
    minClusterSize: int | None
    masterNode: str | None
    batchSize: int
    epochs: int
    shuffle: bool
    modelDir: str | None
    logDir: str | None
    tensorboard: bool
    cacheDir: str | None
    reservationTimeout: float
    feedTimeout: float
    maxRestarts: int
    nodeCpus: int | None
    nodeGpus: int | None
    communication: str
    nodeEnv: Mapping[str, str]
    verbose: int


class TrainingAccessors(ParamsBase):
    def setLabelCol(self, value: str) -> Self: """Set ``labelCol``: column of a single label; the default column may be missing in TFEstimator, and if the model needs no label."""; return self._set_checked(labelCol=value)
    def getLabelCol(self) -> str: """Value of ``labelCol``."""; return self.getOrDefault("labelCol")
    def setWeightCol(self, value: str) -> Self: """Set ``weightCol``: column of row weights; of arrays, if each position of the label has a weight."""; return self._set_checked(weightCol=value)
    def getWeightCol(self) -> str: """Value of ``weightCol``."""; return self.getOrDefault("weightCol")
    def setValidationIndicatorCol(self, value: str) -> Self: """Set ``validationIndicatorCol``: boolean column, true for validation rows, which are not trained on."""; return self._set_checked(validationIndicatorCol=value)
    def getValidationIndicatorCol(self) -> str: """Value of ``validationIndicatorCol``."""; return self.getOrDefault("validationIndicatorCol")
    def setSeed(self, value: int) -> Self: """Set ``seed``: seed for the order of rows and for validationSplit; the default is fixed for each class."""; return self._set_checked(seed=value)
    def getSeed(self) -> int: """Value of ``seed``."""; return self.getOrDefault("seed")
    def setLabelMapping(self, value: Mapping[str, str]) -> Self: """Set ``labelMapping``: {column: output name} for several labels; replaces labelCol."""; return self._set_checked(labelMapping=value)
    def getLabelMapping(self) -> Mapping[str, str]: """Value of ``labelMapping``."""; return self.getOrDefault("labelMapping")
    def setWeightMapping(self, value: Mapping[str, str]) -> Self: """Set ``weightMapping``: {column: output name} for weights by output; replaces weightCol."""; return self._set_checked(weightMapping=value)
    def getWeightMapping(self) -> Mapping[str, str]: """Value of ``weightMapping``."""; return self.getOrDefault("weightMapping")
    def setClusterSize(self, value: int) -> Self: """Set ``clusterSize``: number of nodes; each uses one task slot."""; return self._set_checked(clusterSize=value)
    def getClusterSize(self) -> int: """Value of ``clusterSize``."""; return self.getOrDefault("clusterSize")
    def setMinClusterSize(self, value: int) -> Self: """Set ``minClusterSize``: number of nodes with which the fit also begins, or goes on after a loss, if Spark has no slots for more; unset: clusterSize."""; return self._set_checked(minClusterSize=value)
    def getMinClusterSize(self) -> int: """Value of ``minClusterSize``."""; return self.getOrDefault("minClusterSize")
    def setMasterNode(self, value: str) -> Self: """Set ``masterNode``: job name of the chief, 'chief' or 'master'; if unset, worker 0 is the chief."""; return self._set_checked(masterNode=value)
    def getMasterNode(self) -> str: """Value of ``masterNode``."""; return self.getOrDefault("masterNode")
    def setBatchSize(self, value: int) -> Self: """Set ``batchSize``: global batch: rows of one training step, over all workers."""; return self._set_checked(batchSize=value)
    def getBatchSize(self) -> int: """Value of ``batchSize``."""; return self.getOrDefault("batchSize")
    def setEpochs(self, value: int) -> Self: """Set ``epochs``: passes over the data."""; return self._set_checked(epochs=value)
    def getEpochs(self) -> int: """Value of ``epochs``."""; return self.getOrDefault("epochs")
    def setShuffle(self, value: bool) -> Self: """Set ``shuffle``: whether each pass has a new, seeded order."""; return self._set_checked(shuffle=value)
    def getShuffle(self) -> bool: """Value of ``shuffle``."""; return self.getOrDefault("shuffle")
    def setModelDir(self, value: str) -> Self: """Set ``modelDir``: directory of checkpoints (ctx.checkpoint_dir) on storage that all nodes reach; KerasEstimator saves the training state there after each epoch, and resumes from the last one."""; return self._set_checked(modelDir=value)
    def getModelDir(self) -> str: """Value of ``modelDir``."""; return self.getOrDefault("modelDir")
    def setLogDir(self, value: str) -> Self: """Set ``logDir``: directory of TensorBoard's event files (ctx.log_dir); if unset, tensorboard uses a directory in the chief's working directory and keeps it."""; return self._set_checked(logDir=value)
    def getLogDir(self) -> str: """Value of ``logDir``."""; return self.getOrDefault("logDir")
    def setTensorboard(self, value: bool) -> Self: """Set ``tensorboard``: whether the chief runs TensorBoard during the fit."""; return self._set_checked(tensorboard=value)
    def getTensorboard(self) -> bool: """Value of ``tensorboard``."""; return self.getOrDefault("tensorboard")
    def setCacheDir(self, value: str) -> Self: """Set ``cacheDir``: directory of a snapshot of this DataFrame's rows, on storage that all nodes reach: the first fit has Spark write them there, that one and later ones read them; delete it, or name another, to have it made anew."""; return self._set_checked(cacheDir=value)
    def getCacheDir(self) -> str: """Value of ``cacheDir``."""; return self.getOrDefault("cacheDir")
    def setReservationTimeout(self, value: float) -> Self: """Set ``reservationTimeout``: seconds that the nodes may take to start and connect."""; return self._set_checked(reservationTimeout=value)
    def getReservationTimeout(self) -> float: """Value of ``reservationTimeout``."""; return self.getOrDefault("reservationTimeout")
    def setFeedTimeout(self, value: float) -> Self: """Set ``feedTimeout``: seconds that a node may wait for rows, other nodes or a store, or rows for a node."""; return self._set_checked(feedTimeout=value)
    def getFeedTimeout(self) -> float: """Value of ``feedTimeout``."""; return self.getOrDefault("feedTimeout")
    def setMaxRestarts(self, value: int) -> Self: """Set ``maxRestarts``: how often a failed fit is repeated (ctx.restart_count); KerasEstimator resumes from the state in modelDir."""; return self._set_checked(maxRestarts=value)
    def getMaxRestarts(self) -> int: """Value of ``maxRestarts``."""; return self.getOrDefault("maxRestarts")
    def setNodeCpus(self, value: int) -> Self: """Set ``nodeCpus``: CPUs of a node, by stage-level scheduling; if unset, spark.task.cpus."""; return self._set_checked(nodeCpus=value)
    def getNodeCpus(self) -> int: """Value of ``nodeCpus``."""; return self.getOrDefault("nodeCpus")
    def setNodeGpus(self, value: int) -> Self: """Set ``nodeGpus``: GPUs of a node, by stage-level scheduling; if unset, as Spark is configured."""; return self._set_checked(nodeGpus=value)
    def getNodeGpus(self) -> int: """Value of ``nodeGpus``."""; return self.getOrDefault("nodeGpus")
    def setCommunication(self, value: str) -> Self: """Set ``communication``: collective operations: 'ring' or 'nccl' of TensorFlow; with 'auto', KerasEstimator uses its own on CPUs (ctx.communication_options())."""; return self._set_checked(communication=value)
    def getCommunication(self) -> str: """Value of ``communication``."""; return self.getOrDefault("communication")
    def setNodeEnv(self, value: Mapping[str, str]) -> Self: """Set ``nodeEnv``: environment of the TensorFlow processes, set before TensorFlow is imported."""; return self._set_checked(nodeEnv=value)
    def getNodeEnv(self) -> Mapping[str, str]: """Value of ``nodeEnv``."""; return self.getOrDefault("nodeEnv")
    def setVerbose(self, value: int) -> Self: """Set ``verbose``: 0: silent but for warnings, 1: a progress bar, or a line per epoch in files and where Spark draws its own bar (spark.ui.showConsoleProgress, on by default), 2: a line per epoch, the output of nodes, and times."""; return self._set_checked(verbose=value)
    def getVerbose(self) -> int: """Value of ``verbose``."""; return self.getOrDefault("verbose")


class TrainFnKeywords(TypedDict, total=False):
    numPS: int
    driverPSNodes: bool
    evalNode: bool
    inputMode: str


class TrainFnAccessors(ParamsBase):
    def setNumPS(self, value: int) -> Self: """Set ``numPS``: number of parameter servers."""; return self._set_checked(numPS=value)
    def getNumPS(self) -> int: """Value of ``numPS``."""; return self.getOrDefault("numPS")
    def setDriverPSNodes(self, value: bool) -> Self: """Set ``driverPSNodes``: whether parameter servers run on the driver's host, without task slots; not on Spark Connect."""; return self._set_checked(driverPSNodes=value)
    def getDriverPSNodes(self) -> bool: """Value of ``driverPSNodes``."""; return self.getOrDefault("driverPSNodes")
    def setEvalNode(self, value: bool) -> Self: """Set ``evalNode``: whether one node is an evaluator."""; return self._set_checked(evalNode=value)
    def getEvalNode(self) -> bool: """Value of ``evalNode``."""; return self.getOrDefault("evalNode")
    def setInputMode(self, value: str) -> Self: """Set ``inputMode``: InputMode.SPARK feeds rows, InputMode.TENSORFLOW hands out files."""; return self._set_checked(inputMode=value)
    def getInputMode(self) -> str: """Value of ``inputMode``."""; return self.getOrDefault("inputMode")


class KerasKeywords(TypedDict, total=False):
    modelArgs: Mapping[str, Any]
    validationSplit: float
    classWeight: Mapping[int, float] | None
    adaptLayers: Sequence[str] | None
    adaptRows: int | None
    batchStatistics: str
    checkpointSteps: int | None
    initialWeights: str | None


class KerasAccessors(ParamsBase):
    def setModelArgs(self, value: Mapping[str, Any]) -> Self: """Set ``modelArgs``: keyword arguments of the model function; a grid search can vary them."""; return self._set_checked(modelArgs=value)
    def getModelArgs(self) -> Mapping[str, Any]: """Value of ``modelArgs``."""; return self.getOrDefault("modelArgs")
    def setValidationSplit(self, value: float) -> Self: """Set ``validationSplit``: fraction of validation rows, selected by seed."""; return self._set_checked(validationSplit=value)
    def getValidationSplit(self) -> float: """Value of ``validationSplit``."""; return self.getOrDefault("validationSplit")
    def setClassWeight(self, value: Mapping[int, float]) -> Self: """Set ``classWeight``: {class: weight}, multiplied into weightCol."""; return self._set_checked(classWeight=value)
    def getClassWeight(self) -> Mapping[int, float]: """Value of ``classWeight``."""; return self.getOrDefault("classWeight")
    def setAdaptLayers(self, value: Sequence[str]) -> Self: """Set ``adaptLayers``: names of preprocessing layers to adapt on the training rows."""; return self._set_checked(adaptLayers=value)
    def getAdaptLayers(self) -> Sequence[str]: """Value of ``adaptLayers``."""; return self.getOrDefault("adaptLayers")
    def setAdaptRows(self, value: int) -> Self: """Set ``adaptRows``: rows to adapt them on, at most; they pass through the driver; unset: all."""; return self._set_checked(adaptRows=value)
    def getAdaptRows(self) -> int: """Value of ``adaptRows``."""; return self.getOrDefault("adaptRows")
    def setBatchStatistics(self, value: str) -> Self: """Set ``batchStatistics``: rows whose mean and variance BatchNormalization uses in training: 'global', those of the whole batch, or 'local', those of each worker, which is faster, and by which the result depends on clusterSize."""; return self._set_checked(batchStatistics=value)
    def getBatchStatistics(self) -> str: """Value of ``batchStatistics``."""; return self.getOrDefault("batchStatistics")
    def setCheckpointSteps(self, value: int) -> Self: """Set ``checkpointSteps``: training steps between two checkpoints in modelDir, beside those after each epoch; unset: only these."""; return self._set_checked(checkpointSteps=value)
    def getCheckpointSteps(self) -> int: """Value of ``checkpointSteps``."""; return self.getOrDefault("checkpointSteps")
    def setInitialWeights(self, value: str) -> Self: """Set ``initialWeights``: weights to start from: .keras or .weights.h5 file, or a fit's exportDir."""; return self._set_checked(initialWeights=value)
    def getInitialWeights(self) -> str: """Value of ``initialWeights``."""; return self.getOrDefault("initialWeights")


class SearchKeywords(TypedDict, total=False):
    numTrials: int
    parallelism: int
    metric: str | None
    direction: str | None
    trainRatio: float | None
    numFolds: int | None
    foldCol: str | None
    storage: str | None
    studyName: str | None
    seed: int


class SearchAccessors(ParamsBase):
    def setNumTrials(self, value: int) -> Self: """Set ``numTrials``: number of trials, with those that the study in storage has already."""; return self._set_checked(numTrials=value)
    def getNumTrials(self) -> int: """Value of ``numTrials``."""; return self.getOrDefault("numTrials")
    def setParallelism(self, value: int) -> Self: """Set ``parallelism``: number of trials that run at the same time, if Spark has slots for them."""; return self._set_checked(parallelism=value)
    def getParallelism(self) -> int: """Value of ``parallelism``."""; return self.getOrDefault("parallelism")
    def setMetric(self, value: str) -> Self: """Set ``metric``: metric of the fit's history to optimize, such as 'val_loss', in place of an evaluator."""; return self._set_checked(metric=value)
    def getMetric(self) -> str: """Value of ``metric``."""; return self.getOrDefault("metric")
    def setDirection(self, value: str) -> Self: """Set ``direction``: whether a metric is to 'minimize' or 'maximize'; unset: as the metric's name says, if it is one of Keras's."""; return self._set_checked(direction=value)
    def getDirection(self) -> str: """Value of ``direction``."""; return self.getOrDefault("direction")
    def setTrainRatio(self, value: float) -> Self: """Set ``trainRatio``: fraction of the rows that trials train on; the others are validation rows, as of TrainValidationSplit."""; return self._set_checked(trainRatio=value)
    def getTrainRatio(self) -> float: """Value of ``trainRatio``."""; return self.getOrDefault("trainRatio")
    def setNumFolds(self, value: int) -> Self: """Set ``numFolds``: number of folds, each of which is once the validation rows, as of CrossValidator."""; return self._set_checked(numFolds=value)
    def getNumFolds(self) -> int: """Value of ``numFolds``."""; return self.getOrDefault("numFolds")
    def setFoldCol(self, value: str) -> Self: """Set ``foldCol``: column with the number of each row's fold, from 0 to numFolds - 1, as of CrossValidator; or without numFolds a boolean column that is true for validation rows."""; return self._set_checked(foldCol=value)
    def getFoldCol(self) -> str: """Value of ``foldCol``."""; return self.getOrDefault("foldCol")
    def setStorage(self, value: str) -> Self: """Set ``storage``: Optuna's storage, a URL such as 'sqlite:///study.db'; unset: memory."""; return self._set_checked(storage=value)
    def getStorage(self) -> str: """Value of ``storage``."""; return self.getOrDefault("storage")
    def setStudyName(self, value: str) -> Self: """Set ``studyName``: name of the study in storage; a study that exists goes on."""; return self._set_checked(studyName=value)
    def getStudyName(self) -> str: """Value of ``studyName``."""; return self.getOrDefault("studyName")
    def setSeed(self, value: int) -> Self: """Set ``seed``: seed of the default sampler, and of the draw of validation rows."""; return self._set_checked(seed=value)
    def getSeed(self) -> int: """Value of ``seed``."""; return self.getOrDefault("seed")


class TFModelKeywords(ScoringKeywords, ClassifierKeywords, total=False):
    pass


class TFModelConstructor(ParamsBase):
    _keywords = TFModelKeywords

    def __init__(self, **params: Unpack[TFModelKeywords]) -> None:
        super().__init__()
        self._construct({**params})

    def setParams(self, **params: Unpack[TFModelKeywords]) -> Self:
        """Set any of them by keyword."""
        return self._set_given({**params})



class TFEstimatorKeywords(ScoringKeywords, TrainingKeywords, ClassifierKeywords, TrainFnKeywords, total=False):
    trainFn: Callable[[Any, Any], Any] | None
    tfArgs: Mapping[str, Any] | argparse.Namespace | Sequence[str] | None


class TFEstimatorConstructor(ParamsBase):
    _keywords = TFEstimatorKeywords

    def __init__(self, **params: Unpack[TFEstimatorKeywords]) -> None:
        super().__init__()
        self._construct({**params})

    def setParams(self, **params: Unpack[TFEstimatorKeywords]) -> Self:
        """Set any of them by keyword."""
        return self._set_given({**params})

    def setTrainFn(self, value: Callable[[Any, Any], Any] | None) -> Self: """Set ``trainFn``."""; return self._set_given({"trainFn": value})
    def getTrainFn(self) -> Any: """Value of ``trainFn``."""; return self._arguments["trainFn"]
    def setTfArgs(self, value: Mapping[str, Any] | argparse.Namespace | Sequence[str] | None) -> Self: """Set ``tfArgs``."""; return self._set_given({"tfArgs": value})
    def getTfArgs(self) -> Any: """Value of ``tfArgs``."""; return self._arguments["tfArgs"]


class KerasEstimatorKeywords(ScoringKeywords, TrainingKeywords, ClassifierKeywords, KerasKeywords, total=False):
    model: Any
    callbacks: Sequence[Any] | None
    customObjects: Mapping[str, Any] | None


class KerasEstimatorConstructor(ParamsBase):
    _keywords = KerasEstimatorKeywords

    def __init__(self, **params: Unpack[KerasEstimatorKeywords]) -> None:
        super().__init__()
        self._construct({**params})

    def setParams(self, **params: Unpack[KerasEstimatorKeywords]) -> Self:
        """Set any of them by keyword."""
        return self._set_given({**params})

    def setCallbacks(self, value: Sequence[Any] | None) -> Self: """Set ``callbacks``."""; return self._set_given({"callbacks": value})
    def getCallbacks(self) -> Any: """Value of ``callbacks``."""; return self._arguments["callbacks"]
    def setCustomObjects(self, value: Mapping[str, Any] | None) -> Self: """Set ``customObjects``."""; return self._set_given({"customObjects": value})
    def getCustomObjects(self) -> Any: """Value of ``customObjects``."""; return self._arguments["customObjects"]


class OptunaSearchKeywords(SearchKeywords, total=False):
    estimator: Any
    space: Callable[[Any], Mapping[Any, Any]] | Mapping[Any, Any] | None
    evaluator: Any
    sampler: Any
    pruner: Any


class OptunaSearchConstructor(ParamsBase):
    _keywords = OptunaSearchKeywords

    def __init__(self, **params: Unpack[OptunaSearchKeywords]) -> None:
        super().__init__()
        self._construct({**params})

    def setParams(self, **params: Unpack[OptunaSearchKeywords]) -> Self:
        """Set any of them by keyword."""
        return self._set_given({**params})

    def setEstimator(self, value: Any) -> Self: """Set ``estimator``."""; return self._set_given({"estimator": value})
    def getEstimator(self) -> Any: """Value of ``estimator``."""; return self._arguments["estimator"]
    def setSpace(self, value: Callable[[Any], Mapping[Any, Any]] | Mapping[Any, Any] | None) -> Self: """Set ``space``."""; return self._set_given({"space": value})
    def getSpace(self) -> Any: """Value of ``space``."""; return self._arguments["space"]
    def setEvaluator(self, value: Any) -> Self: """Set ``evaluator``."""; return self._set_given({"evaluator": value})
    def getEvaluator(self) -> Any: """Value of ``evaluator``."""; return self._arguments["evaluator"]
    def setSampler(self, value: Any) -> Self: """Set ``sampler``."""; return self._set_given({"sampler": value})
    def getSampler(self) -> Any: """Value of ``sampler``."""; return self._arguments["sampler"]
    def setPruner(self, value: Any) -> Self: """Set ``pruner``."""; return self._set_given({"pruner": value})
    def getPruner(self) -> Any: """Value of ``pruner``."""; return self._arguments["pruner"]
