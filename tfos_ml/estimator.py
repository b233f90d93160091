"""``TFEstimator``: a user's TensorFlow train function as a Spark ML estimator."""

from __future__ import annotations

import argparse
import types
from collections.abc import Callable, Mapping, Sequence
from typing import TYPE_CHECKING, Any

import cloudpickle
from pyspark import keyword_only
from pyspark.ml import Estimator
from pyspark.sql import functions as F

from tfos_ml import errors, schema
from tfos_ml.artifacts import is_connect, publish
from tfos_ml.cluster.export import check_destination
from tfos_ml.cluster.launcher import RunResult, launch
from tfos_ml.cluster.node import NodeTask
from tfos_ml.cluster.template import ClusterTemplate, make_template
from tfos_ml.feed.feeder import VALIDATION_COLUMN
from tfos_ml.feed.steps import PARTITION_SHIFT
from tfos_ml.model import TFModel
from tfos_ml.params import TRAINING_PARAMS, InputMode, TrainingParams, accessors
from tfos_ml.training import sources

if TYPE_CHECKING:
    from pyspark.sql import Column, DataFrame, SparkSession

TrainFn = Callable[[Any, Any], Any]


class TrainArgs(argparse.Namespace):
    """What a train function gets as ``args``: ``args.epochs`` and ``args["epochs"]`` alike."""

    def __getitem__(self, name: str) -> Any:
        return vars(self)[name]

    def get(self, name: str, default: Any = None) -> Any:
        """The value of a name, or `default`."""
        return vars(self).get(name, default)


