"""Servers that replicate asynchronously, in guests of the fake hypervisor.

``Inside.follows`` has the addresses of a server's sources, with commas between them, or ``ITSELF``
for one without. A server has executed what its sources have by the time that anyone asks, while all
of them run and it is not stopped. One whose seed names other sources follows the first that runs.
"""

from __future__ import annotations

import re
from collections import Counter
from collections.abc import Callable, Mapping, Sequence
from dataclasses import replace
from pathlib import Path

from lab.config.enginefile import family_of
from lab.errors import CommandFailed, StatementRefused
from lab.fake.guests import Record
from lab.fake.inside import (
    ACCOUNT,
    Inside,
    Result,
    execute,
    inner_address,
    read_inside,
    read_only,
    sources,
    write_inside,
)
from lab.imagebuild import manifest

ITSELF = "itself"

_LINK = re.compile(r"CHANGE MASTER '(\w*)' TO MASTER_HOST = '([^']*)'")
_UNLINK = "RESET SLAVE ALL"
_FIRST = ("DROP USER IF EXISTS replication@", "REVOKE READ ONLY ADMIN")
PASSED_OVER = re.compile(
    r"(CHANGE MASTER|START SLAVE|STOP SLAVE|RESET SLAVE|(CREATE|DROP) USER|GRANT|REVOKE|DO 1"
    r"|SET SESSION sql_log_bin|SET GLOBAL gtid_(binlog_state|slave_pos)"
    r"|SET GLOBAL sync_master_info|SET @lab|FLUSH LOCAL BINARY LOGS|ALTER USER replication@|KILL"
    r"|EXECUTE IMMEDIATE IF\(@lab|SELECT trx_mysql_thread_id|SHOW PROCESSLIST)"
)
_COLUMN = re.compile(r"^SELECT '([^']*)', (.*)$")
_MYSQL = re.compile(r" ?/\*!80000 .*?\*/")
_MEMBER = "SELECT LOWER(VARIABLE_NAME), VARIABLE_VALUE FROM "
_WAITED = re.compile(r"SELECT IF\(/\*M! MASTER_GTID_WAIT\*/ .*?\*/\('([^']*)', [0-9.]+\) = 0")
_LINKS = re.compile(r"VARIABLE_VALUE >= ([0-9]+)")
_STATUS = "SHOW /*M! ALL REPLICAS*/"
_WAIT = re.compile(r"IF\(/\*M! MASTER_GTID_WAIT\*/\('([^']*)', [0-9.]+\) = 0, 'yes', 'no'\)")


def follows(before: str, statement: str) -> str:
    """What a server follows once it has executed ``statement``; ``before``: until then."""
    if not before and statement.startswith(_FIRST):
        return ITSELF
    if before and statement == _UNLINK:
        return ITSELF
    found = _LINK.match(statement)
    if found is None or found[2] in before.split(","):
        return before
    return found[2] if before == ITSELF or not found[1] else f"{before},{found[2]}"


def current(record: Record, peers: Sequence[Record]) -> Inside:
    """What is in a guest once it has what its sources have; ``peers``: those that run, with it."""
    found = _current(record, _peers(peers), frozenset())
    if found != read_inside(record.disks):
        write_inside(record.disks, found)
    return found


def _current(record: Record, peers: Mapping[str, Record], seen: frozenset[str]) -> Inside:
    inside, statements = read_inside(record.disks), None
    for address in _sources(record, inside, peers):
        if address in peers and address not in seen:
            here = seen | {address}
            statements = list(inside.statements) if statements is None else statements
            others_have = Counter(statements)
            for one in _shared(_current(peers[address], peers, here)):
                others_have[one] -= 1
                if others_have[one] < 0:
                    statements.append(one)
    return inside if statements is None else replace(inside, statements=statements)


def _sources(record: Record, inside: Inside, peers: Mapping[str, Record]) -> list[str]:
    found = inside.follows.split(",")
    others = [one for one in sources(record.disks) if one in peers]
    return others[:1] if others and found[0] not in peers else found


def of_member(statement: str, status: Mapping[str, str], inside: Inside) -> Result | None:
    """The answer of a member of a cluster that others follow, None if that was not asked."""
    if statement == "SELECT @@GLOBAL.gtid_binlog_pos":
        return Result(("position",), ((_position(inside),),), 1)
    if not statement.startswith(_MEMBER):
        return None
    rows = (*status.items(), ("position", _position(inside)))
    return Result(("name", "value"), rows, len(rows))


def _peers(peers: Sequence[Record]) -> dict[str, Record]:
    return {_address(peer): peer for peer in peers}


def _address(record: Record) -> str:
    return inner_address(record.disks)


def _shared(inside: Inside) -> list[str]:
    return [one for one in inside.statements if not ACCOUNT.fullmatch(one)]


