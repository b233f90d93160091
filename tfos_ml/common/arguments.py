"""Checks what users pass to fit, transform and the constructors, on the driver, before any job."""

from __future__ import annotations

import inspect
from collections.abc import Callable, Mapping
from typing import Any

from tfos_ml import errors

_HINTS = {
    "pandas": "Convert it with spark.createDataFrame(...).",
    "numpy": "Convert it with spark.createDataFrame(...), with one array per row.",
    "pyspark.core.rdd": "Convert it with rdd.toDF([...]).",
    "builtins": "Convert it with spark.createDataFrame(...).",
}


def check_dataframe(data: Any, method: str) -> None:
    """Raise ``InputTypeError`` unless `data` is a Spark DataFrame, classic or of Spark Connect."""
    if hasattr(data, "mapInArrow") and hasattr(data, "sparkSession"):
        return
    data_class = type(data)
    name = f"{data_class.__module__}.{data_class.__qualname__}"
    hint = next((text for module, text in _HINTS.items() if name.startswith(module)), "")
    raise errors.InputTypeError(f"{method} takes a Spark DataFrame. Received: {name}. {hint}".rstrip())


def check_not_streaming(data: Any, method: str) -> None:
    """Raise ``InputTypeError`` unless `data` is a Spark DataFrame that is not a stream."""
    check_dataframe(data, method)
    if data.isStreaming:
        raise errors.InputTypeError(
            f"{method} takes rows that have an end. Received: a streaming DataFrame. Fit each batch of it, as in "
            "df.writeStream.foreachBatch(lambda rows, number: estimator.fit(rows)).start(), or have a TFCluster "
            "train on the stream: df.writeStream.foreachBatch(cluster.feed_batch).start()."
        )


def check_call(param: str, function: Any, arguments: str, *args: Any, **kwargs: Any) -> None:
    """Raise ``ParamError`` unless a function can be called with some arguments, as far as its signature tells.

    `param` is what it was passed as, `arguments` are the arguments for the message; their values do not matter.
    """
    try:
        signature = inspect.signature(function)
    except (TypeError, ValueError):  # of some functions in C it is not known
        return
    try:
        signature.bind(*args, **kwargs)
    except TypeError as error:
        name = getattr(function, "__name__", type(function).__name__)
        raise errors.ParamError(
            f"{param} is called with {arguments}, but it is {name}{signature} ({error}). Change its parameters."
        ) from None


def check_model_function(function: Callable[..., Any], arguments: Mapping[str, Any]) -> None:
    """Raise ``ParamError`` unless a model function can be called with ``modelArgs``."""
    names = f"modelArgs, {sorted(arguments)}, as keyword arguments" if arguments else "no arguments"
    check_call("model", function, names, **arguments)
