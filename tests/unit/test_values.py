"""Dataclasses whose methods are generated when they are first used are as all others."""

from __future__ import annotations

import copy
import dataclasses
import importlib
import itertools
import pickle
import pkgutil
import sys
import threading
from abc import ABC, abstractmethod
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from dataclasses import field, fields, replace
from types import FrameType
from typing import Any, Generic, TypeVar, cast

import pytest

import lab
from lab.values import dataclass

T = TypeVar("T")


@dataclass(frozen=True)
class Point:
    x: int
    y: int = 2
    names: list[str] = field(default_factory=list, compare=False)


@dataclass(frozen=True)
class Named(Point):
    name: str = "here"


class Plain(Point):
    """Without a decorator of its own."""


@dataclass
class Box(Generic[T]):
    content: T
    doubled: int = field(init=False)

    def __post_init__(self) -> None:
        self.doubled = 2


@dataclass(frozen=True)
class Shape(ABC):
    sides: int

    @abstractmethod
    def draw(self) -> str: ...


@dataclass(order=True, kw_only=True)
class Version:
    number: int


def test_they_are_as_all_dataclasses() -> None:
    """Protects every type of the project: equality, order, representation, copies, subclasses."""
    assert Named(1, name="x") == Named(1, 2, ["y"], "x")
    assert hash(Named(1)) == hash(Named(1))
    assert repr(Named(1)) == "Named(x=1, y=2, names=[], name='here')"
    assert [one.name for one in fields(Named)] == ["x", "y", "names", "name"]
    assert replace(Named(1), y=3) == Named(1, 3)
    assert Plain(1).y == 2
    assert dataclasses.is_dataclass(Plain)
    assert Named(1).names is not Named(1).names
    for copied in (
        copy.copy(Named(1)),
        copy.deepcopy(Named(1)),
        pickle.loads(pickle.dumps(Named(1))),  # noqa: S301  # our own
    ):
        assert copied == Named(1)
    with pytest.raises(dataclasses.FrozenInstanceError):
        cast(Any, Named(1)).x = 2
    with pytest.raises(TypeError, match="missing 1 required positional argument"):
        cast(Any, Point)()
    assert Box[int](3).doubled == 2
    with pytest.raises(TypeError, match="abstract"):
        cast(Any, Shape)(3)
    assert Version(number=1) < Version(number=2)
    match Point(4):
        case Point(x, y):
            assert (x, y) == (4, 2)


def four() -> type:
    class Kind:
        """With fields of all sorts."""

        a: int = 1
        b: list[int] = field(default_factory=list, compare=False)
        c: str = field(default="x", repr=False)
        d: float = field(default=0.0, hash=False)

    return Kind


def equal() -> type:
    class Kind:  # noqa: PLW1641  # that is what is tried
        """With an equality of its own."""

        a: int = 1

        def __eq__(self, other: object) -> bool:
            return True

    return Kind


def own() -> type:
    class Kind:
        """With a hash and a representation of its own."""

        a: int = 1

        def __hash__(self) -> int:
            return 7

        def __repr__(self) -> str:
            return "Kind!"

    return Kind


def unhashable() -> type:
    class Kind:
        """Without a hash by its own wish."""

        a: int = 1
        __hash__ = None  # type: ignore[assignment]

    return Kind


def empty() -> type:
    class Kind:
        """Without fields."""

    return Kind


def behaviour(kind: Any) -> list[object]:
    """What instances of a class say of themselves and of each other."""
    given: list[dict[str, Any]] = [{"a": 1}, {"a": 2}, {"b": [1]}, {"c": "y"}, {"d": 1.0}]
    made = [kind(**one) for one in given if one.keys() <= {one.name for one in fields(kind)}]
    made.append(kind())
    pairs = list(itertools.product(made, repeat=2))
    hashes = [hash(a) == hash(b) for a, b in pairs] if kind.__hash__ else []
    others = [kind() == other for other in (3, None, Point(1))]
    return [
        [repr(one).split(".")[-1] for one in made], [a == b for a, b in pairs], others,
        [a != b for a, b in pairs], hashes, str(kind.__dataclass_params__), kind.__match_args__,
    ]  # fmt: skip


