"""Options that a server keeps from when the data directory in its image was initialised."""

from __future__ import annotations

import re
from collections.abc import Iterable

from lab.blueprints import Blueprint
from lab.blueprints.dialects import DIALECTS
from lab.config.enginefile import family_of
from lab.errors import InvalidSpec

_GIVEN = re.compile(r"^[ \t]*([A-Za-z][\w-]*)[ \t]*=[ \t]*([^\s#]+)", re.MULTILINE)


def check_initial(plan: Blueprint, engines: Iterable[str], roles: Iterable[str]) -> None:
    """Raise InvalidSpec for options with which no server of the ``engines`` of images can start.

    ``roles``: of the nodes with these servers.
    """
    initial = [DIALECTS[family_of(engine).dialect].initial for engine in engines]
    for role in sorted(set(roles)):
        for name, value in _GIVEN.findall(plan.options.option_file(role)):
            plain = name.lower().replace("-", "_").removeprefix("loose_")
            for kept in filter(None, (of_server.get(plain) for of_server in initial)):
                if value.lower() in kept:
                    continue
                raise InvalidSpec(
                    f"{plain} = {value} cannot be set: a server has what its data directory was"
                    f" initialised with, which is {' or '.join(sorted(kept))} in lab's images",
                    hint="; ".join(["leave it out", *_titles(plain, value)]),
                )


def _titles(option: str, value: str) -> list[str]:
    """Which dialect's servers can have an option that they keep, if any."""
    return [
        f"{family_of(name).title} can have it"
        for name, dialect in DIALECTS.items()
        if value.lower() in dialect.initial.get(option, ())
    ]
