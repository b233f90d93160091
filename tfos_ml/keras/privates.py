"""All undocumented parts of Keras that tfos_ml uses, and of TensorFlow's traced functions.

``tests/unit/test_keras_privates.py`` has a test for each function, which fails if Keras changes such a part, and one
that no other module uses any. Tested with Keras 3.7.0, 3.8.0, 3.10.0, 3.12.4 and 3.15.1; 3.5 and 3.6 lack what
:func:`losses_of_outputs` reads.
"""

from __future__ import annotations

import contextlib
import threading
from collections import defaultdict
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import AbstractContextManager
from typing import Any, NamedTuple

NEWEST_TRIED = (3, 15)  # with the whole zoo of its classes


def untried(version: str) -> str | None:
    """The notice about a Keras that is newer than any that was tried; None for others."""
    major, minor = map(int, version.split(".")[:2])
    if (major, minor) <= NEWEST_TRIED:
        return None
    newest = ".".join(map(str, NEWEST_TRIED))
    return (
        f"Keras {version} is newer than any that tfos_ml was tried with (up to {newest}). Training on several workers "
        "uses parts of Keras that may have changed. Compare a short fit with that of clusterSize=1, or install "
        f"'keras<{NEWEST_TRIED[0]}.{NEWEST_TRIED[1] + 1}'."
    )


def symbolic_build(model: Any, batch: Any) -> None:
    """Build a compiled model, its metrics and its loss, from the specs of a batch, as ``Model.fit`` does first."""
    model._symbolic_build(data_batch=batch)


def compiled_with(model: Any) -> list[Any]:
    """Losses and metrics as they were passed to ``compile``."""
    metrics = model._compile_metrics
    return [model.loss, *(() if metrics is None else (metrics._user_metrics, metrics._user_weighted_metrics))]


def compiled_parts(model: Any) -> tuple[Any, Any, Any]:
    """The optimizer, and the objects that compute the loss and the metrics; others once a model is compiled again."""
    return model.optimizer, model._compile_loss, model._compile_metrics


def metrics_of_losses(model: Any) -> list[Any]:
    """The means of the losses of several outputs, which Keras keeps among the metrics of a built model."""
    return list(getattr(model._compile_loss, "metrics", ()))


def means_of_losses(model: Any) -> list[Any]:
    """The mean of the whole loss, and those of outputs: a step counts them, also if ``metrics`` has none of them."""
    return [model._loss_tracker, *metrics_of_losses(model)]


def check_compiled(model: Any, outputs: Any) -> None:
    """Raise the error that Keras raises at the start of training if losses or metrics do not match a model's outputs.

    This does not change the numbers that Keras appends to names, such as that of the next AUC.
    """
    from keras.src.backend.common.global_state import get_global_attribute

    loss, metrics = model._compile_loss, model._compile_metrics
    numbers = get_global_attribute("object_name_uids", defaultdict(int), set_to_default=True)
    before = dict(numbers)
    try:
        if loss is not None:
            type(loss)(loss._user_loss, loss._user_loss_weights, output_names=loss.output_names).build(outputs, outputs)
        if metrics is not None:
            given = (metrics._user_metrics, metrics._user_weighted_metrics)
            type(metrics)(*given, output_names=metrics.output_names).build(outputs, outputs)
    finally:
        numbers.clear()
        numbers.update(before)


def losses_of_outputs(model: Any) -> list[Any]:
    """The losses of a built model, one for each output; none if it has only a ``compute_loss`` of its own."""
    return [entry.loss for entry in getattr(model._compile_loss, "_flat_losses", None) or ()]


def replaced_losses(model: Any, replacing: Callable[[Any, int], Any]) -> AbstractContextManager[None]:
    """Replace each of :func:`losses_of_outputs` by what a function makes of it and its number."""
    if not losses_of_outputs(model):
        return contextlib.nullcontext()
    plain = enumerate(model._compile_loss._flat_losses)
    return _replaced(model._compile_loss, _flat_losses=[e._replace(loss=replacing(e.loss, i)) for i, e in plain])


def optimizer_variables(optimizer: Any) -> list[Any]:
    """The variables that a built optimizer updates, in the order in which ``apply`` expects gradients."""
    return list(optimizer._trainable_variables)


