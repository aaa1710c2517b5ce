"""The part of a verb's help page that is not its docstring or its flags."""

from __future__ import annotations

from collections.abc import Callable
from typing import TypeVar

from lab.values import dataclass

F = TypeVar("F", bound=Callable[..., object])


@dataclass(frozen=True)
class Manual:
    """The examples that ``--help`` shows, and whether ``-- CMD`` follows the verb, or may."""

    examples: tuple[str, ...]
    takes_command: bool = False
    may_take_command: bool = False


_MANUALS: dict[Callable[..., object], Manual] = {}


def manual(
    *examples: str, takes_command: bool = False, may_take_command: bool = False
) -> Callable[[F], F]:
    """Give a verb its examples."""

    def note(function: F) -> F:
        _MANUALS[function] = Manual(examples, takes_command, may_take_command)
        return function

    return note


def manual_of(function: Callable[..., object]) -> Manual:
    """The manual of a verb; raises KeyError for a function without one."""
    return _MANUALS[function]
