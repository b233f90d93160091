"""``TFEstimator`` and ``TFModel`` with the arguments and Params of TensorFlowOnSpark.

:class:`tfos_ml.TFEstimator` and :class:`tfos_ml.TFModel` do more: they can be saved, restart, report metrics, need no
shared filesystem, and run on Spark Connect.
"""

from __future__ import annotations

import argparse
import copy
import itertools
import re
import sys
from collections.abc import Callable, Iterable, Iterator
from typing import TYPE_CHECKING, Any

from pyspark.ml import Estimator, Model
from pyspark.ml.param import Param, Params, TypeConverters
from pyspark.sql import functions as F

from tfos_ml.common import user_warnings
from tfos_ml.common.arguments import check_dataframe
from tfos_ml.compat import TFCluster, util
from tfos_ml.compat.gpu_info import num_gpus
from tfos_ml.compat.map_functions import MapFun
from tfos_ml.compat.util import removed
from tfos_ml.data.schema import quoted
from tfos_ml.errors import ParamError
from tfos_ml.stages.tf_model import TFModel as NativeModel
from tfos_ml.tfcluster.cluster_arguments import classic_session

if TYPE_CHECKING:
    from pyspark.sql import DataFrame

_WIDER = {"float": "double", "tinyint": "bigint", "smallint": "bigint", "int": "bigint"}  # types of Spark SQL
_ABBREVIATIONS = {"ps": "PS", "tfrecord": "TFRecord"}


class TFTypeConverters:
    """Converters of Params that Spark has none for."""

    @staticmethod
    def toDict(value: Any) -> dict[Any, Any]:
        """A dict as it is."""
        if not isinstance(value, dict):
            raise TypeError(f"Expected a dict. Received: {value!r}")
        return value


_DEFAULTS: dict[str, Any] = {}  # of Params, by name


def _mixin(class_name: str, **params: tuple[str, Callable[[Any], Any], Any]) -> Any:
    """A class of Params: by name their doc, converter and default. It has a setter and a getter for each."""
    members: dict[str, Any] = {"__doc__": f"Has {' and '.join(params)}.", "__module__": __name__}
    for name, (doc, converter, default) in params.items():
        words = "".join(_ABBREVIATIONS.get(word, word.title()) for word in name.split("_"))
        members[name] = Param(Params._dummy(), name, doc, converter)
        members[f"set{words}"], members[f"get{words}"] = _setter(name, doc), _getter(name, doc)
        _DEFAULTS[name] = default
    return type(class_name, (Params,), members)


def _setter(name: str, doc: str) -> Callable[[Any, Any], Any]:
    def setter(self: Any, value: Any) -> Any:
        return self._set(**{name: value})

    setter.__doc__ = f"Set {name}: {doc}."
    return setter


def _getter(name: str, doc: str) -> Callable[[Any], Any]:
    def getter(self: Any) -> Any:
        return self.getOrDefault(name)

    getter.__doc__ = f"Get {name}: {doc}."
    return getter


def _fed(value: Any) -> int:
    if value == TFCluster.InputMode.TENSORFLOW:
        raise ParamError(
            "input_mode=TENSORFLOW: an estimator feeds its DataFrame. To read files, run the train function with "
            "TFCluster.run(), or use tfos_ml.TFEstimator(inputMode=InputMode.TENSORFLOW)."
        )
    return TypeConverters.toInt(value)


_INTEGER, _TEXT, _FLAG = TypeConverters.toInt, TypeConverters.toString, TypeConverters.toBoolean
_DICT = TFTypeConverters.toDict

HasBatchSize: Any = _mixin("HasBatchSize", batch_size=("rows of a batch", _INTEGER, 100))
HasClusterSize: Any = _mixin("HasClusterSize", cluster_size=("number of nodes", _INTEGER, 1))
HasEpochs: Any = _mixin("HasEpochs", epochs=("how often the rows are fed", _INTEGER, 1))
HasExportDir: Any = _mixin("HasExportDir", export_dir=("directory of the SavedModel", _TEXT, None))
HasGraceSecs: Any = _mixin(
    "HasGraceSecs", grace_secs=("seconds that evaluators and parameter servers have after the training", _INTEGER, 30)
)
HasInputMapping: Any = _mixin("HasInputMapping", input_mapping=("{column: tensor name}", _DICT, {}))
HasInputMode: Any = _mixin("HasInputMode", input_mode=("who reads the data", _fed, TFCluster.InputMode.SPARK))
HasMasterNode: Any = _mixin("HasMasterNode", master_node=("job name of the chief", _TEXT, "chief"))
HasModelDir: Any = _mixin("HasModelDir", model_dir=("directory of checkpoints", _TEXT, None))
HasNumPS: Any = _mixin(
    "HasNumPS",
    num_ps=("number of parameter servers", _INTEGER, 0),
    driver_ps_nodes=("whether parameter servers run on the driver", _FLAG, False),
)
HasOutputMapping: Any = _mixin("HasOutputMapping", output_mapping=("{output name: column}", _DICT, {}))
HasProtocol: Any = _mixin("HasProtocol", protocol=("passed on to the train function only", _TEXT, "grpc"))
HasReaders: Any = _mixin("HasReaders", readers=("passed on to the train function only", _INTEGER, 1))
HasSignatureDefKey: Any = _mixin("HasSignatureDefKey", signature_def_key=("signature of the SavedModel", _TEXT, None))
HasSteps: Any = _mixin("HasSteps", steps=("passed on to the train function only", _INTEGER, 1000))
HasTagSet: Any = _mixin("HasTagSet", tag_set=("tags of the SavedModel, separated by commas", _TEXT, None))
HasTensorboard: Any = _mixin("HasTensorboard", tensorboard=("whether the chief starts TensorBoard", _FLAG, False))
HasTFRecordDir: Any = _mixin("HasTFRecordDir", tfrecord_dir=("passed on to the train function only", _TEXT, None))


