"""Messages that an upgrade reads: a server's about options, mariadb-upgrade's about tables."""

from __future__ import annotations

import re
from collections.abc import Collection, Iterable, Mapping

from lab.texts import printable
from lab.views.upgrades import OptionState, OptionView

MOST_OPTIONS = 50
"""Options that are reported, the first ones."""
_WIDTH = 500
_NAME = r"-{0,2}([A-Za-z][\w-]{0,80})"
_ABOUT: Mapping[OptionState, re.Pattern[str]] = {
    # The messages of both families: EE_UNKNOWN_VARIABLE and EE_UNKNOWN_OPTION of mysys,
    # "adjusted to" of its my_getopt.c; "was removed" of MariaDB's mysqld.cc.
    "unknown": re.compile(rf"unknown (?:variable|option) '{_NAME}"),
    "ignored": re.compile(rf"'{_NAME}' was removed"),
    "adjusted": re.compile(rf"option '{_NAME}': .{{0,200}}\badjusted to\b"),
    "deprecated": re.compile(rf"(?:'|\s--){_NAME}(?:=[^' ]*)?'? is deprecated"),
}
_SKIPPED = ("loose_", "skip_", "enable_", "disable_", "maximum_")
"""What an option file may have before the name of an option."""

_WANTED = ("rebuild required", "upgrade required", "repair table", "needs upgrade")
"""In messages about such tables (ER_TABLE_NEEDS_REBUILD, ER_TABLE_NEEDS_UPGRADE)."""
_KINDS = ("error", "warning", "note", "info", "status")
_NEEDS = "Needs upgrade"
"""Behind the name of a table, in the place of a message."""
_REPAIRS = ("Repairing tables", "Upgrading tables")
_CHECKS = ("Phase ", "Processing databases")
"""How the lines begin with which the next check does."""
_FAILED = "Failed to "
_REBUILT, _NOT = "rebuilt", "not rebuilt"


def option_names(text: str) -> set[str]:
    """The options that an option file sets."""
    lines = (line.strip() for line in text.splitlines())
    return {plain(line.partition("=")[0].strip()) for line in lines if line[:1] not in "#;[!"}


def options_in(lines: Iterable[str], own: Collection[str]) -> tuple[OptionView, ...]:
    """The options that the lines of a log are about: what is ``own``, and all that are errors.

    Others than those of the user may be unknown to a server: the lab's begin with ``loose``.
    """
    found: dict[tuple[str, OptionState], OptionView] = {}
    for line in lines:
        for state, pattern in _ABOUT.items():
            if match := pattern.search(line):
                name = plain(match[1])
                fatal = state == "unknown" and "[Warning]" not in line
                if name in own or fatal:
                    message = printable(line)[:_WIDTH]
                    found.setdefault((name, state), OptionView(name, state, message))
                break
    return tuple(found.values())[:MOST_OPTIONS]


def plain(name: str) -> str:
    """The name of an option, however it was written."""
    name = name.lower().replace("-", "_")
    for prefix in _SKIPPED:
        name = name.removeprefix(prefix)
    return name


def rebuilt_tables(printed: str) -> list[str]:
    """The tables that the upgrade of system tables wanted rebuilt, each with what was done.

    ``printed``: by its program, which checks all tables, and then repairs those that need it
    by itself (``--auto-repair``). For a table that is not in order, the check prints a line with
    its name, and one with the message (mysqlcheck.c, ``print_result``); of what is repaired
    afterwards, it prints only failures.
    """
    found, table, repairs = dict[str, str](), "", False
    for line in map(str.strip, printed.splitlines()):
        kind, colon, text = (part.strip() for part in line.partition(":"))
        if colon and kind.lower() in _KINDS:
            if repairs and table in found and kind.lower() == "error":
                found[table] = f"{_NOT}: {text}"
            elif not repairs and _wants(text):
                found[table] = text
        elif line in _REPAIRS or line.startswith(_CHECKS):
            repairs = line in _REPAIRS
            found = _begun(found) if repairs else found
        elif line.startswith(_FAILED):  # its error is on the next line
            table = next((name for name in found if _quoted(name) in line), "")
            if table:
                found[table] = f"{_NOT}: {line}"
        elif line.endswith(_NEEDS):
            table = line.removesuffix(_NEEDS).strip()
            found[table] = f"{_NOT}: {line}" if repairs else _NEEDS
        elif line:
            table = line
    return [f"{name}: {what}" for name, what in found.items()]


def _begun(found: dict[str, str]) -> dict[str, str]:
    """``found`` once repairs have begun: a table is rebuilt unless a failure of it follows."""
    return {
        name: _REBUILT if _wants(what) and not what.startswith(_NOT) else what
        for name, what in found.items()
    }


def _wants(text: str) -> bool:
    return any(words in text.lower() for words in _WANTED)


def _quoted(name: str) -> str:
    """The name of a table as statements have it."""
    schema, _, table = name.partition(".")
    return f"`{schema}`.`{table}`"