@accessors(*TRAINING_PARAMS)
class TFEstimator(TrainingParams, Estimator[TFModel]):
    """Runs a TensorFlow train function on every node of a cluster made of Spark tasks.

    Parameters
    ----------
    trainFn : callable
        ``trainFn(args, ctx)``, the TensorFlow main function; ``ctx`` is a :class:`NodeContext`.
        Sent to the nodes by cloudpickle. It runs in a fresh process, before which no
        TensorFlow state is made.
    tfArgs : dict, argparse.Namespace or list of str, optional
        Arguments of the user's own, reached as ``args.name`` or ``args["name"]``; a list as
        ``args.argv``. Params that are set explicitly override them, defaults of Params do not.
    featuresCol, labelCol, predictionCol, weightCol, validationIndicatorCol : str
        As in Spark ML. The default ``labelCol`` may be missing from the DataFrame; one that is
        set may not.
    inputMapping : dict of str to str, optional
        ``{column: tensor name}`` for several inputs; replaces ``featuresCol``.
    labelMapping : dict of str to str, optional
        ``{column: output name}`` for several labels; replaces ``labelCol``.
    outputMapping : dict of str to str, optional
        ``{output name: column}`` for several outputs; replaces ``predictionCol``.
    clusterSize : int, default 1
        Number of all nodes; each takes one Spark task slot.
    numPS : int, default 0
        Number of parameter servers.
    masterNode : {"chief", "master"}, optional
        Job name of the chief; unset, worker 0 is chief.
    evalNode : bool, default False
        Whether one node is an evaluator.
    inputMode : str, default ``InputMode.SPARK``
        ``InputMode.TENSORFLOW``: the nodes read the DataFrame's files themselves.
    epochs, batchSize : int, default 1, 100
        Passes over the data; the global batch, rows a step over all workers.
    steps : int, optional
        For train functions that count steps; reaches them as ``args.steps``.
    shuffle : bool, default True
        Whether each pass of ``ctx.dataset`` has a new order, decided by ``seed``.
    seed : int
    modelDir, exportDir : str, optional
        Directory of checkpoints; URI where the SavedModel is published.
    signatureDefKey, tagSet : str, default "serving_default", "serve"
        Which signature of the SavedModel.
    reservationTimeout, feedTimeout : float, default 600, 600
        Deadlines in seconds, for the nodes to start and for rows to come or be taken.
    maxRestarts : int, default 0
        How often a run whose node failed is begun again.
    nodeEnv : dict of str to str, default {}
        Environment of the TensorFlow processes.
    nullPolicy : {"error", "skip", "keep"}, default "error"
        What becomes of rows with nulls; in ``fit``, "keep" acts as "error".
    padValue : float, default 0
        Fills ragged rows.
    verbose : {0, 1, 2}, default 1
        Silent, a progress bar, or a line per epoch.

    Examples
    --------
    >>> def train_fn(args, ctx):
    ...     import keras
    ...     model = keras.Sequential([keras.layers.Dense(1)])
    ...     model.compile("sgd", "mse")
    ...     model.fit(ctx.dataset(epochs=ctx.epochs), shuffle=False, verbose=0)
    ...     ctx.export_saved_model(model)
    >>> estimator = TFEstimator(trainFn=train_fn, epochs=3, batchSize=32)
    >>> model = estimator.fit(df)                                   # doctest: +SKIP
    >>> model.transform(df)                                         # doctest: +SKIP
    """

    @keyword_only
    def __init__(
        self,
        *,
        trainFn: TrainFn | None = None,
        tfArgs: Mapping[str, Any] | argparse.Namespace | Sequence[str] | None = None,
        **params: Any,
    ):
        super().__init__()
        self._set_training_defaults()
        self._train_fn: TrainFn | None = None
        self._tf_args: Any = None
        self._init_params()

    def _init_params(self) -> None:
        values: dict[str, Any] = self.__dict__.pop("_input_kwargs")  # or each copy would keep the function
        self.setParams(**values)

    def setParams(self, **params: Any) -> TFEstimator:
        """Set ``trainFn``, ``tfArgs`` and any Param by keyword."""
        if "trainFn" in params:
            self.setTrainFn(params.pop("trainFn"))
        if "tfArgs" in params:
            self.setTfArgs(params.pop("tfArgs"))
        unknown = [name for name in params if not self.hasParam(name)]
        if unknown:
            raise errors.ParamError(f"Unknown parameters {unknown}. Known: {sorted(TRAINING_PARAMS)}")
        return self._set_checked(**params)

    def setTrainFn(self, value: TrainFn | None) -> TFEstimator:
        """Set the train function."""
        if value is not None and not callable(value):
            raise errors.ParamError(f"trainFn must be a function of (args, ctx). Received: {value!r}")
        self._train_fn = value
        return self

    def getTrainFn(self) -> TrainFn | None:
        """The train function."""
        return self._train_fn

    def setTfArgs(self, value: Any) -> TFEstimator:
        """Set the user's own arguments."""
        kinds = (Mapping, argparse.Namespace, list, tuple)
        if value is not None and not isinstance(value, kinds):
            raise errors.ParamError(f"tfArgs must be a dict, Namespace or list of arguments. Received: {value!r}")
        self._tf_args = value
        return self

    def getTfArgs(self) -> Any:
        """The user's own arguments."""
        return self._tf_args

    def _fit(self, dataset: DataFrame) -> TFModel:
        self.check_params()
        spark = dataset.sparkSession
        template = self._template()
        columns = self._feed_schema(dataset)
        self._check_export_dir()
        payload = publish(spark, self._pickle_payload())
        task = NodeTask(
            run_id="",
            template=template,
            schema=columns,
            payload=payload,
            settings=self._settings(dataset),
            environment=dict(self._get("nodeEnv")),
            reservation_timeout=self._get("reservationTimeout"),
            feed_timeout=self._get("feedTimeout"),
            export_dir=self._get("exportDir"),
            control=None,
        )

        def rows() -> DataFrame:
            if not columns.columns:
                return spark.range(0, template.size, 1, template.size)
            return self._rows_by_node(dataset, columns, template)

        result = launch(spark, rows, task, max_restarts=self._get("maxRestarts"), verbose=self._get("verbose"))
        return self._make_model(result)

    def _template(self) -> ClusterTemplate:
        return make_template(
            self._get("clusterSize"), self._get("numPS"), self._get("masterNode"), self._get("evalNode")
        )

    def _feed_schema(self, df: DataFrame) -> schema.FeedSchema:
        """The columns to feed, checked against the DataFrame."""
        if self._get("inputMode") == InputMode.TENSORFLOW:
            return schema.FeedSchema(())
        inputs = self._get("inputMapping") or {self._get("featuresCol"): "features"}
        labels = self._get("labelMapping")
        if labels is None:
            label = self._get("labelCol")
            labelled = self.isSet(self.labelCol) or label in df.columns
            labels = {label: "label"} if labelled else {}
        wanted = [(c, t, "feature") for c, t in inputs.items()] + [(c, t, "label") for c, t in labels.items()]
        if self._get("weightCol"):
            wanted.append((self._get("weightCol"), "weight", "weight"))
        for role in ("feature", "label"):
            names = [t for _, t, r in wanted if r == role]
            if len(set(names)) < len(names):
                raise errors.ParamError(f"Each tensor takes one column, but {role}s are mapped to {names}")
        specs = tuple(schema.column_spec(df.schema, column, tensor, role) for column, tensor, role in wanted)
        indicator = self._get("validationIndicatorCol")
        if indicator and schema.column_spec(df.schema, indicator, indicator, "validation indicator").dtype != "bool":
            raise errors.ColumnTypeError(f"validationIndicatorCol '{indicator}' must be boolean. Cast it.")
        return schema.FeedSchema(specs, self._get("inputMapping") is not None, self._get("labelMapping") is not None)

    def _check_export_dir(self) -> None:
        uri = self._get("exportDir")
        problem = check_destination(uri) if uri else None
        if problem:
            raise errors.DestinationError(
                f"exportDir={uri!r} cannot be published to: {problem}. Choose a new directory."
            )

    def _pickle_payload(self) -> bytes:
        if self._train_fn is None:
            raise errors.ParamError("trainFn is not set. Pass TFEstimator(trainFn=...), a function of (args, ctx).")
        try:
            pickled = cloudpickle.dumps((self._train_fn, self._merged_args()))
        except Exception as error:
            raise errors.TrainFnPickleError(
                f"trainFn cannot be sent to the nodes: {_culprit(self._train_fn, self._tf_args)} cannot be pickled "
                f"({type(error).__name__}: {error}). Create it inside the function instead."
            ) from error
        payload: bytes = cloudpickle.dumps((sources.collect(self._train_fn), pickled))
        return payload

    def _merged_args(self) -> TrainArgs:
        """Params set explicitly over tfArgs, and tfArgs over defaults of Params."""
        given = self._tf_args
        own: dict[str, Any] = {}
        if isinstance(given, Mapping):
            own = dict(given)
        elif isinstance(given, argparse.Namespace):
            own = dict(vars(given))
        elif given is not None:
            own = {"argv": list(given)}
        defaults = {p.name: v for p, v in self._defaultParamMap.items()}
        explicit = {p.name: v for p, v in self._paramMap.items()}
        unset = {p.name: None for p in self.params}
        return TrainArgs(**{**unset, **defaults, **own, **explicit})

    def _settings(self, df: DataFrame) -> dict[str, Any]:
        """JSON-serialisable settings of the nodes' contexts."""
        spark = df.sparkSession
        return {
            "epochs": self._get("epochs"),
            "batch_size": self._get("batchSize"),
            "shuffle": self._get("shuffle"),
            "seed": self._get("seed"),
            "pad_value": self._get("padValue"),
            "model_dir": self._get("modelDir"),
            "signature_def_key": self._get("signatureDefKey"),
            "default_fs": _default_fs(spark),
            "files": self._input_files(df),
            "restart_count": 0,
        }

    def _input_files(self, df: DataFrame) -> list[str]:
        if self._get("inputMode") != InputMode.TENSORFLOW:
            return []
        files = sorted(df.inputFiles())
        if not files:
            raise errors.EmptyDataError(
                "inputMode=TENSORFLOW lets the nodes read the DataFrame's files, but it has none. Read it from files, "
                "or use InputMode.SPARK."
            )
        return files

    def _rows_by_node(self, df: DataFrame, columns: schema.FeedSchema, template: ClusterTemplate) -> DataFrame:
        """The plan whose partition *i* holds the rows of node *i*, each with its row id."""
        expressions = [schema.spark_column(spec, df).alias(f"c{i}") for i, spec in enumerate(columns.columns)]
        expressions.append(F.monotonically_increasing_id().alias(schema.ROW_COLUMN))
        indicator = self._get("validationIndicatorCol")
        if indicator:
            expressions.append(F.coalesce(df[f"`{indicator}`"], F.lit(False)).alias(VALIDATION_COLUMN))
        if self._get("nullPolicy") == "skip":
            df = df.where(schema.no_nulls(df, columns.columns))
        rows = df.select(*expressions)
        # Dealing from a partition's own number on spreads the rows of many small partitions, too.
        row = F.col(schema.ROW_COLUMN)
        dealt = F.shiftright(row, PARTITION_SHIFT) + row.bitwiseAND(F.lit((1 << PARTITION_SHIFT) - 1))
        rank = _pick(template.feed_ranks, dealt)
        if indicator:
            rank = F.when(F.col(VALIDATION_COLUMN), _pick(template.validation_ranks, dealt)).otherwise(rank)
        return rows.repartitionById(template.size, rank)

    def _make_model(self, result: RunResult) -> TFModel:
        model = TFModel._from_run(result)
        model._resetUid(self.uid)
        self._copyValues(model)
        return model