def written_variables(graph: Any, variables: Sequence[Any], skipped: Sequence[range] = ()) -> list[Any]:
    """Those of TensorFlow's variables that a function which is traced may write, in the order of its operations.

    Operations at the positions `skipped` do not count. TensorFlow itself knows what operations write, to run them in
    the order of the program.
    """
    from tensorflow.python.framework.auto_control_deps_utils import get_read_write_resource_inputs

    by_handle = {id(variable.handle): variable for variable in variables}
    inner = {id(own): by_handle.get(id(outer)) for outer, own in graph.captures}
    found: dict[int, Any] = {}
    for place, operation in enumerate(graph.get_operations()):
        if any(place in part for part in skipped):
            continue
        written = get_read_write_resource_inputs(operation)[1] if operation.inputs else ()
        for handle in (given for given in operation.inputs if given in written):
            variable = inner.get(id(handle))
            if variable is not None:
                found[id(variable)] = variable
    return list(found.values())


def all_layers(model: Any) -> list[Any]:
    """The model itself and every layer in it, including those of nested models and composite layers; each once."""
    return list({id(layer): layer for layer in model._flatten_layers()}.values())


def vocabulary_of(layer: Any) -> list[Any]:
    """The vocabulary of a StringLookup, IntegerLookup or TextVectorization, text or numbers, without special tokens."""
    entries = layer.get_vocabulary(include_special_tokens=False)
    return [str(entry) if isinstance(entry, str) else int(entry) for entry in entries]


@contextlib.contextmanager
def with_vocabularies_in_config(model: Any) -> Iterator[None]:
    """Make Keras save vocabularies in the model's configuration if its vocabulary file would damage them.

    That file has one entry per line: an entry with a line break becomes several, and an empty last entry is lost.
    """
    changed = []
    for layer in all_layers(model):
        lookup = getattr(layer, "_lookup_layer", layer)
        if not hasattr(layer, "get_vocabulary") or lookup.input_vocabulary is not None:
            continue
        vocabulary = vocabulary_of(layer)
        is_safe = all(isinstance(entry, int) or entry.splitlines() == [entry] for entry in vocabulary)
        if is_safe and lookup.output_mode != "tf_idf":  # which Keras 3.7 does not load
            continue
        changed.append(lookup)
        lookup.input_vocabulary = vocabulary
        if lookup.output_mode == "tf_idf":
            start = lookup._token_start_index()
            lookup.input_idf_weights = lookup.idf_weights_const.numpy()[start : start + len(vocabulary)]
    try:
        yield
    finally:
        for lookup in changed:
            lookup.input_vocabulary = lookup.input_idf_weights = None


def is_validation_of_fit(arguments: Mapping[str, Any]) -> bool:
    """Whether ``Model.fit``, and not a program, calls ``evaluate`` with these keyword arguments."""
    return bool(arguments.get("_use_cached_eval_dataset", False))


class Reduction(NamedTuple):
    """What a loss has reduced to one number; `mask` includes that of the values."""

    values: Any
    sample_weight: Any
    mask: Any
    reduction: str | None
    dtype: str
    result: Any

    def again(self, values: Any, sample_weight: Any, reduction: str | None, dtype: str) -> Any:
        """What Keras makes of other values with the same mask."""
        return _loss().reduce_weighted_values(values, sample_weight, self.mask, reduction, dtype)


@contextlib.contextmanager
def noted_reductions() -> Iterator[list[Reduction]]:
    """Note the reductions of losses, in order, while Keras traces in this thread."""
    module, noted = _loss(), list[Reduction]()
    plain = module.reduce_weighted_values

    def noting(
        values: Any,
        sample_weight: Any = None,
        mask: Any = None,
        reduction: str | None = "sum_over_batch_size",
        dtype: Any = None,
    ) -> Any:
        result = plain(values, sample_weight, mask, reduction, dtype)
        noted.append(Reduction(values, sample_weight, mask, reduction, dtype, result))
        return result

    with _replaced(module, reduce_weighted_values=noting):
        yield noted


def _loss() -> Any:
    from keras.src.losses import loss

    return loss


def random_functions() -> dict[str, Any]:
    """The functions of Keras's backend that draw random numbers, by name; layers call them through their module."""
    return {name: function for name, function in vars(_random()).items() if callable(function)}


def replaced_random_functions(functions: Mapping[str, Any]) -> AbstractContextManager[None]:
    """Replace some of :func:`random_functions` while Keras traces in this thread."""
    return _replaced(_random(), **functions)


@contextlib.contextmanager
def replaced_moments(layer: Any, replacing: Callable[[Any], Any]) -> Iterator[None]:
    """Replace the function with which a BatchNormalization computes mean and variance from inputs and a mask."""
    layer._moments = replacing(layer._moments)
    try:
        yield
    finally:
        del layer._moments


def function_of(part: Any) -> Any:
    """The function that a loss or metric wraps; None if it wraps none."""
    return getattr(part, "fn", getattr(part, "_fn", None))


