"""The Params of estimators and models: each declared once.

From a declaration follow validation (``declared``, ``constraints``), keywords, setters and getters with their types
and docstrings (``keywords``, generated), the list in ``help``, and docs/reference/params.rst (generated).
"""

from __future__ import annotations

from pyspark.ml.param.shared import (
    HasFeaturesCol,
    HasHandleInvalid,
    HasLabelCol,
    HasPredictionCol,
    HasProbabilityCol,
    HasRawPredictionCol,
    HasSeed,
    HasThreshold,
    HasValidationIndicatorCol,
    HasWeightCol,
)

from tfos_ml.stages import keywords
from tfos_ml.stages.constraints import (
    ANY_INTEGER,
    ARGUMENTS,
    CLASS_WEIGHT,
    COLUMN_OR_EMPTY,
    ENVIRONMENT,
    FLAG,
    INPUT_MODE,
    MAPPING,
    SECONDS,
    TEXT,
    VERBOSITY,
    choice,
    integer,
    names,
    number,
)
from tfos_ml.stages.input_mode import InputMode
from tfos_ml.stages.params_base import Param


class ScoringParams(keywords.ScoringAccessors, HasFeaturesCol, HasPredictionCol, HasHandleInvalid):
    """Params of all stages."""

    featuresCol = Param("column of a single input", TEXT, "features")
    predictionCol = Param("column of a single output", TEXT, "prediction")
    inputMapping = Param("{column: input name} for several inputs; replaces featuresCol", MAPPING)
    outputMapping = Param("{output name: column} for several outputs; replaces predictionCol", MAPPING)
    predictBatchSize = Param("rows in one call of the model in transform, at most", integer(1), 100)
    exportDir = Param(
        "where the SavedModel is published, and read from: a path, or a URI as pyarrow.fs understands it", TEXT
    )
    signatureDefKey = Param("signature of the SavedModel", TEXT, "serving_default")
    handleInvalid = Param(
        "rows with null, NaN or infinity: 'error', 'skip' them, or 'keep' them: the model gets NaN and infinity; null "
        "gives null outputs, and is an error in fit",
        choice("error", "skip", "keep"),
        "error",
    )
    padValue = Param(
        "value that pads rows of different lengths if the dimension of the model is None; fit pads by step",
        number("a number"),
        0.0,
    )
    binaryOutputs = Param(
        "names of outputs whose strings are bytes, not text", names("a non-empty list of output names")
    )
    vectorOutputs = Param(
        "names of outputs that become vectors of Spark ML rather than arrays", names("a non-empty list of output names")
    )


class ClassifierParams(
    keywords.ClassifierAccessors, ScoringParams, HasRawPredictionCol, HasProbabilityCol, HasThreshold
):
    """Params of classification; without effect on other models."""

    rawPredictionCol = Param(
        "column of the vectors of logits if the loss has from_logits=True; else of probabilities, for one unit of the "
        "margins [-z, z], where its output is the sigmoid of z",
        COLUMN_OR_EMPTY,
        "rawPrediction",
    )
    probabilityCol = Param("column of the vectors of class probabilities", COLUMN_OR_EMPTY, "probability")
    threshold = Param(
        "probability above which a binary model predicts class 1",
        number("a number from 0 to 1", lambda v: 0 <= v <= 1),
        0.5,
    )


