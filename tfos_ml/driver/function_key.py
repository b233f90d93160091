"""What the functions of Spark ML's own stages in a plan compute, as bytes: VectorAssembler's, scalers' and others'.

A function comes to the executors as its serialised bytes, and they have nothing else of it but Spark's classes. So of
one version of Spark, functions with the same bytes are the same function with the same state. Taken are functions whose
code and state are of Spark's, Scala's and Java's own classes; no state that lies elsewhere (a broadcast), and no whole
stage, whose bytes may change with its use.
"""

from __future__ import annotations

import hashlib
import re
from collections.abc import Iterator
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

from tfos_ml.driver.file_scan import class_name, items

if TYPE_CHECKING:
    from pyspark.sql import SparkSession

SCALA_UDF = "org.apache.spark.sql.catalyst.expressions.ScalaUDF"
_ALIAS = "org.apache.spark.sql.catalyst.expressions.Alias"
_OWNER = re.compile(r"(org\.apache\.spark\.(?:ml|sql\.ml)\.[\w.]+?)\$+Lambda\b.*")
_STAGE = "org.apache.spark.ml.Pipeline"
_ASSEMBLER = "org.apache.spark.ml.feature.VectorAssembler"
_PURE = {  # functions that Spark calls nondeterministic so that it does not compute them twice
    _ASSEMBLER,
    "org.apache.spark.ml.feature.StringIndexerModel",
}
_STATE = re.compile(
    r"\[*L?(org\.apache\.spark\.(ml\.(?!param\.)|mllib\.|sql\.ml\.|util\.collection\.)|scala\.(?!reflect\.api\.)|"
    r"java\.lang\.(Boolean|Byte|Character|Double|Enum|Float|Integer|Long|Number|Object|Short|String|"
    r"invoke\.SerializedLambda)\b).*|\[+[BCDFIJSZ]"
)
_CLASS = re.compile(rb"r(?=(..))", re.DOTALL)  # of a serialised object: a tag, the length of its name, its name
_UID_NAME = re.compile(r"(\w+_double)_VectorAssembler_[0-9a-f]{12}")


@dataclass(frozen=True)
class Functions:
    """The functions of Spark ML in a plan."""

    digests: list[str]  # in the order of the plan
    names: dict[str, str]  # of fields, with and without a stage's random name, which VectorAssembler does not look at


class UnknownFunctionError(Exception):
    """A function that is none of Spark ML's, or whose bytes do not tell all of it; the text says which."""


def functions_of(spark: SparkSession, plan: Any) -> Functions:
    """The functions in a canonical plan; raises ``UnknownFunctionError``."""
    digests, names = [], {}
    for expression in expressions_of(plan):
        if class_name(expression) == SCALA_UDF:
            digests.append(_digest(spark, expression.function()))
            if _owner(expression.function()) == _ASSEMBLER:
                names.update(_random_names(expression))
    return Functions(digests, names)


def _random_names(expression: Any) -> dict[str, str]:
    """Names of the fields of the struct that a VectorAssembler is given, which have the random name of the stage."""
    struct = expression.children().apply(0)
    fields = [field.toString() for field in list(items(struct.children()))[::2]]
    return {found[0]: found[1] for found in map(_UID_NAME.fullmatch, fields) if found}


def expressions_of(plan: Any) -> Iterator[Any]:
    """All expressions of a plan, each before its parts."""
    for expression in items(plan.expressions()):
        yield from _tree(expression)
    for child in items(plan.children()):
        yield from expressions_of(child)


def _tree(expression: Any) -> Iterator[Any]:
    yield expression
    for child in items(expression.children()):
        yield from _tree(child)


def is_deterministic(plan: Any) -> bool:
    """Whether a plan gives the same rows each time, as far as Spark knows, or but for functions that do, too."""
    if plan.deterministic():
        return True
    expressions, children = list(items(plan.expressions())), list(items(plan.children()))
    if all(part.deterministic() for part in [*expressions, *children]):
        return False  # it is the operator itself that is not
    return all(map(_is_pure, expressions)) and all(map(is_deterministic, children))


def _is_pure(expression: Any) -> bool:
    if expression.deterministic():
        return True
    if class_name(expression) == SCALA_UDF:
        is_known = expression.udfDeterministic() or _owner(expression.function()) in _PURE
    else:
        is_known = class_name(expression) == _ALIAS
    return is_known and all(_is_pure(child) for child in items(expression.children()))


def _owner(function: Any) -> str:
    """The class of Spark ML that a function is written in; empty for any other."""
    found = _OWNER.fullmatch(class_name(function))
    return found[1] if found else ""


def _digest(spark: SparkSession, function: Any) -> str:
    jvm: Any = spark._jvm
    jar = _jar(function.getClass())
    if not (_owner(function) and jar and jar == _jar(jvm.java.lang.Class.forName(_STAGE))):
        raise UnknownFunctionError(class_name(function).partition("$")[0].rpartition(".")[2])
    data = bytes(jvm.org.apache.spark.util.Utils.serialize(function))
    for name in _classes(data):
        if not _STATE.fullmatch(name):
            raise UnknownFunctionError(f"{_owner(function).rpartition('.')[2]} with {name}")
    return hashlib.sha256(data).hexdigest()


def _jar(java_class: Any) -> str:
    """Where a class was loaded from, empty if it is not told: others, too, write classes in Spark's packages."""
    source = java_class.getProtectionDomain().getCodeSource()
    return "" if source is None else str(source.getLocation())


def _classes(data: bytes) -> Iterator[str]:
    """Names of all classes in a serialised object; and perhaps of what only looks like one."""
    for tag in _CLASS.finditer(data):
        length = int.from_bytes(tag[1], "big")
        name = data[tag.start() + 3 : tag.start() + 3 + length]
        if length and len(name) == length and min(name) > 0x20:
            yield name.decode("utf-8", "replace")