def _pick(ranks: Sequence[int], number: Column) -> Column:
    """One of some ranks, by a number that is dealt round."""
    at = F.pmod(number, F.lit(len(ranks))).cast("int")
    return F.element_at(F.array(*map(F.lit, ranks)), at + 1)


def _default_fs(spark: SparkSession) -> str:
    if is_connect(spark):
        return "file:///"
    fs: str = spark.sparkContext._jsc.hadoopConfiguration().get("fs.defaultFS", "file:///")
    return fs


def _culprit(function: Any, args: Any) -> str:
    """Name of what a function captures that cannot be pickled."""
    captured: dict[str, Any] = {"tfArgs": args}
    if isinstance(function, types.FunctionType):
        cells = zip(function.__code__.co_freevars, function.__closure__ or (), strict=True)
        captured.update({f"the captured variable '{name}'": cell.cell_contents for name, cell in cells})
        names = [n for n in function.__code__.co_names if n in function.__globals__]
        captured.update({f"the global '{n}'": function.__globals__[n] for n in names})
        captured.update({f"default argument {i}": v for i, v in enumerate(function.__defaults__ or ())})
    for name, value in captured.items():
        try:
            cloudpickle.dumps(value)
        except Exception:
            return f"{name} (a {type(value).__module__}.{type(value).__qualname__})"
    return f"something in {function!r}"
