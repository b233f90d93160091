"""Reads Example and SequenceExample with the protobuf library, without TensorFlow."""

from __future__ import annotations

import functools
from typing import Any

from google.protobuf import descriptor_pb2, descriptor_pool, message_factory

from tfos_ml.tfrecord.feature_types import EXAMPLE

_PACKAGE = "tensorflow"
_BYTES, _FLOAT, _INT64, _MESSAGE = 12, 2, 3, 11  # of FieldDescriptorProto.Type
_STRING, _OPTIONAL, _REPEATED = 9, 1, 3
LISTS = {"bytes_list": "BytesList", "float_list": "FloatList", "int64_list": "Int64List"}
"""The fields of a Feature and their types; a Feature has one of them."""


def parsed(record: bytes, record_type: str) -> Any:
    """Parse a serialized message; None if it cannot be parsed."""
    message = message_class(record_type)()
    try:
        message.ParseFromString(record)
    except Exception as error:  # each implementation of protobuf has its own DecodeError
        if type(error).__name__ != "DecodeError":
            raise
        return None
    return message


def rewritten(record: bytes, record_type: str) -> bytes | None:
    """Parse a message and serialize it with the usual encoding; None if it cannot be parsed."""
    message = parsed(record, record_type)
    if message is None:
        return None
    message.DiscardUnknownFields()
    serialized: bytes = message.SerializeToString()
    return serialized


@functools.cache
def message_class(record_type: str) -> Any:
    """The message class of ``tensorflow.Example`` or ``tensorflow.SequenceExample``, in a separate descriptor pool."""
    file = descriptor_pb2.FileDescriptorProto(name="tfos_ml_example.proto", package=_PACKAGE, syntax="proto3")
    for name, value_type in zip(LISTS.values(), (_BYTES, _FLOAT, _INT64), strict=True):
        _field(file.message_type.add(name=name), "value", 1, value_type, label=_REPEATED)
    feature = file.message_type.add(name="Feature")
    feature.oneof_decl.add(name="kind")
    for number, (name, of) in enumerate(LISTS.items(), 1):
        _field(feature, name, number, _MESSAGE, of, oneof_index=0)
    _field(file.message_type.add(name="FeatureList"), "feature", 1, _MESSAGE, "Feature", label=_REPEATED)
    _map(file.message_type.add(name="Features"), "feature", "Feature")
    _map(file.message_type.add(name="FeatureLists"), "feature_list", "FeatureList")
    _field(file.message_type.add(name="Example"), "features", 1, _MESSAGE, "Features")
    sequence = file.message_type.add(name="SequenceExample")
    _field(sequence, "context", 1, _MESSAGE, "Features")
    _field(sequence, "feature_lists", 2, _MESSAGE, "FeatureLists")
    pool = descriptor_pool.DescriptorPool()
    pool.Add(file)
    name = "Example" if record_type == EXAMPLE else "SequenceExample"
    return message_factory.GetMessageClass(pool.FindMessageTypeByName(f"{_PACKAGE}.{name}"))


def _field(message: Any, name: str, number: int, value_type: int, of: str = "", **more: Any) -> None:
    label = more.pop("label", _OPTIONAL)
    type_name = {"type_name": f".{_PACKAGE}.{of}"} if of else {}
    message.field.add(name=name, number=number, type=value_type, label=label, **type_name, **more)


def _map(message: Any, name: str, of: str) -> None:
    entry = message.nested_type.add(name="".join(part.title() for part in name.split("_")) + "Entry")
    entry.options.map_entry = True
    _field(entry, "key", 1, _STRING)
    _field(entry, "value", 2, _MESSAGE, of)
    _field(message, name, 1, _MESSAGE, f"{message.name}.{entry.name}", label=_REPEATED)
