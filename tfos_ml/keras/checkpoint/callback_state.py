"""The state of callbacks, in checkpoints: what they have learned since the training began, never their settings.

- Keras's own callbacks: the attributes in ``OF_KERAS``.
- Callbacks with ``get_state()`` and ``set_state(state)``: what the first returns.
- All others: the attributes that have changed, or have come, since the training began.

State goes to the callback of the same class, monitor and number among these, whatever its place in the list.
"""

from __future__ import annotations

import io
import pickle
import types
import zlib
from collections import Counter
from collections.abc import Iterable, Mapping
from typing import Any

import cloudpickle
import keras
import tensorflow as tf

from tfos_ml.keras.privates import is_of_keras

OF_KERAS = {
    "EarlyStopping": ("wait", "best", "best_weights", "best_epoch", "stopped_epoch"),
    "History": ("epoch", "history"),
    "ModelCheckpoint": ("best", "_batches_seen_since_last_saving", "_last_batch_seen"),
    "OrbaxCheckpoint": ("best", "_batches_seen_since_last_saving", "_last_batch_seen", "_total_batches_seen"),
    "ReduceLROnPlateau": ("wait", "best", "cooldown_counter"),
    "SwapEMAWeights": ("_ema_weights_in_model",),
    "TensorBoard": ("_global_train_batch", "_global_test_batch"),
}
SET_BY_KERAS = ("_model", "model", "params", "min_delta")  # the last one's sign, when it knows what to compare
_NO_STATE = (type, types.ModuleType, types.FunctionType, types.BuiltinFunctionType, types.MethodType)
_VARIABLES = (keras.Layer, keras.Optimizer, keras.Variable, keras.metrics.Metric, tf.Variable, tf.Module)
_PROTOCOL = "get_state()"  # no name of an attribute


def by_key(callbacks: Iterable[Any]) -> dict[str, Any]:
    """Callbacks by class, monitor and number, such as "EarlyStopping(val_loss) 0"."""
    numbers: Counter[str] = Counter()
    keyed = {}
    for callback in callbacks:
        monitor = getattr(callback, "monitor", None)
        name = type(callback).__qualname__ + (f"({monitor})" if isinstance(monitor, str) else "")
        keyed[f"{name} {numbers[name]}"] = callback
        numbers[name] += 1
    return keyed


class CallbackStates:
    """The states of callbacks by their keys, since this object was made."""

    def __init__(self, callbacks: Mapping[str, Any]):
        self._callbacks = callbacks
        self._at_first = {key: _prints(_attributes(callback)) for key, callback in callbacks.items()}

    def take(self) -> tuple[bytes, list[str]]:
        """The states of this moment in one pickle, for what they share; and notices of what is missing."""
        states: dict[str, dict[str, Any]] = {}
        notices = []
        for key, callback in self._callbacks.items():
            state, missing = self._state(key, callback)
            if missing:
                notices.append(
                    f"{type(callback).__name__}: checkpoints are without its {missing}, which cannot be pickled or "
                    "hold variables. Give the class get_state() and set_state(state), so that a fit can resume."
                )
            if state:
                states[key] = state
        return _pickled(states) if states else b"", notices

    def _state(self, key: str, callback: Any) -> tuple[dict[str, Any], list[str]]:
        """The state of a callback, and the names of attributes that cannot be saved."""
        attributes = _attributes(callback)
        state = {name: attributes[name] for name in names_of_keras(type(callback)) if name in attributes}
        if is_of_keras(type(callback)):
            return state, []
        if callable(getattr(callback, "get_state", None)) and callable(getattr(callback, "set_state", None)):
            return {**state, _PROTOCOL: callback.get_state()}, []
        at_first, missing = self._at_first[key], []
        for name, value in _prints(attributes).items():
            if value == at_first.get(name):
                continue
            try:
                _pickled(attributes[name])
                state[name] = attributes[name]
            except Exception:  # open files, threads, layers
                missing.append(name)
        return state, missing


def set_callback_states(callbacks: Mapping[str, Any], pickled: bytes) -> None:
    """Give callbacks of this worker the states that :class:`CallbackStates` has taken, which come anew each time.

    It unpickles what this package has written to ``modelDir``, which must be as trustworthy as the program itself.
    """
    for key, state in _unpickled(pickled).items():
        if key in callbacks:
            if _PROTOCOL in state:
                callbacks[key].set_state(state.pop(_PROTOCOL))
            vars(callbacks[key]).update(state)


def keys_with_state(pickled: bytes) -> set[str]:
    """The keys of callbacks whose states were taken."""
    return {*_unpickled(pickled)}


def _unpickled(pickled: bytes) -> dict[str, dict[str, Any]]:
    states: dict[str, dict[str, Any]] = pickle.loads(pickled) if pickled else {}  # noqa: S301
    return states


def names_of_keras(kind: type) -> list[str]:
    """The attributes with the state of those classes of Keras that a class inherits from."""
    return [name for base in kind.__mro__ if is_of_keras(base) for name in OF_KERAS.get(base.__name__, ())]


def _attributes(callback: Any) -> dict[str, Any]:
    """The attributes of a callback that may be state: neither Keras's own nor functions."""
    return {
        name: value
        for name, value in vars(callback).items()
        if name not in SET_BY_KERAS and not isinstance(value, _NO_STATE)
    }


def _prints(attributes: Mapping[str, Any]) -> dict[str, int]:
    """For each attribute a number that changes with its value; of one that cannot be pickled, with the object."""
    prints = {}
    for name, value in attributes.items():
        try:
            prints[name] = zlib.crc32(_pickled(value, _PrintPickler))
        except Exception:  # open files, threads
            prints[name] = id(value)
    return prints


class _StatePickler(cloudpickle.Pickler):
    """Refuses objects with variables, which belong to a model, or would be of no use without their graph."""

    def reducer_override(self, obj: Any) -> Any:
        if isinstance(obj, _VARIABLES):
            raise pickle.PicklingError(f"a {type(obj).__name__} has variables")
        return super().reducer_override(obj)


class _PrintPickler(cloudpickle.Pickler):
    """Takes the values of variables for the objects that have them."""

    def reducer_override(self, obj: Any) -> Any:
        if isinstance(obj, _VARIABLES):
            variables = [obj] if isinstance(obj, keras.Variable | tf.Variable) else list(obj.variables)
            return list, ([variable.numpy() for variable in variables],)
        return super().reducer_override(obj)


def _pickled(value: Any, pickler: Any = _StatePickler) -> bytes:
    file = io.BytesIO()
    pickler(file).dump(value)
    return file.getvalue()