class Namespace(argparse.Namespace):
    """Arguments by name, from a dict or a Namespace; or a list of command line arguments as ``argv``."""

    argv: list[str] | None = None

    def __init__(self, d: Any):
        if isinstance(d, list):
            self.argv = d
        elif isinstance(d, (dict, argparse.Namespace)):
            vars(self).update(d if isinstance(d, dict) else vars(d))
        else:
            raise ParamError(f"Arguments must be a dict, a Namespace or a list of text. Received: {type(d)}")

    def __iter__(self) -> Iterator[str]:
        return iter(list(self.argv or vars(self)))


class TFParams(Params):
    """Stages that have arguments of the user's own, ``args``, beside Params."""

    args: Namespace

    def _set_args(self, args: Any) -> None:
        """Take up the user's arguments, and set the defaults of Params."""
        self.args = Namespace(args)
        self._setDefault(**{param.name: _DEFAULTS[param.name] for param in self.params})

    def merge_args_params(self) -> Namespace:
        """The arguments, with the values of all Params over them, defaults included; warns if a default hides one."""
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
                f"{type(self).__name__}: the arguments have {hidden}, but the defaults of Params replace them, as in "
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

    ``train_fn(args, ctx)`` is the map function of the cluster; ``args`` are `tf_args` and Params. If `tf_args` is a
    list, ``args`` is that list, which also becomes ``sys.argv``. The chief writes the model to ``args.export_dir``. The
    columns of ``input_mapping`` are fed as Rows, sorted by name. `export_fn` is of TensorFlow 1, and must be None.
    """

    def __init__(self, train_fn: MapFun, tf_args: Any, export_fn: Any = None):
        super().__init__()
        if export_fn is not None:
            raise ParamError("export_fn is of TensorFlow 1. Export the model at the end of train_fn, on the chief.")
        self.train_fn = train_fn
        self.export_fn = export_fn
        self._set_args(tf_args)

    def _fit(self, dataset: DataFrame) -> TFModel:
        check_dataframe(dataset, "TFEstimator.fit")
        columns = sorted(self.getInputMapping())
        if not columns:
            raise ParamError("input_mapping is empty. Call setInputMapping({column: tensor name}) before fit.")
        args = self.merge_args_params()
        rows = dataset.select([quoted(column) if column in dataset.columns else column for column in columns]).rdd
        with TFCluster.run(
            classic_session(dataset.sparkSession, "TFEstimator of tfos_ml.compat").sparkContext,
            self.train_fn,
            self.args.argv or args,
            self.getClusterSize(),
            self.getNumPS(),
            self.getTensorboard(),
            TFCluster.InputMode.SPARK,
            driver_ps_nodes=self.getDriverPSNodes(),
            master_node=self.getMasterNode(),
        ) as cluster:
            cluster.train(rows, self.getEpochs())
            cluster.shutdown(grace_secs=self.getGraceSecs())
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

    ``transform`` returns the columns of ``output_mapping``, sorted by the names of the outputs, and no others. Numbers
    are double and bigint, strings are string; a null gives null outputs. A value that the tensor's dtype cannot hold
    exactly is an error. Executors need no access to ``export_dir``. ``signature_def_key`` is ``"serving_default"``
    unless it is set. `tf_args` are as of :class:`TFEstimator`.
    """

    def __init__(self, tf_args: Any):
        super().__init__()
        self._set_args(tf_args)

    def _transform(self, dataset: DataFrame) -> DataFrame:
        check_dataframe(dataset, "TFModel.transform")
        args = vars(self.merge_args_params())
        needed = ("export_dir", "input_mapping", "output_mapping")
        if missing := [name for name in needed if not args[name]]:
            raise ParamError(f"TFModel.transform needs {', '.join(needed)}. Not set: {missing}")
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
        scored = native.transform(dataset.select(sorted(args["input_mapping"])))
        types = dict(scored.dtypes)
        return scored.select(*(F.col(names[c]).cast(_wide(types[names[c]])).alias(c) for c in outputs))


def _wide(dtype: str) -> str:
    """A type of Spark SQL in the widths of Python's numbers: double and bigint."""
    return re.sub(r"\w+", lambda word: _WIDER.get(word[0], word[0]), dtype)


def single_node_env(args: Any) -> None:
    """Prepare this process for TensorFlow on its own: ``sys.argv``, ``CLASSPATH`` and GPUs.

    A list for `args`, or its ``argv``, becomes ``sys.argv``; ``num_gpus`` in it is the number of GPUs, 1 by default.
    """
    argv = args if isinstance(args, list) else getattr(args, "argv", None)
    if argv:
        sys.argv = argv
    wanted = num_gpus(args)
    util.single_node_env(1 if wanted is None else wanted)


get_meta_graph_def = removed("pipeline.get_meta_graph_def", "Use tfos_ml.TFModel(exportDir=...).signature().")


def yield_batch(iterable: Iterable[Any], batch_size: int, num_tensors: int = 1) -> Iterator[list[list[Any]]]:
    """Batches of rows as columns: a list of values for each of the first `num_tensors` columns.

    A None among the rows ends them. The last batch may have fewer rows than `batch_size`. A ``bytearray`` gives bytes.
    """
    rows = itertools.takewhile(lambda row: row is not None, iterable)
    while batch := list(itertools.islice(rows, batch_size)):
        yield [[_without_bytearray(row[i]) for row in batch] for i in range(num_tensors)]


def _without_bytearray(value: Any) -> Any:
    return bytes(value) if isinstance(value, bytearray) else value
