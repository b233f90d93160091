"""``TFEstimator`` and ``TFModel`` with the arguments and Params of TensorFlowOnSpark.

:class:`tfos_ml.TFEstimator` and :class:`tfos_ml.TFModel` do more: they can be saved, restart, report metrics, need no
shared filesystem, and run on Spark Connect.
"""

from __future__ import annotations

import argparse
import copy
import sys
from collections.abc import Iterable, Iterator
from typing import TYPE_CHECKING, Any, NoReturn

from pyspark.ml import Estimator, Model
from pyspark.ml.param import Params
from pyspark.sql import functions as F

from tfos_ml.common import user_warnings
from tfos_ml.common.arguments import check_dataframe
from tfos_ml.compat import TFCluster, util
from tfos_ml.compat.gpus import num_gpus
from tfos_ml.compat.map_functions import MapFun
from tfos_ml.compat.pipeline_params import (
    HasBatchSize,
    HasClusterSize,
    HasEpochs,
    HasExportDir,
    HasGraceSecs,
    HasInputMapping,
    HasInputMode,
    HasMasterNode,
    HasModelDir,
    HasNumPS,
    HasOutputMapping,
    HasProtocol,
    HasReaders,
    HasSignatureDefKey,
    HasSteps,
    HasTagSet,
    HasTensorboard,
    HasTFRecordDir,
    TFTypeConverters,
)
from tfos_ml.data.schema import quoted
from tfos_ml.driver.programs import classic_session
from tfos_ml.errors import ParamError, RemovedError
from tfos_ml.stages.model import TFModel as NativeModel

if TYPE_CHECKING:
    from pyspark.sql import DataFrame
    from pyspark.sql.types import DataType

__all__ = [
    "HasBatchSize",
    "HasClusterSize",
    "HasEpochs",
    "HasExportDir",
    "HasGraceSecs",
    "HasInputMapping",
    "HasInputMode",
    "HasMasterNode",
    "HasModelDir",
    "HasNumPS",
    "HasOutputMapping",
    "HasProtocol",
    "HasReaders",
    "HasSignatureDefKey",
    "HasSteps",
    "HasTFRecordDir",
    "HasTagSet",
    "HasTensorboard",
    "Namespace",
    "TFEstimator",
    "TFModel",
    "TFParams",
    "TFTypeConverters",
    "get_meta_graph_def",
    "single_node_env",
    "yield_batch",
]


class Namespace:
    """Arguments by name, from a dict or a Namespace; or a list of command line arguments as ``argv``."""

    argv: list[str] | None = None

    def __init__(self, d: Any):
        if isinstance(d, list):
            self.argv = d
        elif isinstance(d, dict):
            vars(self).update(d)
        elif isinstance(d, (argparse.Namespace, Namespace)):
            vars(self).update(vars(d))
        else:
            raise ParamError(f"Arguments must be a dict, a Namespace or a list of text. Received: {type(d)}")

    def __iter__(self) -> Iterator[str]:
        return iter(list(self.argv or vars(self)))

    def __repr__(self) -> str:
        if self.argv:
            return repr(self.argv)
        return f"Namespace({', '.join(f'{name}={value!r}' for name, value in sorted(vars(self).items()))})"

    def __eq__(self, other: object) -> bool:
        if self.argv:
            return self.argv == (other.argv if isinstance(other, Namespace) else other)
        return isinstance(other, (Namespace, argparse.Namespace)) and vars(self) == vars(other)

    __hash__ = None  # type: ignore[assignment]


class TFParams(Params):
    """Stages that have arguments of the user's own, ``args``, beside Params."""

    args: Namespace

    def merge_args_params(self) -> Namespace:
        """The arguments, and over them all Params, also those that have their default.

        Differences: warns where a default takes the place of another value among the arguments.
        """
        merged = copy.copy(self.args)
        hidden = {}
        for param in self.params:
            value = self.getOrDefault(param)
            if not self.isSet(param) and vars(merged).get(param.name, value) != value:
                hidden[param.name] = vars(merged)[param.name]
            setattr(merged, param.name, value)
        if hidden:
            taken = {name: getattr(merged, name) for name in hidden}
            user_warnings.warn(
                f"{type(self).__name__}: the arguments have {hidden}, but defaults of Params go before them, as in "
                f"TensorFlowOnSpark: {taken}. Set these Params, or leave the arguments out."
            )
        return merged