def run(record: Record, peers: Sequence[Record], statement: str) -> Result:
    """Execute a statement on a server that replicates; raises CommandFailed."""
    inside = current(record, peers)
    if PASSED_OVER.match(statement):
        return Result()
    if statement.startswith(_STATUS):
        rows = tuple((one,) for one in _sources(record, inside, _peers(peers)) if one != ITSELF)
        return Result(("Master_Host",), rows, len(rows))
    if statement.startswith("SELECT 'read_only', "):
        return _answer(record, inside, peers, statement)
    if waited := _WAITED.match(statement):
        done = "yes" if _number(_position(inside)) >= _number(waited[1]) else "no"
        return Result(("",), ((done,),), 1)
    if "information_schema" in statement:
        return Result(("",))  # there is none
    before = list(inside.statements)
    result = execute(inside, statement)
    if inside.statements != before:
        if _refuses(record, inside) and not ACCOUNT.fullmatch(statement):
            text = f"The {_title(record)} server is running with the --read-only option"
            raise StatementRefused(1290, text)
        write_inside(record.disks, inside)
    return result


def _title(record: Record) -> str:
    """What the server of a guest calls itself: by the dialect, as Percona's servers do."""
    engine = manifest.read(Path(record.image)).engine if record.image else ""
    return family_of(family_of(engine).dialect).title


def _answer(record: Record, inside: Inside, peers: Sequence[Record], statement: str) -> Result:
    """The rows of the blueprint's question."""
    by_address = {_address(peer): read_inside(peer.disks) for peer in peers}
    own, followed = _address(record), _sources(record, inside, dict.fromkeys(by_address, record))
    values: dict[str, Callable[[], str]] = {
        "/*M! @@GLOBAL.gtid_binlog_pos*/": lambda: _position(inside),
    }
    rows = []
    for part in _MYSQL.sub("", statement).split(" UNION ALL "):
        ((name, value),) = _COLUMN.findall(part)
        if name == "read_only":
            value = "ON" if _refuses(record, inside) else "OFF"
        elif name == "semi-sync status":
            value = "ON"
        elif name == "semi-sync clients":
            value = str(sum(own in other.follows.split(",") for other in by_address.values()))
        elif value in values:
            value = values[value]()
        elif waited := _WAIT.fullmatch(value):
            value = "yes" if _number(_position(inside)) >= _number(waited[1]) else "no"
        elif wanted := _LINKS.search(value):
            connected = sum(one in by_address for one in followed)
            value = "running" if connected >= int(wanted[1]) else "stopped"
        elif "information_schema.PROCESSLIST" in value:
            value = "stopped" if inside.follows == ITSELF else "running"
        rows.append((name, value.strip("'")))
    return Result(("name", "value"), tuple(rows), len(rows))


def source(record: Record, peers: Sequence[Record], words: Sequence[str]) -> str:
    """What the guest's program of that name does; raises CommandFailed."""
    inside = current(record, peers)
    match list(words):
        case ["state", _]:
            return _state(record, inside, peers)
        case ["note", epoch, node]:
            inside = replace(inside, noted=f"{epoch} {node}")
        case ["lead", epoch, node, *_]:
            inside = replace(inside, noted=f"{epoch} {node}", leads=True)
        case ["yield", *_]:
            inside = replace(inside, leads=False)
        case _:
            raise CommandFailed(["/usr/lib/lab/source"], 2, stderr=f"what is {' '.join(words)}?")
    write_inside(record.disks, inside)
    return ""


def _state(record: Record, inside: Inside, peers: Sequence[Record]) -> str:
    by_address = {_address(peer): read_inside(peer.disks) for peer in peers}
    epoch, _, node = inside.noted.partition(" ")
    sources = [one for one in inside.follows.split(",") if one not in ("", ITSELF)]
    rows = {"server": "failed" if inside.apart else "active"}
    rows |= {"epoch": epoch, "source": node} if node else {}
    if not inside.apart:
        rows |= {
            "read_only": "ON" if _refuses(record, inside) else "OFF",
            "executed": _position(inside),
            "position": _position(inside),
            "follows": ",".join(sources),
            "received": "",
            "running": "yes" if sources and all(one in by_address for one in sources) else "no",
        }
    return "".join(f"{name}\t{value}\n" for name, value in rows.items())


def _refuses(record: Record, inside: Inside) -> bool:
    """Whether a server refuses statements that write."""
    return read_only(record.disks) and not inside.leads


def _position(inside: Inside) -> str:
    executed = len(_shared(inside))
    return f"0-1-{executed}" if executed else ""


def _number(positions: str) -> int:
    return sum(int(one.rpartition("-")[2] or 0) for one in positions.split(","))
