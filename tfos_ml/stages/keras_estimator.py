"""``KerasEstimator``: a compiled Keras 3 model as a Spark ML estimator."""

from __future__ import annotations

import dataclasses
import os
from collections.abc import Mapping
from contextlib import AbstractContextManager, nullcontext
from typing import TYPE_CHECKING, Any

from pyspark.sql.types import StructType

from tfos_ml import errors
from tfos_ml.agent.fork_client import ForkServerRef
from tfos_ml.common.arguments import check_model_function
from tfos_ml.common.hadoop import pyarrow_uri
from tfos_ml.common.local_files import Content, LocalFile, bytes_of, file_of
from tfos_ml.common.session_settings import IDLE
from tfos_ml.common.user_warnings import warn
from tfos_ml.data import schema
from tfos_ml.data.validation_draw import ValidationDraw
from tfos_ml.driver.executor_check import prepared_executors
from tfos_ml.driver.session_facts import SessionFacts, fork_owner
from tfos_ml.inference.saved_model import NO_CALL, not_exported
from tfos_ml.keras.entry_points import evaluate, train
from tfos_ml.keras.model.column_checks import (
    check_attributes,
    check_class_weight,
    check_columns,
    check_is_single_input,
    constrain,
    narrow_vectors,
)
from tfos_ml.keras.model.global_config import GlobalConfig
from tfos_ml.keras.model.inspection_process import adapt_source, check_sendable, describe_source
from tfos_ml.keras.model.source import (
    WEIGHTS_FILE,
    ModelSource,
    by_registered_names,
    read_weights,
    registered_in_program,
    source_of,
)
from tfos_ml.protocol.node_task import NodeSettings
from tfos_ml.protocol.pickling import PROGRAM_FILE, pack_program, unpack_program
from tfos_ml.stages.cluster_estimator import ClusterEstimator, Program
from tfos_ml.stages.evaluation_spec import EvaluationSpec
from tfos_ml.stages.keras_advice import (
    refuse_unreduced,
    warn_of_activations,
    warn_of_idle_layers,
    warn_of_monitors,
)
from tfos_ml.stages.keywords import KerasEstimatorConstructor
from tfos_ml.stages.model_columns import output_columns
from tfos_ml.stages.params import KerasParams
from tfos_ml.stages.params_base import document_params

if TYPE_CHECKING:
    from pyspark.sql import DataFrame, SparkSession
    from typing_extensions import Self, Unpack

    from tfos_ml.driver.attempt import RunResult
    from tfos_ml.keras.model.inspection import ModelDescription
    from tfos_ml.stages.keywords import KerasEstimatorKeywords
    from tfos_ml.stages.tf_model import TFModel

_MODEL_FILE = "model.keras"