class TFEstimator(
    Estimator[Any],
    TFParams,
    HasInputMapping,
    HasClusterSize,
    HasNumPS,
    HasInputMode,
    HasMasterNode,
    HasProtocol,
    HasGraceSecs,
    HasTensorboard,
    HasModelDir,
    HasExportDir,
    HasTFRecordDir,
    HasBatchSize,
    HasEpochs,
    HasReaders,
    HasSteps,
):
    """Trains on a ``TFCluster``, to which ``fit`` feeds the columns of a DataFrame.

    ``train_fn(args, ctx)`` is the map function of the cluster; ``args`` are `tf_args` and Params, and a list for
    `tf_args` reaches it as it is, and as ``sys.argv``. The chief writes the model to ``args.export_dir``. The columns
    of ``input_mapping`` are fed in sorted order, as Rows, as :meth:`TFCluster.TFCluster.train` says.

    Differences: `export_fn` is of TensorFlow 1, and raises when it is given, not after the training. ``protocol`` and
    ``readers`` only reach `train_fn`.
    """

    def __init__(self, train_fn: MapFun, tf_args: Any, export_fn: Any = None):
        super().__init__()
        if export_fn is not None:
            raise ParamError("export_fn is of TensorFlow 1. Export the model at the end of train_fn, on the chief.")
        self.train_fn = train_fn
        self.export_fn = export_fn
        self.args = Namespace(tf_args)
        self._setDefault(
            input_mapping={},
            cluster_size=1,
            num_ps=0,
            driver_ps_nodes=False,
            input_mode=TFCluster.InputMode.SPARK,
            master_node="chief",
            protocol="grpc",
            tensorboard=False,
            model_dir=None,
            export_dir=None,
            tfrecord_dir=None,
            batch_size=100,
            epochs=1,
            readers=1,
            steps=1000,
            grace_secs=30,
        )

    def _fit(self, dataset: DataFrame) -> TFModel:
        check_dataframe(dataset, "TFEstimator.fit")
        columns = sorted(self.getInputMapping())
        if not columns:
            raise ParamError("input_mapping is empty. Call setInputMapping({column: tensor name}) before fit.")
        args = self.merge_args_params()
        cluster = TFCluster.run(
            classic_session(dataset.sparkSession, "TFEstimator of tfos_ml.compat").sparkContext,
            self.train_fn,
            self.args.argv or args,
            self.getClusterSize(),
            self.getNumPS(),
            self.getTensorboard(),
            TFCluster.InputMode.SPARK,
            driver_ps_nodes=self.getDriverPSNodes(),
            master_node=self.getMasterNode(),
        )
        try:
            cluster.train(
                dataset.select([quoted(c) if c in dataset.columns else c for c in columns]).rdd, self.getEpochs()
            )
            cluster.shutdown(grace_secs=self.getGraceSecs())
        except BaseException as error:
            cluster.__exit__(type(error), error, None)
            raise
        model: TFModel = self._copyValues(TFModel(self.args))
        return model


