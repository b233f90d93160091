"""Sends a compiled Keras model to another process, as a ``.keras`` file or a function; and weights to start from."""

from __future__ import annotations

import inspect
import json
import os
import shutil
import sys
import tempfile
import types
import warnings
import zipfile
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import Any

import numpy as np
from pyarrow import fs

from tfos_ml.common import filesystems
from tfos_ml.common.directories import owned_prefix
from tfos_ml.common.local_files import FileWriter, LocalFile, parts_of
from tfos_ml.common.redact import redact, secrets_of_uri
from tfos_ml.errors import ModelError
from tfos_ml.keras import privates
from tfos_ml.keras.model.global_config import GlobalConfig
from tfos_ml.protocol.pickling import REDUCERS, dumps

REASON_CHARACTERS = 600
_QUOTED = ("Full object config:", "List of objects that could not be loaded:")
_NO_VOCABULARY = "cannot be empty tensors"  # TensorFlow, of a lookup layer that Keras loads
_LAMBDA = "<lambda>"
# Beside the SavedModel of a fit:
WEIGHTS_FILE = "assets.extra/model.weights.h5"
ADAPTED_FILE = "assets.extra/adapted.zip"  # state of adaptLayers, if there are any


@dataclass(frozen=True)
class ModelSource:
    """How a process gets its model: from a ``.keras`` file, or from a function that returns a compiled model."""

    archive: LocalFile | Path | None = None  # the file; on other hosts and in other processes its path
    function: Callable[..., Any] | None = None
    arguments: Mapping[str, Any] = field(default_factory=dict)  # keyword arguments of the function
    custom_objects: Mapping[str, Any] = field(default_factory=dict)  # layers, losses and metrics by name
    unsaved: Sequence[Any] = ()  # values of variables that the file does not have
    trainable: Sequence[bool] = ()  # of each variable, which the file does not have
    config: GlobalConfig | None = None  # to be applied before the model is built; None for that of the process

    def build_for_process(self) -> Any:
        """The compiled model, under the program's settings of Keras, which remain those of this process.

        What the program has registered with Keras is registered here, too.
        """
        if self.config is not None:
            self.config.apply()
        for name, value in self.custom_objects.items():
            _register(name, value)
        return self.build()

    def for_host(self) -> ModelSource:
        """The same for other processes of this host, as long as this object lives."""
        return self if self.archive is None else replace(self, archive=_path_of(self.archive))

    def build(self) -> Any:
        """The compiled model; raises ``ModelError`` if the file cannot be loaded in this process."""
        import keras

        with keras.saving.custom_object_scope(dict(self.custom_objects)):
            if self.function is not None:
                return self.function(**self.arguments)
            assert self.archive is not None
            with tempfile.TemporaryDirectory(prefix=owned_prefix("temporary")) as directory:
                path = os.path.join(directory, "model.keras")  # Keras goes by the name
                os.symlink(_path_of(self.archive), path)
                try:
                    with warnings.catch_warnings():
                        # An optimizer that has not trained yet has nothing to load.
                        warnings.filterwarnings("ignore", "Skipping variable loading for optimizer")
                        warnings.filterwarnings("ignore", r"`compile\(\)` was not called")
                        model = keras.saving.load_model(path)
                        if _has_own_compile(model):
                            self._compile(model, path)
                        self._freeze(model, path)
                except (TypeError, ValueError, AttributeError, ImportError) as error:
                    raise ModelError(f"The nodes cannot load the model: {_reason(error)} {_remedy(error)}") from error
            for variable, value in zip(_unsaved(model), self.unsaved, strict=True):
                variable.assign(value)
            return model

    def _freeze(self, model: Any, path: str) -> None:
        """Freeze single variables whose layers are trained, and load the state of the optimizer of the others."""
        variables = model.variables
        if len(variables) != len(self.trainable):  # some are not made yet
            return
        trained = {id(variable) for variable in model.trainable_variables}
        frozen = [v for v, is_on in zip(variables, self.trainable, strict=True) if not is_on and id(v) in trained]
        for variable in frozen:
            variable.trainable = False
        if frozen:
            model.optimizer = type(model.optimizer).from_config(model.optimizer.get_config())
            _load_optimizer(model, path)

    def _compile(self, model: Any, path: str) -> None:
        """Compile a model as it was saved, which Keras leaves to classes that have a ``compile`` of their own."""
        import keras

        assert self.archive is not None
        given = _config(self.archive).get("compile_config")
        if given is None:
            return
        arguments = keras.saving.deserialize_keras_object(given)
        takes = inspect.signature(model.compile).parameters
        if not any(p.kind is p.VAR_KEYWORD for p in takes.values()):
            arguments = {name: value for name, value in arguments.items() if name in takes}
        model.compile(**arguments)
        _load_optimizer(model, path)


