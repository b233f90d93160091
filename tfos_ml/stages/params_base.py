"""Declarations of Params, and the methods of stages that follow from them."""

from __future__ import annotations

import functools
import inspect
from typing import TYPE_CHECKING, Any, TypeVar

from pyspark.ml.param import Param as SparkParam
from pyspark.ml.param import Params

from tfos_ml.common.redact import redact
from tfos_ml.errors import ParamError
from tfos_ml.stages.keyword_hints import hint

if TYPE_CHECKING:
    from collections.abc import Mapping

    from typing_extensions import Self

    from tfos_ml.stages.constraints import Constraint

Stage = TypeVar("Stage", bound="type[Any]")


class Param(SparkParam[Any]):
    """The declaration of a Param, which has the name of the class attribute. A default of None means no default."""

    def __init__(self, doc: str, constraint: Constraint, default: Any = None):
        super().__init__(Params._dummy(), "", doc, self._convert)
        self.constraint = constraint
        self.default = default

    def __set_name__(self, owner: type, name: str) -> None:
        self.name = name
        self.owner = owner

    def __reduce__(self) -> Any:
        """Pickled, and copied, by name: its constraint has functions that cannot be pickled."""
        return _param_of, (self.owner, self.name, self.parent)

    def _convert(self, value: Any) -> Any:
        return self.constraint.check(self.name, value)


def _param_of(owner: type, name: str, parent: str) -> Param:
    """The Param of a stage, by the class that declares it."""
    param = Param.__new__(Param)
    vars(param).update({**vars(vars(owner)[name]), "parent": parent})
    return param


def declared(cls: type) -> dict[str, Param]:
    """The Params of a class by name, those of its bases first."""
    attributes = (item for base in reversed(cls.__mro__) for item in vars(base).items())
    return {name: param for name, param in attributes if isinstance(param, Param)}


class ParamsBase(Params):
    """The base of all stages of tfos_ml: sets and gets Params by name, with constraints."""

    _keywords: type
    """The keywords of the constructor and of ``setParams``: a ``TypedDict``."""
    _positional: tuple[str, ...] = ()
    """Those that the constructor takes without their names, too."""
    _arguments: Mapping[str, Any]
    """Values of the keywords that are no Params, by name; copies of a stage share it, so it is never changed."""

    def _construct(self, given: dict[str, Any]) -> None:
        """Set all attributes of a new stage."""
        self._setDefault(**{name: p.default for name, p in declared(type(self)).items() if p.default is not None})
        arguments = [name for name in self._keywords.__annotations__ if not self.hasParam(name)]
        self._arguments = {name: self._argument(name, None) for name in arguments}
        self._set_given(given)

    def _argument(self, name: str, value: Any) -> Any:
        """An argument as it is kept, None if it was not given; raises ``ParamError`` if it is wrong."""
        return value

    def _set_given(self, given: dict[str, Any]) -> Self:
        """Set arguments and Params; raises ``ParamError`` for unknown names."""
        arguments = {name: self._argument(name, given.pop(name)) for name in self._arguments if name in given}
        self._arguments = {**self._arguments, **arguments}
        known = [p.name for p in self.params]
        unknown = [name for name in given if not self.hasParam(name)]
        if unknown:
            keywords = list(dict.fromkeys([*known, *self._keywords.__annotations__]))
            hints = {name: hint(name, keywords) for name in unknown}
            names = "; ".join(f"'{name}'{text}" for name, text in hints.items())
            rest = "" if all(hints.values()) else f". Known: {', '.join(sorted(known))}"
            raise ParamError(f"Unknown parameters: {names}{rest}")
        return self._set_checked(**given)

    def _set_checked(self, **values: Any) -> Self:
        """Set Params, except those that are None."""
        return self._set(**{name: value for name, value in values.items() if value is not None})

    def _get(self, name: str) -> Any:
        """Value of a Param; None if it has neither value nor default, or if this stage does not have it."""
        if not self.hasParam(name):
            return None
        param = self.getParam(name)
        return self.getOrDefault(param) if self.isDefined(param) else None

    def explainParam(self, param: str | SparkParam[Any]) -> str:
        """Name, doc, default and value of a Param; URIs are shown without user and password."""
        return redact(super().explainParam(param))

    def _check_params(self) -> None:
        """Check all values again; a grid or ``copy(extra)`` may have set unchecked ones."""
        for param in self.params:
            if isinstance(param, Param) and self.isDefined(param):
                param.typeConverter(self.getOrDefault(param))


def document_params(cls: Stage) -> Stage:
    """Class decorator: adds all Params to the docstring, and all keywords to the signature."""
    params = declared(cls)
    types = {name: kind.__forward_arg__ for name, kind in cls._keywords.__annotations__.items()}
    names = [name for name in types if name not in params] + list(params)
    defaults = {name: param.default for name, param in params.items()}
    lines = ["    All Params", "    ----------"]
    for name, param in params.items():
        default = "" if param.default is None else f", default {param.default!r}"
        lines += [f"    {name} : {types[name]}{default}", f"        {param.doc}"]
    cls.__doc__ = "\n".join([f"{cls.__doc__}", *lines, "    "])
    keyword = functools.partial(inspect.Parameter, kind=inspect.Parameter.KEYWORD_ONLY)
    for method, positional in ((cls.__init__, cls._positional), (cls.setParams, ())):
        kinds = {name: {"kind": inspect.Parameter.POSITIONAL_OR_KEYWORD} for name in positional}
        method.__signature__ = inspect.Signature(
            [
                inspect.Parameter("self", inspect.Parameter.POSITIONAL_OR_KEYWORD),
                *(keyword(n, default=defaults.get(n), annotation=types[n], **kinds.get(n, {})) for n in names),
                inspect.Parameter("unknown", inspect.Parameter.VAR_KEYWORD),  # raises ParamError with the nearest known
            ]
        )
    return cls
