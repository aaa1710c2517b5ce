"""Sets of global transaction identifiers: what servers have executed.

MySQL's are ``UUID[:TAG]:FIRST[-LAST]...``, by commas (its manual, "GTID Format and Storage");
MariaDB's are positions, the last ``DOMAIN-SERVER-NUMBER`` of each domain, by commas (its
documentation, "Global Transaction ID").
"""

from __future__ import annotations

import re
from collections import Counter
from collections.abc import Iterable, Mapping

GtidSet = Mapping[str, tuple[tuple[int, int], ...]]
"""Intervals of numbers, both ends included, sorted and apart; by UUID, with its tag if any."""

_POSITION = re.compile(r"[0-9A-Za-z_:,-]{0,16384}")
_SHOWN = 60
"""Characters of a text that a message has."""
_TOO_MANY = 1 << 63
_UUID = re.compile(r"[0-9a-fA-F]{8}(-[0-9a-fA-F]{4}){3}-[0-9a-fA-F]{12}")
_HEAD, _UUID_LENGTH = 8, 36
_TAG = re.compile(r"[a-z_][a-z0-9_]{0,31}")
_MARIADB = re.compile(r"([0-9]{1,10})-[0-9]{1,10}-([0-9]{1,20})")
_INTERVAL = re.compile(r"([0-9]{1,19})(?:-([0-9]{1,19}))?")


def valid_position(text: str) -> bool:
    """Whether ``text``, which a guest sent, can be in a statement: GTIDs of either engine."""
    return _POSITION.fullmatch(text) is not None


def parse(text: str) -> GtidSet:
    """The set that ``text`` names; raises ValueError."""
    found: dict[str, list[tuple[int, int]]] = {}
    for one in filter(None, (part.strip() for part in text.split(","))):
        uuid, *parts = one.split(":")
        if not _UUID.fullmatch(uuid) or not parts:
            raise _invalid(text)
        key = uuid.lower()
        for part in parts:
            interval = _INTERVAL.fullmatch(part)
            if interval:
                first, last = int(interval[1]), int(interval[2] or interval[1])
                if not 0 < first <= last:
                    raise _invalid(text)
                found.setdefault(key, []).append((first, last))
            elif _TAG.fullmatch(part):
                key = f"{uuid.lower()}:{part}"
            else:
                raise _invalid(text)
    return {key: _merged(intervals) for key, intervals in found.items()}


def union(*sets: GtidSet) -> GtidSet:
    """All transactions that are in one of ``sets``."""
    found: dict[str, list[tuple[int, int]]] = {}
    for one in sets:
        for key, intervals in one.items():
            found.setdefault(key, []).extend(intervals)
    return {key: _merged(intervals) for key, intervals in found.items()}


def contains(whole: GtidSet, part: GtidSet) -> bool:
    """Whether all of ``part`` is in ``whole``."""
    return union(whole, part) == dict(whole)


def behind(position: str, source: str) -> int | None:
    """How many transactions of ``source`` are not in ``position``; None if that is not known.

    Both are positions of one engine. They come from guests, so the number may be any; one that has
    more than 63 bits, which clients may not be able to read, is not known.
    """
    try:
        ours, theirs = _numbers(position), _numbers(source)
        if ours is not None and theirs is not None:
            found = sum(max(0, last - ours.get(domain, 0)) for domain, last in theirs.items())
        else:
            here = parse(position)
            found = size(union(here, parse(source))) - size(here)
    except ValueError:
        return None
    return found if found < _TOO_MANY else None


def size(one: GtidSet) -> int:
    """The number of transactions."""
    return sum(last - first + 1 for intervals in one.values() for first, last in intervals)


def shown(position: str, limit: int) -> str:
    """``position`` in about ``limit`` characters: identities are shortened, numbers never are.

    ``94638caf..:1-261, 94c9eb09..:1-87``. Of several, as many as there is room for.
    """
    parts = [part.strip() for part in position.split(",") if part.strip()]
    heads = Counter(part[:_HEAD] for part in parts)
    short = [
        part[:_HEAD] + ".." + part[_UUID_LENGTH:]
        if _UUID.match(part) and heads[part[:_HEAD]] == 1
        else part
        for part in parts
    ]
    text = ", ".join(short)
    while len(text) > limit and len(short) > 1:
        short.pop()
        text = f"{', '.join(short)} and {len(parts) - len(short)} more"
    if len(text) <= limit:
        return text
    # Of many intervals the last ones are those that grow.
    head, *intervals = short[0].split(":")
    while intervals and len(f"{head}:..:{':'.join(intervals)}") > limit:
        intervals.pop(0)
    return f"{head}:..:{':'.join(intervals)}" if intervals else f"{text[:limit]}..."


def _numbers(position: str) -> dict[int, int] | None:
    """The last number of each domain of a position of MariaDB; None if it is not one of those."""
    found: dict[int, int] = {}
    for one in filter(None, position.split(",")):
        parts = _MARIADB.fullmatch(one)
        if parts is None:
            return None
        domain, last = int(parts[1]), int(parts[2])
        found[domain] = max(last, found.get(domain, 0))
    return found


def _invalid(text: str) -> ValueError:
    """``text`` may be a guest's, and of any length."""
    return ValueError(f"{text[:_SHOWN]!r} is not a GTID set")


def _merged(intervals: Iterable[tuple[int, int]]) -> tuple[tuple[int, int], ...]:
    found: list[tuple[int, int]] = []
    for first, last in sorted(intervals):
        if found and first <= found[-1][1] + 1:
            found[-1] = (found[-1][0], max(found[-1][1], last))
        else:
            found.append((first, last))
    return tuple(found)
