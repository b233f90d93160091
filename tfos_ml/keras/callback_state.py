"""The state of Keras callbacks, in checkpoints."""

from __future__ import annotations

import pickle
from collections.abc import Mapping
from typing import Any

import cloudpickle

from tfos_ml.keras.state_codec import NotPlainError, encoded

_OF_KERAS = ("_model", "model", "params")


def callback_states(callbacks: list[Any]) -> tuple[dict[str, dict[str, Any]], bytes, list[str]]:
    """The attributes of callbacks by their number: plain ones, others pickled, and notices about these.

    Functions without a name are settings, and are left out. So are attributes that cannot be pickled, as open files.
    """
    plain: dict[str, dict[str, Any]] = {}
    pickled: dict[str, dict[str, bytes]] = {}
    notices = []
    for number, callback in enumerate(callbacks):
        plain[str(number)], kept, lost = _attributes(callback)
        if kept:
            pickled[str(number)] = kept
        if type(callback).__module__.partition(".")[0] == "keras":
            continue
        if kept:
            notices.append(f"{type(callback).__name__}: checkpoints have its {sorted(kept)} pickled.")
        if lost:
            notices.append(f"{type(callback).__name__}: checkpoints are without its {lost}, which cannot be pickled.")
    return plain, pickle.dumps(pickled) if pickled else b"", notices


def _attributes(callback: Any) -> tuple[dict[str, Any], dict[str, bytes], list[str]]:
    plain: dict[str, Any] = {}
    pickled: dict[str, bytes] = {}
    lost = []
    for name, value in vars(callback).items():
        if name in _OF_KERAS:
            continue
        try:
            encoded(value, [])
            plain[name] = value
        except NotPlainError:
            if callable(value):
                continue
            try:
                pickled[name] = cloudpickle.dumps(value)
            except Exception:  # open files, threads
                lost.append(name)
    return plain, pickled, lost


def set_callback_states(callbacks: Mapping[int, Any], plain: Mapping[str, Mapping[str, Any]], pickled: bytes) -> None:
    """The reverse of :func:`callback_states`, for those of the callbacks that this worker has.

    It unpickles what this package has written to ``modelDir``, which must be as trustworthy as the program itself.
    """
    for number, attributes in plain.items():
        if int(number) in callbacks:
            vars(callbacks[int(number)]).update(attributes)
    for number, values in (pickle.loads(pickled) if pickled else {}).items():  # noqa: S301
        if int(number) in callbacks:
            vars(callbacks[int(number)]).update({name: pickle.loads(data) for name, data in values.items()})  # noqa: S301