def options_of(part: Any) -> dict[str, Any]:
    """The keyword arguments of :func:`function_of`."""
    return getattr(part, "_fn_kwargs", None) or {}


def drawn_seed(seed: Any) -> Any:
    """The seed of the next draw from a seed generator, as TensorFlow's stateless functions get it."""
    return _random()._cast_seed(_random().draw_seed(seed))


def _random() -> Any:
    from keras.src.backend.tensorflow import random

    return random


def seed_states(model: Any) -> list[Any]:
    """The states of the seed generators of a model's layers."""
    return [variable for variable in model.variables if variable.name == "seed_generator_state"]


_naming = threading.RLock()


@contextlib.contextmanager
def names_noted() -> Iterator[dict[str, list[Any]]]:
    """Note the classes and functions that Keras writes by name while this thread saves something.

    By that name: registered, or the object's own. Those of Keras are left out, and those are the only ones that Keras
    finds by itself in another process.
    """
    from keras.src.saving import object_registration

    found: dict[str, list[Any]] = {}
    with _naming:
        plain = object_registration.get_registered_name

        def name_of(value: Any) -> Any:
            name, known = plain(value), found.get(plain(value), [])
            is_found_by_name = is_of_keras(value) or getattr(value, "__module__", "") == "builtins"
            if not is_found_by_name and all(value is not other for other in known):
                found[name] = [*known, value]
            return name

        with _replaced(object_registration, get_registered_name=name_of):
            yield found


def is_of_keras(value: Any) -> bool:
    """Whether a class or function is one of Keras itself."""
    return str(getattr(value, "__module__", "")).partition(".")[0] == "keras"


def adapters(model: Any) -> list[Any]:
    """The LoRA matrices of a model's layers."""
    import keras

    parts = (sorted(vars(layer).items()) for layer in _with_adapters(model))
    return [v for named in parts for name, v in named if name.startswith("lora_") and isinstance(v, keras.Variable)]


@contextlib.contextmanager
def with_unmerged_adapters(model: Any) -> Iterator[None]:
    """Make Keras save the kernels of layers with LoRA as they are, and not with the product of the matrices added."""
    layers = _with_adapters(model)
    try:
        for layer in layers:
            layer.lora_enabled = False
        yield
    finally:
        for layer in layers:
            layer.lora_enabled = True


@contextlib.contextmanager
def with_lean_adapters(model: Any) -> Iterator[None]:
    """Make steps without a graph keep one matrix of each kernel with LoRA for its gradients, as graphs do, not three.

    The sum of the kernel and the product of LoRA's matrices is computed again for them.
    """
    import tensorflow as tf

    kinds: set[Any] = {kind for layer in _with_adapters(model) for kind in type(layer).__mro__}
    plain = {kind: vars(kind)["kernel"] for kind in kinds if isinstance(vars(kind).get("kernel"), property)}

    def lean(read: Callable[[Any], Any]) -> property:
        return property(lambda layer: tf.recompute_grad(lambda: read(layer))() if layer.lora_enabled else read(layer))

    try:
        for kind, kernel in plain.items():
            kind.kernel = lean(kernel.fget)
        yield
    finally:
        for kind, kernel in plain.items():
            kind.kernel = kernel


def _with_adapters(model: Any) -> list[Any]:
    return [layer for layer in all_layers(model) if getattr(layer, "lora_enabled", False)]


def keep_saving_skipsets() -> None:
    """Keep what ``Model.save_weights`` has learned of Keras's classes, for its next call.

    Keras 3.15 looks for it under another name than it has kept it, so each call makes a layer and an optimizer anew,
    and loses 70 kB of memory.
    """
    from keras.src.backend.common import global_state

    for name, skipset in list(vars(global_state.GLOBAL_STATE_TRACKER).items()):
        if name.startswith("saving_attr_skipset_"):
            global_state.set_global_attribute(name.replace("skipset", "skiplist"), skipset)


def global_dtype_policy() -> Any:
    """The policy that the program, or a layer before, has set in this thread; None if there is none.

    ``keras.config.dtype_policy`` would set it, and a later ``set_floatx`` would not change it any more.
    """
    from keras.src.backend.common.global_state import get_global_attribute

    return get_global_attribute("dtype_policy")


def global_seed_state() -> Any:
    """The state of the seed generator for draws without a seed."""
    from keras.src.random.seed_generator import global_seed_generator

    return global_seed_generator().state


@contextlib.contextmanager
def _replaced(owner: Any, **attributes: Any) -> Iterator[None]:
    """Give a module or an object other attributes."""
    before = {name: getattr(owner, name) for name in attributes}
    try:
        vars(owner).update(attributes)
        yield
    finally:
        vars(owner).update(before)