def _load_optimizer(model: Any, path: str) -> None:
    if model.optimizer is not None and model.built:
        model.optimizer.build(model.trainable_variables)
        model.load_weights(path)  # with the state of the optimizer


def _has_own_compile(model: Any) -> bool:
    """Whether Keras loads a model of this class without what it was compiled with."""
    import keras

    of, base = type(model), keras.Model
    return of.compile is not base.compile and of.compile_from_config is base.compile_from_config


def _check_compile(model: Any) -> None:
    """Raise ``ModelError`` if a file of the model would not have all that it was compiled with."""
    import keras

    if not (hasattr(model, "compile_from_config") and _has_own_compile(model)):
        return
    known = inspect.signature(keras.Model.compile).parameters
    own = inspect.signature(type(model).compile).parameters
    more = [name for name, p in own.items() if name not in known and p.kind not in (p.VAR_KEYWORD, p.VAR_POSITIONAL)]
    if more:
        name = type(model).__name__
        raise ModelError(
            f"{name}.compile has arguments of its own, {more}, and no file of the model has their values. Pass a "
            "function that builds and compiles the model, KerasEstimator(model=make_model), or give the class the "
            "methods get_compile_config and compile_from_config."
        )


def source_of(model: Any) -> ModelSource:
    """A model for other processes; does not change the model.

    Classes and functions that are not Keras's go along. Lambdas do, too: Keras would save their code without the
    objects that it refers to, and would not load it.
    Raises as :func:`save_instance`, and ``ModelError`` if the file would not have all that the model was compiled with.
    """
    _check_compile(model)
    lambdas = {f"tfos_ml_lambda_{i}": function for i, function in enumerate(_lambdas(model))}
    try:
        for name, function in lambdas.items():
            function.__name__ = name
        with privates.names_noted() as named:
            archive = save_instance(model)
        return ModelSource(
            archive=archive,
            custom_objects=_each_name_once(named),
            unsaved=[np.asarray(variable) for variable in _unsaved(model)],
            trainable=[variable.trainable for variable in model.variables],
        )
    finally:
        for function in lambdas.values():
            function.__name__ = _LAMBDA


def _each_name_once(named: Mapping[str, Sequence[Any]]) -> dict[str, Any]:
    twice = sorted(name for name, values in named.items() if len(values) > 1)
    if twice:
        raise ModelError(
            f"Different classes or functions of the model have one name, {twice}, by which Keras would look for them "
            "on the nodes. Rename one, or register each under a name of its own, with "
            "@keras.saving.register_keras_serializable(name=...)."
        )
    return {name: values[0] for name, values in named.items()}


def _register(name: str, value: Any) -> None:
    """Register a class or function with Keras in this process, if that is what its name says."""
    import keras

    package, separator, own_name = name.partition(">")
    if separator and keras.saving.get_registered_object(name) is None:
        keras.saving.register_keras_serializable(package, own_name)(value)


def by_registered_names(objects: Mapping[str, Any]) -> dict[str, Any]:
    """Custom objects by the names that a model's file has for them, which may be others."""
    keras: Any = sys.modules.get("keras")
    return {} if keras is None else {keras.saving.get_registered_name(value): value for value in objects.values()}


def registered_in_program() -> dict[str, Any]:
    """What the program itself, and no module that nodes can import, has registered with Keras."""
    keras: Any = sys.modules.get("keras")
    known = {} if keras is None else keras.saving.get_custom_objects()
    own = {name: value for name, value in known.items() if getattr(value, "__module__", "") == "__main__"}
    return {name: value for name, value in own.items() if _can_be_pickled(value)}


def _can_be_pickled(value: Any) -> bool:
    try:
        dumps(value)
    except Exception:
        return False
    return True


def _reduce_saveable(value: Any) -> Any:
    """How to pickle a model or a part of one that something captures: with its classes, which Keras leaves out."""
    keras: Any = sys.modules.get("keras")
    kinds = tuple(getattr(keras, kind, ()) for kind in ("Layer", "Loss", "Metric", "Optimizer"))
    if not isinstance(value, kinds):
        return NotImplemented
    with privates.names_noted() as named:
        function, arguments = value.__reduce__()[:2]
    return (_load_saveable, (_each_name_once(named), function, arguments)) if named else NotImplemented


def _load_saveable(custom_objects: Mapping[str, Any], function: Callable[..., Any], arguments: Sequence[Any]) -> Any:
    import keras

    with keras.saving.custom_object_scope(dict(custom_objects)):
        return function(*arguments)


