"""Members of a group (MySQL Group Replication), in guests of the fake hypervisor.

``Inside.joined`` numbers members in the order in which they joined; the first of those that run is
the primary. 0: the server is not in its group. It joins, as the guest's program has it do, once
another member is in it, unless it has ``left``: STOP GROUP_REPLICATION was executed. It needs a
``login`` for that; one that lacks something stays RECOVERING if the others keep another password of
their account for it, which is ``lets_in``.
"""

from __future__ import annotations

import re
from collections.abc import Mapping, Sequence
from dataclasses import replace

from lab.errors import CommandFailed, StatementRefused
from lab.fake.guests import Record
from lab.fake.inside import (
    ACCOUNT,
    Inside,
    Result,
    asks_system,
    execute,
    fits,
    multi_primary,
    read_inside,
    write_inside,
)
from lab.names import GuestName
from lab.passwords import CACHING_SHA2, NATIVE

_UUID = "00000000-0000-0000-0000-000000000001"
_PASSED_OVER = re.compile(
    r"(CHANGE REPLICATION SOURCE|(CREATE|DROP) USER|GRANT|SET (SESSION|GLOBAL|PERSIST) "
    r"|FLUSH LOCAL BINARY LOGS|ALTER USER replication@)"
)
_LOGIN = re.compile(r"CHANGE REPLICATION SOURCE .*SOURCE_PASSWORD = '([^']*)'")
_LETS_IN = re.compile(
    r"(?:CREATE|ALTER) USER replication@.*"
    r"(?:mysql_native_password|caching_sha2_password) AS '?(\*?\w+)"
)
_QUESTION = "WITH me AS "
_SHARED = re.compile(r"SELECT 'view of all', (?:IF\(.* = X'([0-9a-f]*)'|'([^']*)')")


def current(record: Record, peers: Sequence[Record]) -> Inside:
    """What is in a guest once it has what its group has; ``peers``: those that run, with it."""
    inside = read_inside(record.disks)
    everyone = {peer.name: read_inside(peer.disks) for peer in peers}
    there = [one for one in everyone.values() if one.joined]
    out = inside.apart or inside.left or not inside.login
    if out or not there or _refused(inside, there):
        return inside
    joined = inside.joined or max(one.joined for one in there) + 1
    own = [one for one in inside.statements if ACCOUNT.fullmatch(one)]
    newest = max((_shared(one) for one in there), key=len)
    if (joined, own + newest) != (inside.joined, inside.statements):
        inside = replace(inside, joined=joined, statements=own + newest)
        write_inside(record.disks, inside)
    return inside


def run(record: Record, peers: Sequence[Record], statement: str) -> Result:
    """Execute a statement on a member; raises CommandFailed."""
    everyone = {peer.name: current(peer, peers) for peer in peers}
    inside = everyone[record.name]
    if statement in ("START GROUP_REPLICATION", "STOP GROUP_REPLICATION"):
        left = statement.startswith("STOP")
        write_inside(record.disks, replace(inside, joined=0, left=left))
        return Result()
    if _PASSED_OVER.match(statement):
        _note(record, statement)
        return Result()
    if statement.startswith(_QUESTION):
        return _answer(record, everyone, statement)
    if asks_system(statement):
        return Result(("",))  # there is nothing
    before = list(inside.statements)
    result = execute(inside, statement)
    if inside.statements != before:
        writes = record.name in primaries(record, everyone)
        if not ACCOUNT.fullmatch(statement) and not writes:
            text = "The MySQL server is running with the --super-read-only option"
            raise StatementRefused(1290, text)
        write_inside(record.disks, inside)
        for peer in peers:  # a member that ends has had it acknowledged by the others
            current(peer, peers)
    return result


def regroup(
    record: Record, peers: Sequence[Record], word: str, statements: Sequence[str] = ()
) -> str:
    """What the guest's program of that name does; raises CommandFailed."""
    inside = current(record, peers)
    if word == "state":
        joined = sum(bool(current(peer, peers).joined) for peer in peers) if inside.joined else 0
        rows = {
            "server": "failed" if inside.apart else "active",
            "member": _state(inside, [current(peer, peers) for peer in peers]),
            "members": str(joined or 1),
            "reachable": str(joined),
            "executed": f"{_UUID}:1-{len(_shared(inside))}" if _shared(inside) else "",
            "received": "",
        }
        if inside.joined or inside.left or rows["member"] == "RECOVERING":
            rows["joined"] = "yes"
        if rows["member"] == "RECOVERING":
            rows["recovery error"] = "1045"
        kept = rows if not inside.apart else {"server": rows["server"]}
        return "".join(f"{name}\t{value}\n" for name, value in kept.items())
    if word not in ("bootstrap", "leave"):
        raise CommandFailed(["/usr/lib/lab/regroup"], 2, stderr=f"what is {word}?")
    write_inside(record.disks, replace(inside, joined=int(word == "bootstrap"), left=False))
    for statement in statements:
        _note(record, statement)
    return ""


def _answer(record: Record, everyone: Mapping[GuestName, Inside], statement: str) -> Result:
    """The rows of the blueprint's question."""
    inside, elected = everyone[record.name], primaries(record, everyone)
    joined = [one for one in everyone.values() if one.joined] if inside.joined else []
    view = f"view:{len(joined)}" if joined else ""
    ((other, shared),) = _SHARED.findall(statement)
    if not shared:
        shared = "shared" if bytes.fromhex(other).decode() == view else "another"
    role = ("primary" if record.name in elected else "secondary") if inside.joined else ""
    rows = (
        ("state", _state(inside, list(everyone.values()))),
        ("role", role),
        ("members ONLINE", str(len(joined))),
        ("primaries", str(len(elected))),
        ("view", view),
        ("transactions in queue", "0"),
        ("super_read_only", "by role"),
        ("view of all", shared),
    )
    return Result(("name", "value"), rows, len(rows))


def primaries(record: Record, everyone: Mapping[GuestName, Inside]) -> list[GuestName]:
    """The members that take writes, as ``record`` sees them."""
    joined = {name: inside.joined for name, inside in everyone.items() if inside.joined}
    first = sorted(joined, key=lambda name: joined[name])
    if not everyone[record.name].joined:
        return []
    return first if multi_primary(record.disks) else first[:1]


def _note(record: Record, statement: str) -> None:
    """Keep the passwords by which members let each other recover."""
    inside = read_inside(record.disks)
    if login := _LOGIN.match(statement):
        write_inside(record.disks, replace(inside, login=login[1]))
    elif kept := _LETS_IN.match(statement):
        write_inside(record.disks, replace(inside, lets_in=kept[1]))


def _refused(inside: Inside, there: Sequence[Inside]) -> bool:
    donor = max(there, key=lambda one: len(_shared(one)))
    if inside.joined or _shared(inside) == _shared(donor) or not donor.lets_in:
        return False
    plugin = CACHING_SHA2 if donor.lets_in.startswith("0x") else NATIVE
    return not fits(inside.login, donor.lets_in, plugin)


def _state(inside: Inside, everyone: Sequence[Inside]) -> str:
    joined = [one for one in everyone if one.joined]
    if inside.joined:
        return "ONLINE"
    out = inside.left or not inside.login or not joined or not _refused(inside, joined)
    return "OFFLINE" if out else "RECOVERING"


def _shared(inside: Inside) -> list[str]:
    return [one for one in inside.statements if not ACCOUNT.fullmatch(one)]
