"""In place of a hypervisor that does not answer."""

from __future__ import annotations

from typing import NoReturn, cast

from lab.hypervisor import Hypervisor, Unanswered


class _Silent:
    def __init__(self, why: Unanswered) -> None:
        self._why = why

    def __getattr__(self, _: str) -> NoReturn:
        raise self._why


def silent(why: Unanswered) -> Hypervisor:
    """A hypervisor that raises ``why``, whatever it is asked."""
    return cast("Hypervisor", _Silent(why))
