"""Sets of MySQL's global transaction identifiers: ``UUID[:TAG]:FIRST[-LAST]...``, by commas.

Source: MySQL's manual, "GTID Format and Storage".
"""

from __future__ import annotations

import re
from collections.abc import Iterable, Mapping

GtidSet = Mapping[str, tuple[tuple[int, int], ...]]
"""Intervals of numbers, both ends included, sorted and apart; by UUID, with its tag if any."""

_SHOWN = 60
"""Characters of a text that a message has."""
_UUID = re.compile(r"[0-9a-fA-F]{8}(-[0-9a-fA-F]{4}){3}-[0-9a-fA-F]{12}")
_TAG = re.compile(r"[a-z_][a-z0-9_]{0,31}")
_INTERVAL = re.compile(r"([0-9]{1,19})(?:-([0-9]{1,19}))?")


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


def size(one: GtidSet) -> int:
    """The number of transactions."""
    return sum(last - first + 1 for intervals in one.values() for first, last in intervals)


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
