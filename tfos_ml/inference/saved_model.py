"""Reads the signatures of SavedModels, and loads each SavedModel once per process.

The signature is stored as JSON beside the SavedModel, so that the driver can declare the schema of a transform without
importing TensorFlow.
"""

from __future__ import annotations

import json
import keyword
import re
from collections import OrderedDict
from collections.abc import Callable, Iterable, Mapping
from dataclasses import asdict, dataclass, replace
from pathlib import Path
from types import MappingProxyType
from typing import Any

import msgspec

from tfos_ml.common.optional_packages import needed_by
from tfos_ml.data.casting import TensorInfo
from tfos_ml.errors import MissingPackageError, ModelError, TfosMlError
from tfos_ml.inference.archive import LOADED_MODELS
from tfos_ml.inference.tensorflow_import import import_tensorflow

SIGNATURE_FILE = "tfos_ml_signature.json"
NO_CALL = "it has no call()"
REASON_FILE = "tfos_ml_not_exported.txt"  # written instead of a SavedModel
_ARGUMENTS = "arguments"  # key in SIGNATURE_FILE: names of the SavedModel's arguments by input, if they differ
_SHOWN_CHARACTERS = 300
_MISSING_OP = re.compile(r"Op type not registered '(\w+)'")
DEFAULT_SIGNATURE = "serving_default"
DEFAULT_TAG = "serve"

Scorer = Callable[..., Mapping[str, Any]]

_loaded: OrderedDict[tuple[str, str], Any] = OrderedDict()
"""The models that this process has used most recently; at most ``LOADED_MODELS``."""


def shown_tensors(tensors: Mapping[str, TensorInfo]) -> str:
    """Format tensors by name for messages."""
    return "{" + ", ".join(f"{name}: {tensor}" for name, tensor in tensors.items()) + "}"


@dataclass(frozen=True)
class Signature:
    """Inputs and outputs of a SavedModel, by name."""

    inputs: dict[str, TensorInfo]
    outputs: dict[str, TensorInfo]

    def __str__(self) -> str:
        return f"inputs {shown_tensors(self.inputs)}, outputs {shown_tensors(self.outputs)}"


def write_signature(
    directory: str,
    key: str,
    names: Mapping[str, str] | None = None,
    trained: Mapping[str, TensorInfo] = MappingProxyType({}),
) -> None:
    """Read the signature `key` of a SavedModel and write it to a file beside it, if there is such a signature.

    `names` is the result of :func:`argument_names`; `trained` are the inputs as the training knows them, by name. In
    the SavedModel, a ragged input has two tensors, values and row splits; in the file, it has one.
    """
    if key not in _graph(directory, DEFAULT_TAG).signature_def:
        return
    signature = read_signature(directory, key)
    arguments = {name: argument for name, argument in (names or {}).items() if name != argument}
    inputs_of = {argument: name for name, argument in arguments.items()}
    inputs = {inputs_of.get(argument, argument): tensor for argument, tensor in signature.inputs.items()}
    for name, tensor in trained.items():
        if tensor.ragged:
            del inputs[row_splits_name(name)]
            inputs[name] = TensorInfo(inputs[name].dtype, (None, None), ragged=True)
        elif tensor.padded:
            inputs[name] = replace(inputs[name], padded=tensor.padded)
    content = {key: {**asdict(Signature(inputs, signature.outputs)), _ARGUMENTS: arguments}}
    (Path(directory) / SIGNATURE_FILE).write_text(json.dumps(content))


def argument_names(names: Iterable[str]) -> dict[str, str]:
    """For each name, the most similar name that TensorFlow allows for an argument; they differ by more than case.

    >>> argument_names(["class", "a b", "a_b", "1st"])
    {'class': 'class_', 'a b': 'a_b_1', 'a_b': 'a_b', '1st': 'arg_1st'}
    """
    arguments: dict[str, str] = {}
    names = list(names)
    for name in sorted(names, key=lambda name: _argument(name) != name):  # first the names that need no change
        taken = {argument.lower() for argument in arguments.values()}
        options = (f"{_argument(name)}{suffix}" for suffix in ("", *(f"_{i}" for i in range(1, len(names) + 1))))
        arguments[name] = next(option for option in options if option.lower() not in taken)
    return {name: arguments[name] for name in names}


