"""What the program that upgrades system tables says of tables that are to be rebuilt.

It checks all tables, and then repairs those that need it by itself (``--auto-repair``). For a table
that is not in order, its check prints a line with its name, and one with the message
(mysqlcheck.c, ``print_result``); of what it repairs afterwards, only failures.
"""

from __future__ import annotations

_WANTED = ("rebuild required", "upgrade required", "repair table", "needs upgrade")
"""In what servers say of such tables (ER_TABLE_NEEDS_REBUILD, ER_TABLE_NEEDS_UPGRADE)."""
_KINDS = ("error", "warning", "note", "info", "status")
_NEEDS = "Needs upgrade"
"""Behind the name of a table, in the place of a message."""
_REPAIRS = ("Repairing tables", "Upgrading tables")
_CHECKS = ("Phase ", "Processing databases")
"""How the lines begin with which the next check does."""
_FAILED = "Failed to "
_REBUILT, _NOT = "rebuilt", "not rebuilt"


def tables(said: str) -> list[str]:
    """The tables whose check wanted them rebuilt, each with what was done, a line each."""
    found, table, repairs = dict[str, str](), "", False
    for line in map(str.strip, said.splitlines()):
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
    return any(one in text.lower() for one in _WANTED)


def _quoted(name: str) -> str:
    """The name of a table as statements have it."""
    schema, _, table = name.partition(".")
    return f"`{schema}`.`{table}`"
