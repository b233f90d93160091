"""``TFEstimator``: a user's TensorFlow train function as a Spark ML estimator."""

from __future__ import annotations

import argparse
from collections.abc import Callable, Mapping
from typing import TYPE_CHECKING, Any

from tfos_ml import errors
from tfos_ml.common.arguments import check_call
from tfos_ml.common.local_files import Content, bytes_of
from tfos_ml.data import schema
from tfos_ml.protocol.pickling import PROGRAM_FILE, pack_program, unpack_program
from tfos_ml.stages.cluster_estimator import ClusterEstimator, Program
from tfos_ml.stages.keywords import TFEstimatorConstructor
from tfos_ml.stages.params import TrainFnParams
from tfos_ml.stages.params_base import document_params
from tfos_ml.worker.train_args import TrainArgs

if TYPE_CHECKING:
    from pyspark.sql import DataFrame

TrainFn = Callable[[Any, Any], Any]


@document_params
class TFEstimator(TFEstimatorConstructor, TrainFnParams, ClusterEstimator):
    """Runs a TensorFlow train function on every node of a cluster made of Spark tasks.

    Parameters
    ----------
    trainFn : callable
        ``trainFn(args, ctx)``, the TensorFlow program; ``ctx`` is a :class:`NodeContext`. It is pickled with
        cloudpickle and runs in its own process, in which no TensorFlow state exists before.
    tfArgs : dict, argparse.Namespace or list of str, optional
        Your arguments, available as ``args.name`` or ``args["name"]``; a list as ``args.argv``. Params that you set
        override them; defaults of Params do not.

    Examples
    --------
    >>> def train_fn(args, ctx):
    ...     import keras
    ...     model = keras.Sequential([keras.layers.Dense(1)])
    ...     model.compile("sgd", "mse")
    ...     model.fit(ctx.dataset(epochs=ctx.epochs), shuffle=False, verbose=0)
    ...     ctx.export_saved_model(model)
    >>> estimator = TFEstimator(trainFn=train_fn, epochs=3, batchSize=32)
    >>> model = estimator.fit(df)
    >>> model.transform(df).count()
    100
    """

    __module__ = "tfos_ml"

    def _argument(self, name: str, value: Any) -> Any:
        if name == "trainFn" and value is not None and not callable(value):
            raise errors.ParamError(f"trainFn must be a function of (args, ctx). Received: {value!r}")
        if name == "tfArgs" and not isinstance(value, (Mapping, argparse.Namespace, list, tuple, type(None))):
            raise errors.ParamError(f"tfArgs must be a dict, Namespace or list of arguments. Received: {value!r}")
        return value

    def _prepare(self, dataset: DataFrame) -> tuple[schema.FeedSchema, Program]:
        return self._feed_schema(dataset.schema), Program(self._pickle_payload())

    def _pickle_payload(self) -> bytes:
        train_fn = self.getTrainFn()
        if train_fn is None:
            raise errors.ParamError("trainFn is not set. Pass TFEstimator(trainFn=...), a function of (args, ctx).")
        check_call("trainFn", train_fn, "(args, ctx)", None, None)
        return self._pack(self._merged_args())

    def _pack(self, arguments: Any) -> bytes:
        return pack_program("trainFn", self.getTrainFn(), (self.getTrainFn(), arguments), {"tfArgs": self.getTfArgs()})

    def _files(self) -> dict[str, bytes]:
        return {PROGRAM_FILE: self._pack(self.getTfArgs())}

    def _restore(self, files: Mapping[str, Content], metadata: dict[str, Any]) -> None:
        train_fn, tf_args = unpack_program(bytes_of(files[PROGRAM_FILE]))
        self._arguments = {"trainFn": train_fn, "tfArgs": tf_args}

    def _merged_args(self) -> TrainArgs:
        """Params set explicitly over tfArgs, and tfArgs over defaults of Params."""
        given = self.getTfArgs()
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
