"""``TFEstimator``: a user's TensorFlow train function as a Spark ML estimator."""

from __future__ import annotations

import argparse
from collections.abc import Callable, Mapping
from typing import TYPE_CHECKING, Any

from tfos_ml import errors
from tfos_ml.common.arguments import check_call
from tfos_ml.data import schema
from tfos_ml.protocol.pickling import PROGRAM_FILE, pack_program, unpack_program
from tfos_ml.stages.base import ClusterEstimator
from tfos_ml.stages.keywords import TFEstimatorKeywords
from tfos_ml.stages.params import TRAINING_PARAMS, TrainFnParams, accessors

if TYPE_CHECKING:
    from pyspark.sql import DataFrame
    from typing_extensions import Self

TrainFn = Callable[[Any, Any], Any]


class TrainArgs(argparse.Namespace):
    """What a train function gets as ``args``: ``args.epochs`` and ``args["epochs"]`` alike."""

    def __getitem__(self, name: str) -> Any:
        return vars(self)[name]

    def get(self, name: str, default: Any = None) -> Any:
        """The value of a name, or `default`."""
        return vars(self).get(name, default)


@accessors(*TRAINING_PARAMS)
class TFEstimator(TFEstimatorKeywords, TrainFnParams, ClusterEstimator):
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
    weightMapping : dict of str to str, optional
        ``{column: output name}`` for weights of several outputs; replaces ``weightCol``.
    outputMapping : dict of str to str, optional
        ``{output name: column}`` for several outputs; replaces ``predictionCol``.
    clusterSize : int, default 1
        Number of all nodes; each takes one Spark task slot.
    driverPSNodes : bool, default False
        Whether parameter servers run on the driver's host, without a slot of Spark's; not on Spark Connect.
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
    tensorboard : bool, default False
        Whether the chief starts TensorBoard for the time of the fit; its address is shown as progress is.
    logDir : str, optional
        What TensorBoard shows, ``ctx.log_dir``. Unset, with `tensorboard` a directory ``tensorboard_<run>`` in the
        working directory of the chief's executor, which stays and is named on the driver; else one that goes with it.
    signatureDefKey, tagSet : str, default "serving_default", "serve"
        Which signature of the SavedModel.
    reservationTimeout, feedTimeout : float, default 600, 600
        Deadlines in seconds, for the nodes to start and for rows to come or be taken.
    maxRestarts : int, default 0
        How often a run whose node failed is begun again.
    communication : {"auto", "ring", "nccl"}, default "auto"
        How TensorFlow carries out collective operations (``ctx.communication_options()``).
    protocol : str, default "grpc"
        Of TensorFlow's own servers (``ctx.start_server()``).
    nodeCpus, nodeGpus : int, optional
        CPUs and GPUs of each node, by Spark's stage-level scheduling; without effect in local mode.
    nodeEnv : dict of str to str, default {}
        Environment of the TensorFlow processes.
    nullPolicy : {"error", "skip", "keep"}, default "error"
        What becomes of rows with nulls; in ``fit``, "keep" acts as "error".
    nanPolicy : {"error", "skip", "keep"}, default "error"
        What becomes of rows with NaN or infinity. Rows that ``fit`` skips are counted in
        ``model.summary["skipped_rows"]``.
    padValue : float, default 0
        Fills rows of arrays of different lengths, up to the longest of their batch. Of vectors, all
        of a column must have one size.
    verbose : {0, 1, 2}, default 1
        Silent, a progress bar, or a line per epoch and what the nodes print. In local mode the latter is on the
        console anyway; on Spark Connect it comes at the end.

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

    __module__ = "tfos_ml"

    def _construct(self, given: dict[str, Any]) -> None:
        self._set_train_fn_defaults()
        self._train_fn: TrainFn | None = None
        self._tf_args: Any = None
        self._set_given(given)

    def _set_given(self, given: dict[str, Any]) -> Self:
        if "trainFn" in given:
            self.setTrainFn(given.pop("trainFn"))
        if "tfArgs" in given:
            self.setTfArgs(given.pop("tfArgs"))
        self._check_names(given)
        return self._set_checked(**given)

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

    def _prepare(self, dataset: DataFrame) -> tuple[schema.FeedSchema, bytes]:
        return self._feed_schema(dataset.schema), self._pickle_payload()

    def _pickle_payload(self) -> bytes:
        if self._train_fn is None:
            raise errors.ParamError("trainFn is not set. Pass TFEstimator(trainFn=...), a function of (args, ctx).")
        check_call("trainFn", self._train_fn, "(args, ctx)", None, None)
        return self._pack((self._train_fn, self._merged_args()))

    def _pack(self, value: Any) -> bytes:
        return pack_program("trainFn", self._train_fn, value, {"tfArgs": self._tf_args})

    def _files(self) -> dict[str, bytes]:
        return {PROGRAM_FILE: self._pack((self._train_fn, self._tf_args))}

    def _restore(self, files: dict[str, bytes], facts: dict[str, Any]) -> None:
        self._train_fn, self._tf_args = unpack_program(files[PROGRAM_FILE])

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