@document_params
class KerasEstimator(KerasEstimatorConstructor, KerasParams, ClusterEstimator):
    """Trains a compiled Keras 3 model on all workers, in exact data parallelism.

    Every step applies the gradient of the *global* batch, the same rows whatever the number of
    workers: ``clusterSize`` changes the speed, not the result, up to floating-point rounding.
    That holds for BatchNormalization and Dropout, too: statistics and random numbers are those of the global batch.

    Parameters
    ----------
    model : keras.Model or callable
        A compiled model, which is copied and never changed, or a function that returns one. Every node calls the
        function as ``model(**modelArgs)``. A copy is what ``keras.models.load_model`` makes of a saved model: if a
        layer draws constants that are no weights, such as a mask by NumPy in ``__init__``, the copy has other ones.
        Make such models in a function.
    callbacks : list of keras.callbacks.Callback, optional
        Callbacks, which are pickled with cloudpickle. They run on every worker with the same logs. Callbacks that
        write files (ModelCheckpoint, TensorBoard, CSVLogger, and any with ``chief_only = True``) run on the chief
        only.
    customObjects : dict of str to class or function, optional
        Custom layers, losses and metrics that a file of a model names, which the model function loads. Those of a model
        that you pass, or that a function captures, go along by themselves.

    Examples
    --------
    >>> import keras
    >>> model = keras.Sequential([keras.layers.Input((4,)), keras.layers.Dense(3, activation="softmax")])
    >>> model.compile("adam", "sparse_categorical_crossentropy", metrics=["accuracy"])
    >>> estimator = KerasEstimator(model=model, epochs=5, batchSize=32, clusterSize=2)
    >>> fitted = estimator.fit(df)
    >>> len(fitted.summary.history["accuracy"])
    5
    >>> fitted.transform(df).select("prediction", "probability").columns
    ['prediction', 'probability']
    """

    __module__ = "tfos_ml"

    _positional = ("model",)

    def __init__(self, model: Any = None, /, **params: Unpack[KerasEstimatorKeywords]) -> None:
        if model is not None:
            if params.get("model") is not None:
                raise errors.ParamError("model is given twice, by position and by name. Leave one out.")
            params["model"] = model
        super().__init__(**params)

    def _construct(self, given: dict[str, Any]) -> None:
        self._source: ModelSource | None = None
        self._description: ModelDescription | None = None
        self._saved_config: GlobalConfig | None = None
        super()._construct(given)

    def _set_given(self, given: dict[str, Any]) -> Self:
        if (model := given.pop("model", None)) is not None:
            self.setModel(model)
        return super()._set_given(given)

    def _argument(self, name: str, value: Any) -> Any:
        if value is None:
            return {"callbacks": [], "customObjects": {}}.get(name)
        if name == "callbacks":
            return _checked_callbacks(value)
        if not isinstance(value, Mapping):
            raise errors.ParamError(f"customObjects must be a dict of name to class or function. Received: {value!r}")
        return dict(value)

    def setModel(self, value: Any) -> KerasEstimator:
        """Set the model or model function."""
        self._saved_config, config = None, GlobalConfig.current()
        if not hasattr(value, "compile") and callable(value):
            self._source, self._description = ModelSource(function=value, config=config), None
            return self
        from tfos_ml.keras.model.inspection import describe

        description = describe(value)
        self._source = dataclasses.replace(source_of(value), config=config)
        # A model with classes of the user's own is looked at again, in a process that does not know them.
        self._description = None if self._source.custom_objects else description
        return self

    def getModel(self) -> Any:
        """The model, built anew, or the model function."""
        source = self._complete_source()
        return source.function if source.function is not None else source.build()

    # What fit does on the driver

    def _prepare(self, dataset: DataFrame) -> tuple[schema.FeedSchema, Program]:
        spark = dataset.sparkSession
        self._feed_columns(dataset.schema, spark)  # no job starts for columns that are not there
        with self._executors_prepared(spark):
            columns, description = self._fit_to_model(dataset.schema, spark)
        source = self._complete_source()
        given = self._get("initialWeights")
        initial = read_weights(pyarrow_uri(given)) if given else None
        if self._get("clusterSize") > 1:
            refuse_unreduced(description)
        if self._validation_rule() is None:
            warn_of_monitors(self.getCallbacks())
        if not description.can_be_served:
            warn(not_exported(NO_CALL), errors.NothingExportedWarning)
        layers = self._get("adaptLayers") or []
        warn_of_activations(description)
        warn_of_idle_layers([name for name in description.idle_scalers if name not in layers])
        adapted = None
        if layers:
            rows = self._rows(dataset, columns).to_adapt_on(self._get("adaptRows"))
            adapted = adapt_source(source, layers, columns, rows, *self._process(spark))
        task = {
            "description": description,
            "callbacks": self.getCallbacks(),
            "class_weight": self._get("classWeight") or {},
            "has_local_statistics": self._get("batchStatistics") == "local",
            "adapted": adapted,
        }
        return columns, self._program(train, source, task, initial)

    def _fit_to_model(
        self, given: StructType, spark: SparkSession | None
    ) -> tuple[schema.FeedSchema, ModelDescription]:
        """The columns to feed, and the model; raises if they do not fit."""
        columns = self._feed_columns(given, spark)
        description = self._describe(spark)
        description.check_adapted(self._get("adaptLayers") or [])
        columns = narrow_vectors(columns, description)
        check_columns(columns, description)
        for spec in (columns.columns[i] for i in columns.of("label") if self._get("classWeight")):
            check_class_weight(spec, (None,) * spec.ndim, description)
        columns = constrain(columns, description)
        check_attributes(given, columns, description)
        return columns, description

    def _feed_columns(self, given: StructType, spark: SparkSession | None) -> schema.FeedSchema:
        self._check_roles()
        try:
            return self._feed_schema(given)
        except errors.ColumnNotFoundError:
            if self._get("inputMapping") is None and self._get("featuresCol") not in given.names:
                check_is_single_input(self._describe(spark))
            raise

    def _executors_prepared(self, spark: SparkSession) -> AbstractContextManager[None]:
        """Has executors prepared for nodes while this process has another look at the model."""
        source = self._complete_source()
        if self._description is not None:
            return nullcontext()
        check_sendable(source)
        preparation = {
            "environment": self._environment(),
            "cpus": self._get("nodeCpus"),
            "idle_seconds": IDLE.of(spark),
            "fork_owner": fork_owner(spark),
        }
        return prepared_executors(spark, self._get("clusterSize") - self._driver_nodes(), preparation)

    def _describe(self, spark: SparkSession | None) -> ModelDescription:
        """What the driver knows of the model; found out once."""
        source = self._complete_source()
        return self._description or describe_source(source, *self._process(spark))

    def transformSchema(self, schema: StructType) -> StructType:
        """Schema of what the fitted model will return, as far as it is known; raises if a column does not fit."""
        from pyspark.sql import SparkSession

        self._check_params()
        _, description = self._fit_to_model(schema, SparkSession.getActiveSession())
        outputs = description.outputs
        if outputs is None or description.has_predict_step:  # not known before it runs
            return schema
        columns = output_columns(self, outputs, description.prediction_spec, schema, self._label_names(schema))
        return StructType([*schema.fields, *columns.schema_fields()])

    def _check_roles(self) -> None:
        if self._get("validationSplit") and self._get("validationIndicatorCol"):
            raise errors.ParamError("validationSplit and validationIndicatorCol exclude each other. Unset one of them.")
        if self._get("classWeight") and self._get("labelMapping") and len(self._get("labelMapping")) > 1:
            raise errors.ParamError("classWeight is for one label; give several outputs weights with weightMapping.")

    def _complete_source(self) -> ModelSource:
        if self._source is None:
            raise errors.ParamError(
                "model is not set. Pass KerasEstimator(model=...), a compiled keras.Model or a function that returns "
                "one."
            )
        arguments = self._get("modelArgs")
        if arguments and self._source.function is None:
            raise errors.ParamError(
                f"modelArgs={arguments} are arguments of a model function, but model is a keras.Model. Pass the "
                "function that makes it."
            )
        if self._source.function is not None:
            check_model_function(self._source.function, arguments or {})
        return dataclasses.replace(
            self._source,
            arguments=arguments,
            custom_objects=self._objects(self._source),
            config=self._keras_config(self._source),
        )

    def _keras_config(self, source: ModelSource) -> GlobalConfig | None:
        """Keras's settings of the program as they are now, or as they were when the estimator was saved."""
        return self._saved_config or GlobalConfig.current(source.config)

    def _objects(self, source: ModelSource) -> dict[str, Any]:
        """What a saved model names: what the user has passed, and what the model or the program brings along."""
        brought = source.custom_objects if source.function is None else registered_in_program()
        passed = self.getCustomObjects()
        return {**brought, **by_registered_names(passed), **passed}

    def _validation_rule(self) -> str | ValidationDraw | None:
        split = self._get("validationSplit")
        return ValidationDraw(split, self._get("seed")) if split else super()._validation_rule()

    def _prepare_evaluation(
        self, dataset: DataFrame, weights: LocalFile, adapted: bytes | None
    ) -> tuple[schema.FeedSchema, Program]:
        """The columns to feed, and the program that evaluates; raises if one of them is wrong."""
        columns, description = self._fit_to_model(dataset.schema, dataset.sparkSession)
        source = self._complete_source()
        task = {"description": description, "adapted": adapted}
        return columns, self._program(evaluate, source, task, (os.path.basename(WEIGHTS_FILE), weights))

    def _program(
        self, run: Any, source: ModelSource, task: dict[str, Any], initial: tuple[str, LocalFile] | None
    ) -> Program:
        """A program of the nodes; `initial` is the name of the weights to start from, and the file."""
        files = {}
        if initial is not None:
            files["weights"] = initial[1]
        if isinstance(source.archive, LocalFile):
            files["model"] = source.archive
        task = {
            **task,
            "source": dataclasses.replace(source, archive=None),
            "has_model_file": "model" in files,
            "initial_weights": None if initial is None else initial[0],
        }
        return Program(pack_program("The model", source.function, (run, task), self._named_parts()), files)

    def _named_parts(self) -> dict[str, Any]:
        named = {f"callbacks[{i}]": callback for i, callback in enumerate(self.getCallbacks())}
        return {**named, "customObjects": self.getCustomObjects(), "modelArgs": self._get("modelArgs")}

    def _files(self) -> dict[str, Content]:
        source = self._source or ModelSource()
        state = source.unsaved, source.trainable, self._keras_config(source)
        parts = (source.function, self.getCallbacks(), self._objects(source), state)
        program = pack_program("The model", source.function, parts, self._named_parts())
        return {
            PROGRAM_FILE: program,
            **({_MODEL_FILE: source.archive} if isinstance(source.archive, LocalFile) else {}),
        }

    def _restore(self, files: Mapping[str, Content], metadata: dict[str, Any]) -> None:
        function, callbacks, custom_objects, state = unpack_program(bytes_of(files[PROGRAM_FILE]))
        self._arguments = {**self._arguments, "callbacks": callbacks, "customObjects": custom_objects}
        unsaved, trainable, self._saved_config = state
        archive = file_of(files[_MODEL_FILE]) if _MODEL_FILE in files else None
        if function is not None or archive is not None:
            self._source = ModelSource(archive, function, unsaved=unsaved, trainable=trainable)

    def _settings(self, df: DataFrame, facts: SessionFacts) -> NodeSettings:
        return dataclasses.replace(
            super()._settings(df, facts),
            validates=self._validation_rule() is not None,
            sums_itself=self._get("communication") == "auto",
            model_store=self._model_store(facts),
            checkpoint_steps=self._get("checkpointSteps"),
        )

    def _make_model(self, result: RunResult, given: StructType) -> TFModel:
        model = super()._make_model(result, given)
        model._evaluation = EvaluationSpec.of(self)
        for text in model.summary.warnings:
            warn(text)
        return model

    def _process(self, spark: SparkSession | None) -> tuple[dict[str, str], ForkServerRef]:
        """Environment of the process that looks at the model, and the fork server that it comes from."""
        return self._environment(), ForkServerRef(os.getpid(), IDLE.default if spark is None else IDLE.of(spark))

    def _environment(self) -> dict[str, str]:
        return {"KERAS_BACKEND": "tensorflow", **super()._environment()}

    def _check_directories(self, facts: SessionFacts) -> None:
        super()._check_directories(facts)
        if self._get("checkpointSteps") and not self._get("modelDir"):
            raise errors.ParamError("checkpointSteps needs modelDir, the directory for the checkpoints. Set it.")
        if self._get("modelDir"):
            from tfos_ml.keras.checkpoint.directory import check_model_dir

            check_model_dir(str(self._model_store(facts)))

    def _model_store(self, facts: SessionFacts) -> str | None:
        """``modelDir`` with what Spark's settings say of its store."""
        given = self._get("modelDir")
        return pyarrow_uri(facts.absolute_path(given)) if given else None


def _checked_callbacks(callbacks: Any) -> list[Any]:
    if not isinstance(callbacks, (list, tuple)):
        raise errors.ParamError(f"callbacks must be a list of keras.callbacks.Callback. Received: {callbacks!r}")
    if any(type(callback).__name__ == "BackupAndRestore" for callback in callbacks):
        raise errors.ParamError(
            "BackupAndRestore restores one worker and not the others. Set modelDir instead: the training state is kept "
            "there after each epoch, and a fit that finds one continues from it."
        )
    return list(callbacks)