REDUCERS.append(_reduce_saveable)


def _unsaved(model: Any) -> list[Any]:
    """The variables of a model that its file does not have: states of seed generators, and LoRA."""
    return [*privates.seed_states(model), *privates.adapters(model)]


def _lambdas(model: Any) -> list[Any]:
    """The lambdas of a compiled model's layers, losses and metrics; each once."""
    compiled = list(_leaves(privates.compiled_with(model)))
    parts = [*privates.all_layers(model), *(part for part in compiled if hasattr(part, "__dict__"))]
    objects = [*compiled, *(leaf for part in parts for leaf in _leaves(vars(part)))]
    return list({id(f): f for f in objects if isinstance(f, types.FunctionType) and f.__name__ == _LAMBDA}.values())


def _leaves(value: Any) -> Iterator[Any]:
    """The leaves of nested lists and dicts."""
    if isinstance(value, (list, tuple, Mapping)):
        for part in value.values() if isinstance(value, Mapping) else value:
            yield from _leaves(part)
    else:
        yield value


def save_instance(model: Any) -> LocalFile:
    """A ``.keras`` file of a model; does not change the model.

    Raises ``ModelError`` if something in it cannot be serialized.
    """
    with tempfile.TemporaryDirectory(prefix=owned_prefix("temporary")) as directory:
        path = os.path.join(directory, "model.keras")
        try:
            with (
                privates.with_vocabularies_in_config(model),
                privates.with_unmerged_adapters(model),
                warnings.catch_warnings(),
            ):
                warnings.filterwarnings("ignore", ".*saving a model that has not yet been built")  # nodes build it
                model.save(path)
        except Exception as error:
            raise ModelError(
                f"The model cannot be saved ({type(error).__name__}: {_reason(error)}) Something in it, for "
                "instance a lambda, or a loss or metric defined in a function, cannot be serialized. Pass a function "
                "that builds and compiles the model: KerasEstimator(model=make_model)."
            ) from error
        writer = FileWriter()
        for part in parts_of(Path(path)):
            writer.write(part)
        return writer.finish()


def _path_of(archive: LocalFile | Path) -> Path:
    return archive.path if isinstance(archive, LocalFile) else archive


def _config(archive: LocalFile | Path) -> Any:
    with zipfile.ZipFile(_path_of(archive)) as files:
        return json.loads(files.read("config.json"))


def read_weights(uri: str) -> tuple[str, LocalFile]:
    """Name and a copy of the weights file at ``initialWeights``, which may be a directory that a fit has published."""
    try:
        path = filesystems.request(uri, _weights_path)
        with filesystems.open_uri(uri)[0].open_input_stream(path) as stream:
            writer = FileWriter()
            shutil.copyfileobj(stream, writer)
    except (OSError, ValueError) as error:
        raise ModelError(
            f"initialWeights={redact(uri)!r} cannot be read: {redact(error, secrets=secrets_of_uri(uri))}. "
            "Expected a .keras or .weights.h5 file, or a directory that an earlier KerasEstimator published as "
            "exportDir."
        ) from None
    name = path.rsplit("/", 1)[-1]
    if not name.endswith((".keras", ".weights.h5")):
        raise ModelError(f"initialWeights={redact(uri)!r} is neither a .keras nor a .weights.h5 file.")
    return name, writer.finish()


def _weights_path(filesystem: fs.FileSystem, path: str) -> str:
    is_directory = filesystem.get_file_info(path).type == fs.FileType.Directory
    return f"{path.rstrip('/')}/{WEIGHTS_FILE}" if is_directory else path


def _remedy(error: BaseException) -> str:
    function = "a function that builds and compiles it, KerasEstimator(model=make_model)"
    if _NO_VOCABULARY in str(error):
        return f"Adapt the layer before you pass the model; or pass {function}, and name the layer in adaptLayers."
    return f"Pass {function}, or pass the custom classes in customObjects."


def _reason(error: BaseException) -> str:
    """Keras's message without the configurations that it quotes; the innermost cause if there is one."""
    text = str(error).strip() or type(error).__name__
    if _NO_VOCABULARY in text:
        return "Keras does not load a layer whose vocabulary is empty."
    for quoted in _QUOTED:
        text = text.split(quoted)[0]
    causes = text.split("Exception encountered:")
    text = " ".join(causes[-1].split()) or " ".join(text.split())
    if len(text) > REASON_CHARACTERS:
        return text[:REASON_CHARACTERS] + "..."
    return text.removesuffix(" name:").rstrip(".") + "."