class TrainingParams(
    keywords.TrainingAccessors, ScoringParams, HasLabelCol, HasWeightCol, HasValidationIndicatorCol, HasSeed
):
    """Params of both estimators."""

    labelCol = Param(
        "column of a single label; the default column may be missing in TFEstimator, and if the model needs no label",
        TEXT,
        "label",
    )
    weightCol = Param("column of row weights; of arrays, if each position of the label has a weight", TEXT)
    validationIndicatorCol = Param("boolean column, true for validation rows, which are not trained on", TEXT)
    seed = Param("seed for the order of rows and for validationSplit; the default is fixed for each class", ANY_INTEGER)
    labelMapping = Param("{column: output name} for several labels; replaces labelCol", MAPPING)
    weightMapping = Param("{column: output name} for weights by output; replaces weightCol", MAPPING)
    clusterSize = Param("number of nodes; each uses one task slot", integer(1), 1)
    minClusterSize = Param(
        "number of nodes with which the fit also begins, or goes on after a loss, if Spark has no slots for more; "
        "unset: clusterSize",
        integer(1),
    )
    masterNode = Param(
        "job name of the chief, 'chief' or 'master'; if unset, worker 0 is the chief", choice("chief", "master")
    )
    batchSize = Param("global batch: rows of one training step, over all workers", integer(1), 100)
    epochs = Param("passes over the data", integer(1), 1)
    shuffle = Param("whether each pass has a new, seeded order", FLAG, True)
    modelDir = Param(
        "directory of checkpoints (ctx.checkpoint_dir) on storage that all nodes reach; KerasEstimator saves the "
        "training state there after each epoch, and resumes from the last one",
        TEXT,
    )
    logDir = Param(
        "directory of TensorBoard's event files (ctx.log_dir); if unset, tensorboard uses a directory in the chief's "
        "working directory and keeps it",
        TEXT,
    )
    tensorboard = Param("whether the chief runs TensorBoard during the fit", FLAG, False)
    cacheDir = Param(
        "directory of a snapshot of this DataFrame's rows, on storage that all nodes reach: the first fit has Spark "
        "write them there, that one and later ones read them; delete it, or name another, to have it made anew",
        TEXT,
    )
    reservationTimeout = Param("seconds that the nodes may take to start and connect", SECONDS, 600.0)
    feedTimeout = Param(
        "seconds that a node may wait for rows, other nodes or a store, or rows for a node", SECONDS, 600.0
    )
    maxRestarts = Param(
        "how often a failed fit is repeated (ctx.restart_count); KerasEstimator resumes from the state in modelDir",
        integer(0),
        0,
    )
    nodeCpus = Param("CPUs of a node, by stage-level scheduling; if unset, spark.task.cpus", integer(1))
    nodeGpus = Param("GPUs of a node, by stage-level scheduling; if unset, as Spark is configured", integer(1))
    communication = Param(
        "collective operations: 'ring' or 'nccl' of TensorFlow; with 'auto', KerasEstimator uses its own on CPUs "
        "(ctx.communication_options())",
        choice("auto", "ring", "nccl"),
        "auto",
    )
    nodeEnv = Param("environment of the TensorFlow processes, set before TensorFlow is imported", ENVIRONMENT, {})
    verbose = Param(
        "0: silent but for warnings, 1: a progress bar, or a line per epoch in files and where Spark draws its own bar "
        "(spark.ui.showConsoleProgress, on by default), 2: a line per epoch, the output of nodes, and times",
        VERBOSITY,
        1,
    )


class TrainFnParams(keywords.TrainFnAccessors, ClassifierParams, TrainingParams):
    """Params of TFEstimator alone."""

    numPS = Param("number of parameter servers", integer(0), 0)
    driverPSNodes = Param(
        "whether parameter servers run on the driver's host, without task slots; not on Spark Connect", FLAG, False
    )
    evalNode = Param("whether one node is an evaluator", FLAG, False)
    inputMode = Param("InputMode.SPARK feeds rows, InputMode.TENSORFLOW hands out files", INPUT_MODE, InputMode.SPARK)


class KerasParams(keywords.KerasAccessors, ClassifierParams, TrainingParams):
    """Params of KerasEstimator alone."""

    modelArgs = Param("keyword arguments of the model function; a grid search can vary them", ARGUMENTS, {})
    validationSplit = Param(
        "fraction of validation rows, selected by seed",
        number("a number of at least 0 and below 1", lambda v: 0 <= v < 1),
        0.0,
    )
    classWeight = Param("{class: weight}, multiplied into weightCol", CLASS_WEIGHT)
    adaptLayers = Param(
        "names of preprocessing layers to adapt on the training rows", names("a non-empty list of layer names")
    )
    adaptRows = Param("rows to adapt them on, at most; they pass through the driver; unset: all", integer(1))
    batchStatistics = Param(
        "rows whose mean and variance BatchNormalization uses in training: 'global', those of the whole batch, or "
        "'local', those of each worker, which is faster, and by which the result depends on clusterSize",
        choice("global", "local"),
        "global",
    )
    checkpointSteps = Param(
        "training steps between two checkpoints in modelDir, beside those after each epoch; unset: only these",
        integer(1),
    )
    initialWeights = Param("weights to start from: .keras or .weights.h5 file, or a fit's exportDir", TEXT)


class SearchParams(keywords.SearchAccessors):
    """Params of OptunaSearch."""

    numTrials = Param("number of trials, with those that the study in storage has already", integer(1), 20)
    parallelism = Param("number of trials that run at the same time, if Spark has slots for them", integer(1), 1)
    metric = Param("metric of the fit's history to optimize, such as 'val_loss', in place of an evaluator", TEXT)
    direction = Param(
        "whether a metric is to 'minimize' or 'maximize'; unset: as the metric's name says, if it is one of Keras's",
        choice("minimize", "maximize"),
    )
    trainRatio = Param(
        "fraction of the rows that trials train on; the others are validation rows, as of TrainValidationSplit",
        number("a number between 0 and 1", lambda v: 0 < v < 1),
    )
    numFolds = Param("number of folds, each of which is once the validation rows, as of CrossValidator", integer(2))
    foldCol = Param(
        "column with the number of each row's fold, from 0 to numFolds - 1, as of CrossValidator; or without numFolds "
        "a boolean column that is true for validation rows",
        TEXT,
    )
    storage = Param("Optuna's storage, a URL such as 'sqlite:///study.db'; unset: memory", TEXT)
    studyName = Param("name of the study in storage; a study that exists goes on", TEXT)
    seed = Param("seed of the default sampler, and of the draw of validation rows", ANY_INTEGER, 0)