class TFModel(
    Model,
    TFParams,
    HasInputMapping,
    HasOutputMapping,
    HasBatchSize,
    HasModelDir,
    HasExportDir,
    HasSignatureDefKey,
    HasTagSet,
):
    """Runs a SavedModel over the columns of a DataFrame, each task on its own.

    ``transform`` gives the columns of ``output_mapping``, in the sorted order of the outputs, and no others. `tf_args`
    are as of :class:`TFEstimator`.

    Differences: the DataFrame's types are known before anything runs: numbers are double and bigint as there, text is
    string. A binary column reaches a tensor of strings as bytes. A value that the tensor's dtype cannot hold exactly is
    an error; a null gives null outputs. The model reaches the executors from the driver, so these need not see
    ``export_dir``. Unset, ``signature_def_key`` is ``"serving_default"``. Checkpoints of TensorFlow 1 (``model_dir``)
    are not read.
    """

    def __init__(self, tf_args: Any):
        super().__init__()
        self.args = Namespace(tf_args)
        self._setDefault(
            input_mapping={},
            output_mapping={},
            batch_size=100,
            model_dir=None,
            export_dir=None,
            signature_def_key=None,
            tag_set=None,
        )

    def _transform(self, dataset: DataFrame) -> DataFrame:
        check_dataframe(dataset, "TFModel.transform")
        args = vars(self.merge_args_params())
        for name in ("export_dir", "input_mapping", "output_mapping"):
            if not args[name]:
                raise ParamError(
                    f"{name} is not set. TFModel.transform needs export_dir, input_mapping, output_mapping"
                )
        columns = sorted(args["input_mapping"])
        outputs = [column for _, column in sorted(args["output_mapping"].items())]
        names = {column: f"_{i}" for i, column in enumerate(outputs)}  # inputs may have the same
        native = NativeModel(
            exportDir=args["export_dir"],
            inputMapping=args["input_mapping"],
            outputMapping={tensor: names[column] for tensor, column in args["output_mapping"].items()},
            predictBatchSize=args["batch_size"],
            signatureDefKey=args["signature_def_key"],
            handleInvalid="keep",
        )
        native._tag_set = args["tag_set"] or "serve"
        scored = native.transform(dataset.select(columns))
        return scored.select(*(_widened(scored, names[column]).alias(column) for column in outputs))


def _widened(df: DataFrame, column: str) -> Any:
    """A column of numbers as Python's numbers are in Spark: double and bigint."""
    return F.col(column).cast(_wide(df.schema[column].dataType))


def _wide(data_type: DataType) -> DataType:
    from pyspark.sql.types import ArrayType, DoubleType, FractionalType, IntegralType, LongType

    if isinstance(data_type, ArrayType):
        return ArrayType(_wide(data_type.elementType), data_type.containsNull)
    if isinstance(data_type, FractionalType):
        return DoubleType()
    return LongType() if isinstance(data_type, IntegralType) else data_type


def single_node_env(args: Any) -> None:
    """Prepare this process for TensorFlow on its own: ``sys.argv``, ``CLASSPATH`` and GPUs.

    A list for `args`, or its ``argv``, becomes ``sys.argv``; ``num_gpus`` in it is the number of GPUs, 1 by default.
    """
    argv = args if isinstance(args, list) else getattr(args, "argv", None)
    if argv:
        sys.argv = argv
    wanted = num_gpus(args)
    util.single_node_env(1 if wanted is None else wanted)


def get_meta_graph_def(saved_model_dir: str, tag_set: str) -> NoReturn:
    """Gone: reads models of TensorFlow 1. Raises ``RemovedError``; theirs fails with TensorFlow 2, too."""
    raise RemovedError(
        "pipeline.get_meta_graph_def() is of TensorFlow 1. tfos_ml.TFModel(exportDir=...).signature() tells inputs and "
        "outputs."
    )


def yield_batch(iterable: Iterable[Any], batch_size: int, num_tensors: int = 1) -> Iterator[list[list[Any]]]:
    """Batches of rows as columns: a list of values for each of the first `num_tensors` columns.

    A None among the rows ends them; the last batch may have fewer than `batch_size`.

    Differences: a ``bytearray`` gives its bytes, not the text that Python shows of it.
    """
    columns: list[list[Any]] = [[] for _ in range(num_tensors)]
    for row in iterable:
        if row is None:
            break
        for column, value in zip(columns, row, strict=False):
            column.append(bytes(value) if isinstance(value, bytearray) else value)
        if len(columns[0]) >= batch_size:
            yield columns
            columns = [[] for _ in range(num_tensors)]
    if columns[0]:
        yield columns