@pytest.mark.parametrize("make", [four, equal, own, unhashable, empty])
@pytest.mark.parametrize("options", [{}, {"frozen": True}, {"kw_only": True}])
def test_what_is_not_compiled_is_as_what_is(make: Callable[[], type], options: Any) -> None:
    """Protects from a second standard of equality: a class behaves as by the library's own."""
    ours: Any = dataclass(make(), **options)
    theirs: Any = dataclasses.dataclass(make(), **options)
    assert behaviour(ours) == behaviour(theirs)


def test_a_class_that_holds_itself_has_a_representation() -> None:
    """Protects from an endless recursion."""
    box: Box[Any] = Box(None)
    box.content = box
    assert repr(box) == "Box(content=..., doubled=2)"


def test_a_class_that_nobody_used_is_complete_for_who_looks_at_it() -> None:
    """Protects libraries that ask what a dataclass has, and names of fields at the beginning."""

    @dataclass(frozen=True)
    class Fresh:
        cls: int = 1
        self: int = 2

    assert dataclasses.is_dataclass(Fresh)
    assert [one.name for one in fields(Fresh)] == ["cls", "self"]
    assert Fresh(cls=3, self=4) == Fresh(3, 4)


def test_two_threads_may_be_the_first() -> None:
    """Protects programs with threads: nobody sees a class that is incomplete."""
    for _ in range(200):

        @dataclass(frozen=True)
        class Fresh:
            a: int = 1
            b: int = 2

        ready = threading.Barrier(4)

        def make(kind: type[Fresh] = Fresh, ready: threading.Barrier = ready) -> tuple[int, int]:
            ready.wait()
            found = kind(3, b=4)
            return found.a, len(fields(kind))

        with ThreadPoolExecutor(4) as pool:
            assert {one.result() for one in [pool.submit(make) for _ in range(4)]} == {(3, 2)}


def test_an_interrupt_leaves_no_half_of_a_class() -> None:
    """Protects the clean-up after Ctrl-C: it uses the class whose methods were generated then."""
    interrupted = 0
    for count in itertools.count(1):

        @dataclass(frozen=True, order=True)
        class Fresh(Shape):
            a: int = 1
            b: list[str] = field(default_factory=list, compare=False)

            def draw(self) -> str:
                return "x"

        before = dict(vars(Fresh))
        left = count

        def stop(frame: FrameType, event: str, _: object) -> Any:
            nonlocal left
            if event == "line" and frame.f_code.co_filename == dataclasses.__file__:
                left -= 1
                if not left:
                    raise KeyboardInterrupt
            return stop

        tracer = sys.gettrace()
        sys.settrace(stop)
        try:
            Fresh(4)
        except KeyboardInterrupt:
            interrupted += 1
        finally:
            sys.settrace(tracer)
        if left > 0:
            break
        assert vars(Fresh) == before
        assert (Fresh(4, a=2, b=["y"]), hash(Fresh(4))) == (Fresh(4, 2), hash(Fresh(4, 1)))
        assert Fresh(4) < Fresh(5)
    assert interrupted > 100


def test_all_classes_are_well_defined() -> None:
    """Protects from an error in a definition that shows where the class is first used."""
    found = 0
    for module in pkgutil.walk_packages(lab.__path__, "lab."):
        if ".migrations" in module.name or module.name.endswith("__main__"):
            continue  # they are run, not imported
        for one in vars(importlib.import_module(module.name)).values():
            if isinstance(one, type) and "__dataclass_fields__" in vars(one):
                found += bool(fields(cast(Any, one)) or True)
    assert found > 200
