"""``dataclass`` whose methods are generated when a class is first used.

The standard library compiles up to six methods for each class where it is defined: half a
millisecond, or a tenth of a second for the classes that `lab up` imports, of which it makes
instances of a third. This one applies the standard library's when the first instance is made, or
when the fields are asked for: by ``fields``, ``replace``, a subclass, or a library that looks for
dataclasses. Equality, hash and representation, a third of the time, are not compiled: they read
the fields by their names. What a class then is does not differ.
"""

from __future__ import annotations

import dataclasses
import threading
from collections.abc import Callable, Iterable
from operator import attrgetter
from reprlib import recursive_repr
from types import FrameType
from typing import TYPE_CHECKING, Any, TypeVar

__all__ = ["dataclass", "generating"]

T = TypeVar("T")

_FIELDS = "__dataclass_fields__"
_making = threading.RLock()
_whole = dataclasses.dataclass  # noqa: TID251

if TYPE_CHECKING:
    from dataclasses import dataclass  # noqa: TID251
else:

    def dataclass(cls: type[T] | None = None, /, **options: Any) -> Any:
        """See ``dataclasses.dataclass``."""
        if cls is None:
            return lambda cls: dataclass(cls, **options)
        return cls if _deferred(cls, options) else _whole(cls, **options)


def _deferred(cls: type, options: dict[str, Any]) -> bool:
    """Whether the methods of ``cls`` are generated later: not where it has a way of its own."""
    new: Any = cls.__new__
    if options.get("slots") or not (new is object.__new__ or _is_ours(new)):
        return False
    done = False

    def make() -> None:
        nonlocal done
        with _making:  # of two threads, one makes them and the other waits
            if not done:
                _complete(cls, options)
                cls.__new__ = staticmethod(_new)  # type: ignore[method-assign,assignment]
                done = True

    def first(its: type, /, *_: object, **__: object) -> object:
        make()
        return object.__new__(its)

    first.__module__ = __name__
    setattr(cls, _FIELDS, _Fields(cls, make))
    cls.__new__ = staticmethod(first)  # type: ignore[method-assign,assignment]
    return True


def _complete(cls: type, options: dict[str, Any]) -> None:
    """Generate the methods of a class: all of them, or none if that was interrupted.

    Those of half a class would keep the rest from being generated ever after.
    """
    before = dict(vars(cls))
    try:
        if options.keys() <= {"frozen", "kw_only"}:
            _whole(cls, **options, repr=False, eq=False)
            _add_methods(cls, before, frozen=options.get("frozen", False))
        else:
            _whole(cls, **options)
    except BaseException:
        for name in vars(cls).keys() - before.keys():
            delattr(cls, name)
        for name, value in before.items():
            if vars(cls).get(name) is not value:
                setattr(cls, name, value)
        raise


def _add_methods(cls: type, own: dict[str, Any], *, frozen: bool) -> None:
    """Add what ``repr`` and ``eq`` of ``dataclasses.dataclass`` add, by the same rules."""
    fields = dataclasses.fields(cls)
    compared = _values_of(field.name for field in fields if field.compare)
    hashed = _values_of(
        field.name for field in fields if (field.compare if field.hash is None else field.hash)
    )
    shown = [field.name for field in fields if field.repr]

    @recursive_repr()
    def as_text(self: object) -> str:
        values = (f"{name}={getattr(self, name)!r}" for name in shown)
        return f"{type(self).__qualname__}({', '.join(values)})"

    def is_equal(self: object, other: object) -> Any:
        if other.__class__ is not self.__class__:
            return NotImplemented
        return compared(self) == compared(other)

    def as_hash(self: object) -> int:
        return hash(hashed(self))

    found: dict[str, Any] = {"__repr__": as_text, "__eq__": is_equal}
    # Python itself sets __hash__ to None in a class that has an __eq__ of its own.
    if own.get("__hash__") is None and ("__hash__" not in own or "__eq__" in own):
        found["__hash__"] = as_hash if frozen else None
    for name, method in found.items():
        if name == "__hash__" or name not in own:
            setattr(cls, name, method)
    params = vars(cls)["__dataclass_params__"]
    params.repr = params.eq = True


def _values_of(names: Iterable[str]) -> Callable[[object], Any]:
    """A function that reads these attributes."""
    listed = tuple(names)
    return attrgetter(*listed) if listed else lambda _: ()


def generating(frame: FrameType | None) -> bool:
    """Whether methods are being generated in a frame, or in one that called it.

    A library in C may have asked for them, such as msgspec, which takes what is raised then for the
    answer that the class is none of these.
    """
    while frame is not None:
        if frame.f_globals.get("__name__") == __name__:
            return True
        frame = frame.f_back
    return False


class _Fields:
    """The attribute by which a dataclass is known, until its methods are generated."""

    def __init__(self, cls: type, make: Callable[[], None]) -> None:
        self._cls, self._make = cls, make

    def __get__(self, _: object, __: type | None = None) -> Any:
        self._make()
        return vars(self._cls)[_FIELDS]


def _new(its: type, /, *_: object, **__: object) -> object:
    # Not removed from the class: Python would then call ``object.__new__`` with the arguments.
    return object.__new__(its)


def _is_ours(new: Any) -> bool:
    return getattr(new, "__module__", "") == __name__
