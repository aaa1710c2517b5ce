"""The ARC, ZFS's cache in memory: how much it may take from the guests, and what prefetch brings.

The limit in force is ``c_max`` of arcstats. What was asked for (zfs_arc_max, 0: the default)
only counts if it is at least 64M, above the least size and below all memory
(``arc_tuning_update`` in module/zfs/arc.c). The default is the larger of 5/8 of memory and
all but 1G; on Linux half of memory before 2.3 (``arc_default_max`` in module/os/*/zfs/arc_os.c).
"""

from __future__ import annotations

from collections.abc import Mapping

from lab.host.finding import Finding
from lab.host.zfs.facts import Facts, Needs, Tunable, Unknown
from lab.host.zfs.names import how_to_set
from lab.spec import GIB, MIB, format_size

_STEP = 64 * MIB
_ENOUGH = 1000
"""Prefetched blocks below which their use says little."""
_WHY = "guests cache data themselves (buffer pool): memory serves them better than the ARC"
_ON_LINUX = "; Linux counts the ARC as used memory, so `lab up` refuses earlier"


def limit(facts: Facts, needs: Needs) -> Finding:
    """How far the ARC may grow, against what guests have and what stays free."""
    topic, arc = "zfs arc", facts.arc
    asked = facts.tunables["arc_max"]
    if isinstance(arc, Unknown):
        return Finding(topic, "note", str(arc))
    size, most, total = arc.get("size"), arc.get("c_max"), arc.get("memory_all_bytes")
    if size is None or most is None or total is None:
        return Finding(topic, "note", "unknown: arcstats lacks size, c_max or memory_all_bytes")
    value = f"{format_size(size)}, at most {format_size(most)} of {format_size(total)}"
    if needs.guests:
        value += f"; running labs have {format_size(needs.guests)}"
    if needs.guests is None:
        value += "; what running labs have is unknown"
    why = _WHY + (_ON_LINUX if facts.system == "linux" else "")
    if isinstance(asked.value, int) and asked.value not in (0, most):
        ignored = f"{value}; {asked.name}={asked.value} is not in force"
        reason = "a value below 64M or the ARC's least size, or above all memory, is ignored"
        return Finding(topic, "warn", ignored, _set(facts, asked, needs, total), reason)
    guests = needs.guests or 0
    if guests and most + guests + needs.memory_floor > total:
        return Finding(topic, "warn", value, _set(facts, asked, needs, total), why)
    if most > total // 2:
        return Finding(topic, "note", value, _set(facts, asked, needs, total), why)
    return Finding(topic, "ok", value, why=why)


def advised(total: int, guests: int, floor: int) -> int:
    """A limit for a host of labs: an eighth of memory, at least 1G, within half of what is free.

    Bytes, a multiple of 64M, and more than the ARC's least size, which is a 32nd of memory.
    """
    free = max(total - guests - floor, 0)
    wanted = min(max(total // 8, GIB), free // 2)
    return max(wanted // _STEP, total // 32 // _STEP + 1) * _STEP


def _set(facts: Facts, asked: Tunable, needs: Needs, total: int) -> str:
    limit = advised(total, needs.guests or 0, needs.memory_floor)
    return f"{format_size(limit)}: {how_to_set(facts.system, 'arc_max', asked, limit)}"


def prefetch(facts: Facts, needs: Needs) -> Finding:
    """Whether predictive prefetch reads what somebody wants, by the ARC's own count.

    ``predictive_prefetch`` counts what it read, ``demand_[io]hit_predictive_prefetch`` what of
    that was asked for (``arc_access`` in module/zfs/arc.c from 2.2; 2.1 lacks the first).
    """
    del needs
    topic, tunable = "zfs prefetch", facts.tunables["prefetch_disable"]
    why = "guests read databases at random; sends and scrubs have a prefetch of their own"
    if isinstance(tunable.value, Unknown):
        return Finding(topic, "note", str(tunable.value), why=why)
    if tunable.value:
        return Finding(topic, "ok", "off", why=why)
    used = _used(facts.arc)
    if isinstance(used, str):
        return Finding(topic, "ok", f"on; {used}", why=why)
    if used >= 50:
        return Finding(topic, "ok", f"on; {used} % of its reads were used", why=why)
    return Finding(
        topic,
        "note",
        f"on; only {used} % of its reads were used",
        how_to_set(facts.system, "prefetch_disable", tunable, 1),
        why,
    )


def _used(arc: Mapping[str, int] | Unknown) -> int | str:
    """Percent of prefetched blocks that were wanted; a text if that is not known."""
    if isinstance(arc, Unknown):
        return str(arc)
    made = arc.get("predictive_prefetch")
    if made is None:
        return "this version does not count its hits"
    if made < _ENOUGH:
        return "too few reads yet to judge it"
    hits = ("demand_hit_predictive_prefetch", "demand_iohit_predictive_prefetch")
    return min(100 * sum(arc.get(name, 0) for name in hits) // made, 100)
