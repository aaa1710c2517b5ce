"""Servers that replicate asynchronously, in guests of the fake hypervisor.

``Inside.follows`` is the address of a replica's source, or ``ITSELF`` for a source. A replica has
executed what its source has by the time that anyone asks, while both run and it is not stopped.
"""

from __future__ import annotations

import re
from collections.abc import Callable, Sequence
from dataclasses import replace

from lab.errors import CommandFailed
from lab.fake.guests import Record
from lab.fake.inside import ACCOUNT, Inside, Result, execute, read_inside, write_inside

ITSELF = "itself"

_LINK = re.compile(r"CHANGE MASTER TO MASTER_HOST = '([^']*)'")
_SOURCE = "DROP USER IF EXISTS replication@"
_PASSED_OVER = re.compile(
    r"(CHANGE MASTER|START SLAVE|STOP SLAVE|(CREATE|DROP) USER|GRANT|REVOKE"
    r"|SET SESSION sql_log_bin|FLUSH LOCAL BINARY LOGS|ALTER USER replication@)"
)
_COLUMN = re.compile(r"^SELECT '([^']*)', (.*)$")
_MYSQL = re.compile(r" ?/\*!80000 .*?\*/")
_WAIT = re.compile(r"IF\(/\*M! MASTER_GTID_WAIT\*/\('([^']*)', [0-9.]+\) = 0, 'yes', 'no'\)")


def follows(statement: str) -> str:
    """What a server follows once it has executed ``statement``; empty if that does not say."""
    if statement.startswith(_SOURCE):
        return ITSELF
    found = _LINK.match(statement)
    return found[1] if found else ""


def current(record: Record, peers: Sequence[Record]) -> Inside:
    """What is in a guest once it has what its source has; ``peers``: those that run, with it."""
    inside = read_inside(record.disks)
    source = _source(peers)
    if inside.follows == ITSELF or source is None:
        return inside
    own = [one for one in inside.statements if ACCOUNT.fullmatch(one)]
    theirs = [one for one in source.statements if not ACCOUNT.fullmatch(one)]
    if own + theirs != inside.statements:
        inside = replace(inside, statements=own + theirs)
        write_inside(record.disks, inside)
    return inside


def run(record: Record, peers: Sequence[Record], statement: str) -> Result:
    """Execute a statement on a server that replicates; raises CommandFailed."""
    inside = current(record, peers)
    if _PASSED_OVER.match(statement):
        return Result()
    if statement.startswith("SELECT 'read_only', "):
        return _answer(inside, peers, statement)
    before = list(inside.statements)
    result = execute(inside, statement)
    if inside.statements != before:
        if inside.follows != ITSELF and not ACCOUNT.fullmatch(statement):
            text = "The MariaDB server is running with the --read-only option"
            raise CommandFailed(["SQL"], 1290, stderr=text)
        write_inside(record.disks, inside)
    return result


def _answer(inside: Inside, peers: Sequence[Record], statement: str) -> Result:
    """The rows of the blueprint's question."""
    values: dict[str, Callable[[], str]] = {
        "/*M! @@GLOBAL.gtid_binlog_pos*/": lambda: _position(inside),
    }
    rows = []
    for part in _MYSQL.sub("", statement).split(" UNION ALL "):
        ((name, value),) = _COLUMN.findall(part)
        if name == "read_only":
            value = "OFF" if inside.follows == ITSELF else "ON"
        elif value in values:
            value = values[value]()
        elif waited := _WAIT.fullmatch(value):
            value = "yes" if _number(_position(inside)) >= _number(waited[1]) else "no"
        elif "SLAVE_RUNNING" in value:
            value = "stopped" if _source(peers) is None else "running"
        rows.append((name, value.strip("'")))
    return Result(("name", "value"), tuple(rows), len(rows))


def _source(peers: Sequence[Record]) -> Inside | None:
    found = (read_inside(peer.disks) for peer in peers)
    return next((inside for inside in found if inside.follows == ITSELF), None)


def _position(inside: Inside) -> str:
    executed = sum(not ACCOUNT.fullmatch(statement) for statement in inside.statements)
    return f"0-1-{executed}" if executed else ""


def _number(position: str) -> int:
    return int(position.rpartition("-")[2] or 0)