def _argument(name: str) -> str:
    plain = re.sub(r"\W", "_", name, flags=re.ASCII)
    plain = plain if re.match("[A-Za-z]", plain) else f"arg_{plain.lstrip('_')}"
    return f"{plain}_" if keyword.iskeyword(plain) or plain == "self" else plain


def not_exported(why: str) -> str:
    """The message for a model that is trained but cannot be exported."""
    return (
        f"The model is trained, but cannot be exported: {why}. transform and predict need a call() that TensorFlow can "
        "export. The weights are saved in assets.extra/model.weights.h5 of exportDir and of TFModel.savedModelDir(); "
        "use them with load_weights() or initialWeights."
    )


def row_splits_name(name: str) -> str:
    """The name of the tensor with the row splits of a ragged input."""
    return f"{name}_row_splits"


def parse_signature(text: bytes, key: str) -> Signature | None:
    """The signature `key` in a file that :func:`write_signature` wrote; None if the file has another."""
    signatures = json.loads(text)
    return msgspec.convert(signatures[key], Signature) if key in signatures else None


def read_signature(directory: str | Path, key: str = DEFAULT_SIGNATURE, tag: str = DEFAULT_TAG) -> Signature:
    """Read a signature from a SavedModel itself; imports TensorFlow, but does not load the model.

    Raises ``ModelError`` if there is no SavedModel, or it does not have the tag or the signature.
    """
    graph = _graph(directory, tag)
    import tensorflow as tf

    if key not in graph.signature_def:
        names = sorted(n for n in graph.signature_def if not n.startswith("__"))
        raise ModelError(f"The SavedModel in {directory} has no signature {key!r}. It has: {names}")

    def info(tensor: Any) -> TensorInfo:
        shape = tf.TensorShape(tensor.tensor_shape)
        dims = None if shape.rank is None else tuple(shape.as_list())
        return TensorInfo(tf.as_dtype(tensor.dtype).name, dims)

    definition = graph.signature_def[key]
    inputs = {name: info(t) for name, t in sorted(definition.inputs.items())}
    return Signature(inputs, {name: info(t) for name, t in sorted(definition.outputs.items())})


def _graph(directory: str | Path, tag: str) -> Any:
    """The ``MetaGraphDef`` of a SavedModel with exactly these tags."""
    with needed_by("Reading the signature of this SavedModel"):
        import_tensorflow()
    from google.protobuf import text_format
    from google.protobuf.message import DecodeError
    from tensorflow.core.protobuf.saved_model_pb2 import SavedModel

    path = Path(directory) / "saved_model.pb"
    text = path.with_suffix(".pbtxt")
    if not path.is_file() and not text.is_file():
        raise ModelError(f"There is no SavedModel in {directory}: saved_model.pb is missing.")
    try:
        if path.is_file():
            saved = SavedModel.FromString(path.read_bytes())
        else:
            path = text
            saved = text_format.Parse(text.read_bytes(), SavedModel())
    except (DecodeError, text_format.ParseError) as error:
        raise ModelError(f"{path} is not a SavedModel, or is damaged: {error}") from error
    tags = {frozenset(g.meta_info_def.tags): g for g in saved.meta_graphs}
    graph = tags.get(frozenset(tag.split(",")))
    if graph is None:
        raise ModelError(f"The SavedModel in {directory} has no tags {tag!r}. It has: {[sorted(t) for t in tags]}")
    return graph


def load(directory: str | Path, key: str, tag: str, outputs: tuple[str, ...] | None = None) -> Scorer:
    """Load the function of a signature, which takes tensors by input name and returns tensors by output name.

    A process loads each directory once, so its content must never change. Only `outputs` are computed, by default all.
    Raises ``ModelError`` if TensorFlow cannot load the model.
    """
    with needed_by("Scoring in this process"):
        import_tensorflow()

    name = (str(directory), tag)
    if name not in _loaded:
        _loaded[name] = _load(Path(directory), tag), {}
        while len(_loaded) > LOADED_MODELS:
            _loaded.popitem(last=False)
    _loaded.move_to_end(name)
    model, functions = _loaded[name]
    if (key, outputs) not in functions:
        function = _for_any_batch(_only(model.signatures[key], outputs), model.signatures[key])
        functions[key, outputs] = _by_input(function, _arguments(Path(directory), key))
    scorer: Scorer = functions[key, outputs]
    return scorer


