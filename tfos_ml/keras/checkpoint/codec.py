"""JSON for the state of a training: plain values as they are, arrays by number."""

from __future__ import annotations

import io
import json
import zipfile
from typing import Any

import ml_dtypes  # a dependency of TensorFlow's; NumPy then knows bfloat16 and float8
import numpy as np

Array = np.ndarray[Any, Any]


class NotPlainError(TypeError):
    """A value is of a type that :func:`encoded` does not know."""


def encoded(value: Any, arrays: list[Array]) -> Any:
    """A value as JSON has it; adds its arrays to `arrays`.

    Takes None, bool, int, float, str, NumPy's arrays and numbers, and lists, tuples and dictionaries of these. Raises
    ``NotPlainError`` for all else, including subclasses.
    """
    kind = type(value)
    if value is None or kind in (bool, int, float, str):
        return value
    if kind is list:
        return [encoded(item, arrays) for item in value]
    if kind is tuple:
        return {"tuple": [encoded(item, arrays) for item in value]}
    if kind is dict:
        return {"dict": [[encoded(key, arrays), encoded(item, arrays)] for key, item in value.items()]}
    if kind is np.ndarray or isinstance(value, (np.number, np.bool_)):
        array = np.asarray(value)
        if array.dtype.kind in "biufc":
            arrays.append(array)
        elif array.dtype.kind == "V" and hasattr(ml_dtypes, array.dtype.name):
            arrays.append(array.view(f"u{array.itemsize}"))
        else:
            raise NotPlainError(f"an array of {array.dtype}")
        return {"array": len(arrays) - 1, "dtype": array.dtype.name, "scalar": kind is not np.ndarray}
    raise NotPlainError(f"a {kind.__name__}")


def decoded(value: Any, arrays: list[Array]) -> Any:
    """The reverse of :func:`encoded`."""
    if isinstance(value, list):
        return [decoded(item, arrays) for item in value]
    if not isinstance(value, dict):
        return value
    if "array" in value:
        array = arrays[value["array"]]
        if array.dtype.name != value["dtype"]:
            array = array.view(getattr(ml_dtypes, value["dtype"]))
        return array[()] if value["scalar"] else array
    if "dict" in value:
        return {decoded(key, arrays): decoded(item, arrays) for key, item in value["dict"]}
    return tuple(decoded(item, arrays) for item in value["tuple"])


def dumps(value: Any) -> tuple[str, bytes]:
    """A value as JSON, and its arrays as the content of an ``npz`` file; raises as :func:`encoded`."""
    arrays: list[Array] = []
    text = json.dumps(encoded(value, arrays), indent=1)
    file = io.BytesIO()
    np.savez(file, **{f"a{i}": array for i, array in enumerate(arrays)})  # type: ignore[arg-type]
    return text, file.getvalue()


def loads(text: str, arrays: bytes) -> Any:
    """The reverse of :func:`dumps`; raises ``ValueError`` for anything else."""
    try:
        return decoded(json.loads(text), _arrays_of(arrays))
    except Exception as error:  # of json, zipfile, NumPy, or because parts do not fit each other
        raise ValueError(f"the state of a training is damaged: {type(error).__name__}: {error}") from None


def _arrays_of(content: bytes) -> list[Array]:
    """The arrays of an ``npz`` file, which is not compressed, so that none is larger than the file."""
    with zipfile.ZipFile(io.BytesIO(content)) as file:
        return [_array_of(file.read(f"a{i}.npy")) for i, _ in enumerate(map(_checked, file.infolist()))]


def _checked(member: zipfile.ZipInfo) -> None:
    if member.compress_type != zipfile.ZIP_STORED:
        raise ValueError(f"{member.filename} is compressed")


def _array_of(content: bytes) -> Array:
    """The array of an ``npy`` file; NumPy would allocate what its header says before it reads the numbers."""
    stream = io.BytesIO(content)
    version = np.lib.format.read_magic(stream)
    if version != (1, 0):
        raise ValueError(f"version {version} of npy")
    shape, is_fortran, dtype = np.lib.format.read_array_header_1_0(stream)
    numbers = np.frombuffer(content, dtype, offset=stream.tell())
    return numbers.reshape(shape, order="F" if is_fortran else "C").copy()
