"""What a server's log says of a lab's options: which it does not know, or not as before."""

from __future__ import annotations

import re
from collections.abc import Collection, Iterable, Mapping

from lab.texts import printable
from lab.views.upgrades import OptionState, OptionView

MOST = 50
"""Options that are reported, the first ones."""
_WIDTH = 500
_NAME = r"-{0,2}([A-Za-z][\w-]{0,80})"
_SAID: Mapping[OptionState, re.Pattern[str]] = {
    # The messages of both families: EE_UNKNOWN_VARIABLE and EE_UNKNOWN_OPTION of mysys,
    # "adjusted to" of its my_getopt.c; "was removed" of MariaDB's mysqld.cc.
    "unknown": re.compile(rf"unknown (?:variable|option) '{_NAME}"),
    "ignored": re.compile(rf"'{_NAME}' was removed"),
    "adjusted": re.compile(rf"option '{_NAME}': .{{0,200}}\badjusted to\b"),
    "deprecated": re.compile(rf"(?:'|\s--){_NAME}(?:=[^' ]*)?'? is deprecated"),
}
_SKIPPED = ("loose_", "skip_", "enable_", "disable_", "maximum_")
"""What an option file may have before the name of an option."""


def names(text: str) -> set[str]:
    """The options that an option file sets."""
    lines = (line.strip() for line in text.splitlines())
    return {_plain(line.partition("=")[0].strip()) for line in lines if line[:1] not in "#;[!"}


def changed(lines: Iterable[str], own: Collection[str]) -> tuple[OptionView, ...]:
    """The options that the lines of a log are about: what is ``own``, and all that are errors.

    Others than those of the user may be unknown to a server: the lab's begin with ``loose``.
    """
    found: dict[tuple[str, OptionState], OptionView] = {}
    for line in lines:
        for state, pattern in _SAID.items():
            if match := pattern.search(line):
                name = _plain(match[1])
                fatal = state == "unknown" and "[Warning]" not in line
                if name in own or fatal:
                    said = printable(line)[:_WIDTH]
                    found.setdefault((name, state), OptionView(name, state, said))
                break
    return tuple(found.values())[:MOST]


def _plain(name: str) -> str:
    """The name of an option, however it was written."""
    name = name.lower().replace("-", "_")
    for prefix in _SKIPPED:
        name = name.removeprefix(prefix)
    return name