def _arguments(directory: Path, key: str) -> dict[str, str]:
    """The names of arguments by input, if they differ."""
    file = directory / SIGNATURE_FILE
    signatures = json.loads(file.read_text()) if file.exists() else {}
    arguments: dict[str, str] = signatures.get(key, {}).get(_ARGUMENTS, {})
    return arguments


def _by_input(function: Scorer, arguments: Mapping[str, str]) -> Scorer:
    """Wrap a function so that its arguments have the names of the inputs."""
    if not arguments:
        return function
    return lambda **inputs: function(**{arguments.get(name, name): tensor for name, tensor in inputs.items()})


def _load(directory: Path, tag: str) -> Any:
    import tensorflow as tf

    try:
        return _with_text_ops(lambda: tf.saved_model.load(str(directory), tags=tag.split(",")))
    except TfosMlError:
        raise
    except Exception as error:  # TensorFlow raises IndexError, OSError, OpError and others for damaged files
        _graph(directory, tag)  # raises if saved_model.pb is damaged
        text = " ".join(str(error).split())[:_SHOWN_CHARACTERS]
        raise ModelError(
            f"TensorFlow cannot load the SavedModel: {type(error).__name__}: {text}. If a file is damaged or missing, "
            "export or copy the model again."
        ) from error


def _with_text_ops(load: Callable[[], Any]) -> Any:
    """The result of `load`. If an op is missing, TensorFlow Text is imported, which has the ops of tokenizers.

    Raises ``MissingPackageError`` if it is not installed, and ``ModelError`` if it does not fit TensorFlow.
    """
    try:
        return load()
    except Exception as error:
        missing = _MISSING_OP.search(str(error))
        if missing is None:
            raise
    import tensorflow as tf

    release = ".".join(tf.__version__.split(".")[:2])
    needed = (
        f"The SavedModel uses the op {missing[1]}, which TensorFlow {tf.__version__} does not have. The ops of "
        f"tokenizers are in TensorFlow Text. Install it on all executors: pip install 'tensorflow-text=={release}.*'."
    )
    try:
        import tensorflow_text  # noqa: F401
    except ModuleNotFoundError as error:
        raise MissingPackageError(f"{needed} It is not installed here.", name=error.name) from error
    except Exception as error:  # for instance TensorFlow's NotFoundError, if it is of another release
        raise ModelError(f"{needed} The one here cannot be imported: {error}") from error
    return load()


def _for_any_batch(function: Scorer, signature: Any) -> Scorer:
    """A function for any number of rows; if the batch size is fixed, the last row fills up the last batch."""
    import tensorflow as tf

    sizes = {spec.shape[0] for spec in signature.structured_input_signature[1].values() if spec.shape.rank}
    if len(sizes) != 1 or None in sizes:
        return function
    (size,) = sizes

    def call(**inputs: Any) -> dict[str, Any]:
        rows = int(next(iter(inputs.values())).shape[0])
        places = [tf.minimum(tf.range(start, start + size), rows - 1) for start in range(0, rows, size)]
        parts = [function(**{name: tf.gather(tensor, at) for name, tensor in inputs.items()}) for at in places]
        return {name: tf.concat([part[name] for part in parts], 0)[:rows] for name in parts[0]}

    return call


def _only(function: Any, outputs: tuple[str, ...] | None) -> Scorer:
    """The function of a signature, limited to some outputs."""
    import tensorflow as tf

    if outputs is None or set(outputs) == set(function.structured_outputs):
        return function

    def wanted(**inputs: Any) -> dict[str, Any]:
        results = function(**inputs)
        return {name: results[name] for name in outputs}

    return tf.function(wanted, autograph=False, reduce_retracing=True)
