"""TFRecords as a Spark data source and as plain functions, without TensorFlow.

======================= ======================================================================
``wire.py``             Protocol Buffers' wire format, for all records of a batch at once
``framing.py``          lengths and checksums around records
``feature_types.py``    which list of a feature holds an Arrow column
``decoding.py``         messages -> Arrow columns; ``protobuf.py`` parses unusual encodings
``encoding.py``         Arrow columns -> messages
``schema_inference.py`` which columns a sample of records has
``files.py``            paths, patterns, directories by partition, the file of the schema
``reading.py``          a file -> record batches; damaged records
``writing.py``          rows of a task -> files; ``commit.py`` moves the files of all tasks into place
``plan.py``             what the driver decides before a job
``data_source.py``      ``format("tfrecord")``
``functions.py``        ``load_tfrecords``, ``save_as_tfrecords`` and the like
======================= ======================================================================
"""

from __future__ import annotations

import importlib
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from tfos_ml.tfrecord.functions import (
        infer_schema,
        load_tfrecords,
        register,
        save_as_tfrecords,
    )

__all__ = ["infer_schema", "load_tfrecords", "register", "save_as_tfrecords"]


def __getattr__(name: str) -> Any:
    if name not in __all__:
        raise AttributeError(f"module 'tfos_ml.tfrecord' has no attribute {name!r}")
    from tfos_ml.common.optional_packages import needed_by

    with needed_by(f"tfos_ml.tfrecord.{name}"):
        return getattr(importlib.import_module("tfos_ml.tfrecord.functions"), name)


def __dir__() -> list[str]:
    return sorted([*globals(), *__all__])
