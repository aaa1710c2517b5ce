"""Pools: whether they are sound, what room they have, and how they were made."""

from __future__ import annotations

from collections.abc import Mapping

from lab.config.profile import Profile
from lab.host.finding import Finding, Level
from lab.host.zfs.facts import Facts, Needs, Pool, Status, Unknown
from lab.spec import format_size

_DAY = 86400.0
_SCRUB_DAYS = 35  # FreeBSD's daily_scrub_zfs_default_threshold; Debian scrubs monthly
_FULL = 80  # percent
_FRAGMENTED = 50  # percent
_DEAD = ("FAULTED", "UNAVAIL", "SUSPENDED", "REMOVED")
# Not a fault: the pool could have newer features, or has other ones than a list says.
_HARMLESS = ("requested features are not enabled", "compatibility", "legacy on-disk format")
_ASHIFT = "non-native block size"


def health(pool: Pool, facts: Facts, needs: Needs) -> Finding:
    """State, errors and the problem that ``zpool status`` names."""
    del facts
    topic, found = f"{pool.name} health", pool.status
    if isinstance(found, Unknown):
        return Finding(topic, "note", str(found))
    advice, why = found.action or f"zpool status -v {pool.name}", found.problem
    if found.state in _DEAD:
        return Finding(topic, "fail" if needs.dataset else "warn", found.state, advice, why)
    errors = found.errors if found.errors and not found.errors.startswith("No known") else ""
    if found.state != "ONLINE" or errors:
        value = ", ".join(part for part in (found.state, errors) if part)
        return Finding(topic, "warn", value, advice, why)
    if not found.problem or _ASHIFT in found.problem:  # `ashift` reports that
        return Finding(topic, "ok", "ONLINE, no known errors")
    if any(word in found.problem for word in _HARMLESS):
        return Finding(topic, "ok", "ONLINE, no known errors", why=found.problem)
    return Finding(topic, "warn", "ONLINE, with a problem", advice, why)


def scrub(pool: Pool, facts: Facts, needs: Needs) -> Finding:
    """When all data was last read and compared with its checksums."""
    del needs
    topic, found = f"{pool.name} scrub", pool.status
    if isinstance(found, Unknown):
        return Finding(topic, "note", str(found))
    why = "bad blocks that nobody reads are found by a scrub only, while a copy can still heal them"
    advice = f"zpool scrub {pool.name}; for good: {_MONTHLY[facts.system].format(pool.name)}"
    last = next((scan for scan in found.scans if scan.kind == "scrub"), None)
    if last is None:
        value = _young(pool, facts.now)
        level: Level = "ok" if value else "note"
        return Finding(topic, level, value or "none on record", "" if value else advice, why)
    if last.state in ("paused", "canceled"):
        return Finding(topic, "note", f"the last one was {last.state}", advice, why)
    age = _days(facts.now, last.at)
    value = "under way" if last.state == "running" else _ago(age)
    if last.errors:
        value = f"{_spoken(age or 0)} ago, with {last.errors} errors"
        return Finding(topic, "warn", value, f"zpool status -v {pool.name}", why)
    if last.state == "finished" and (age is None or age > _SCRUB_DAYS):
        return Finding(topic, "note", value, advice, why)
    return Finding(topic, "ok", value, why=why)


_MONTHLY = {
    "linux": "systemctl enable --now zfs-scrub-monthly@{}.timer",  # Debian's cron does it too
    "freebsd": 'daily_scrub_zfs_enable="YES" in /etc/periodic.conf',
}


def _young(pool: Pool, now: float) -> str:
    """What to say of a pool that is too young to have been scrubbed; empty if it is not."""
    made = "" if isinstance(pool.root, Unknown) else pool.root.get("creation", "")
    age = _days(now, float(made)) if made.isdigit() else None
    if age is None or age > _SCRUB_DAYS:
        return ""
    return f"none yet; the pool is {_spoken(age)} old"


def _days(now: float, then: float | None) -> int | None:
    return None if then is None else max(int((now - then) / _DAY), 0)


def _ago(days: int | None) -> str:
    return "at an unknown time" if days is None else f"{_spoken(days)} ago, without errors"


def _spoken(days: int) -> str:
    return f"{days} day{'s' * (days != 1)}" if days else "less than a day"


def space(pool: Pool, facts: Facts, needs: Needs) -> Finding:
    """Room for labs (``available``, which knows parity and quotas), and how full the pool is.

    ZFS keeps back 1/32 of a pool, at most 128G (``spa_get_slop_space``): available is 0 while
    zpool list still shows that as free.
    """
    topic = f"{pool.name} space"
    below = facts.dataset if isinstance(facts.dataset, Mapping) else pool.root
    if isinstance(pool.properties, Unknown) or isinstance(below, Unknown):
        missing = pool.properties if isinstance(pool.properties, Unknown) else below
        return Finding(topic, "note", str(missing))
    full, free = pool.properties.get("capacity", ""), below.get("available", "")
    if not full.isdigit() or not free.isdigit():
        return Finding(topic, "note", "unknown: zfs names no capacity, or no available space")
    value = f"{full} % full, {format_size(int(free))} available"
    why = "volumes are sparse: a pool that is full stops all guests on it at once"
    advice = "remove labs, images or templates (`lab ls`, `lab image`), snapshots, or add disks"
    if needs.dataset and int(free) < needs.space_floor:
        value += f", {format_size(needs.space_floor)} is kept free: `lab up` refuses"
        return Finding(topic, "fail", value, advice, why)
    if int(full) >= _FULL:
        slow = f"from about {_FULL} % on ZFS searches long for free space; {why}"
        return Finding(topic, "warn", value, advice, slow)
    return Finding(topic, "ok", value, why=why)


def fragmentation(pool: Pool, facts: Facts, needs: Needs) -> Finding:
    """Of the free space, in percent (zpoolprops(7))."""
    del facts, needs
    topic, why = f"{pool.name} fragmentation", "writes then go to many small places"
    if isinstance(pool.properties, Unknown):
        return Finding(topic, "note", str(pool.properties))
    text = pool.properties.get("fragmentation", "")
    if not text.isdigit():
        return Finding(topic, "note", "unknown: the pool does not count it (spacemap_histogram)")
    if int(text) >= _FRAGMENTED:
        advice = "free space, or move volumes to a new pool: ZFS cannot defragment a pool"
        return Finding(topic, "note", f"{text} % of the free space", advice, why)
    return Finding(topic, "ok", f"{text} % of the free space", why=why)


def ashift(pool: Pool, facts: Facts, needs: Needs) -> Finding:
    """The smallest write (2^ashift bytes) against the sectors that the disks report.

    zpoolprops(7): too small a value costs reads for each write, and cannot be changed.
    """
    del facts, needs
    topic, found = f"{pool.name} ashift", pool.ashifts
    why = "a smaller write than a sector makes the disk read, change and write the sector"
    if isinstance(found, Unknown):
        return Finding(topic, "note", str(found), why=why)
    least, most = min(found.values()), max(found.values())
    sectors = [disk.sector for disk in pool.of("data", "special") if disk.sector]
    value = f"{least}" if least == most else f"{least} to {most}"
    value += f" ({format_size(1 << least)})"
    if sectors:
        value += f", sectors of {format_size(max(sectors))}"
    new = "for good only by a new pool: zpool create -o ashift=12, or 13 where sectors are of 8K"
    says = isinstance(pool.status, Status) and _ASHIFT in pool.status.problem
    if says or (sectors and 1 << least < max(sectors)):
        return Finding(topic, "warn", value, new, why)
    if least < 12:
        later = "disks with sectors of 4K can then not replace these without that loss"
        return Finding(topic, "note", value, new, later)
    if most > 13:
        waste = "blocks of 16K then compress to 16K or not at all"
        return Finding(topic, "note", value, new, waste)
    return Finding(topic, "ok", value, why=why)


def autotrim(pool: Pool, facts: Facts, needs: Needs) -> Finding:
    """Whether disks hear of freed space."""
    del facts, needs
    topic = f"{pool.name} autotrim"
    why = "labs come and go; an SSD without TRIM of free blocks slows down"
    if isinstance(pool.properties, Unknown):
        return Finding(topic, "note", str(pool.properties), why=why)
    value = pool.properties.get("autotrim", "")
    if value == "on":
        return Finding(topic, "ok", "on", why=why)
    if not value:
        return Finding(topic, "note", "unknown: zpool names no such property", why=why)
    able = {disk.discards for disk in pool.of("data", "special")}
    if True in able:
        advice = f"zpool set autotrim=on {pool.name}, or `zpool trim {pool.name}` once a week"
        return Finding(topic, "note", "off, and disks can discard", advice, why)
    if able == {False}:
        return Finding(topic, "ok", "off; the disks cannot discard", why=why)
    return Finding(topic, "ok", "off; the disks do not say whether they can discard", why=why)


def features(pool: Pool, facts: Facts, needs: Needs) -> Finding:
    """Whether the pool has the compressions of the default profile (zpool-features(7))."""
    del facts
    topic, why = f"{pool.name} features", "without the feature volumes cannot be set so"
    if isinstance(pool.properties, Unknown):
        return Finding(topic, "note", str(pool.properties), why=why)
    wanted = _compressions(needs.profile)
    missing = [
        name
        for name in wanted
        if pool.properties.get(f"feature@{name}") not in ("enabled", "active")
    ]
    if missing:
        advice = "; ".join(f"zpool set feature@{name}=enabled {pool.name}" for name in missing)
        return Finding(topic, needs.level("fail"), f"{', '.join(missing)} not enabled", advice, why)
    return Finding(topic, "ok", ", ".join(wanted) or "none needed", why=why)


def _compressions(profile: Profile) -> list[str]:
    """Features; gzip, zle and lzjb are older than features. ``on`` is lz4 where that is there."""
    kinds = {kept.compression.split("-")[0] for kept in (profile.os, profile.data, profile.log)}
    return [f"{kind}_compress" for kind in ("lz4", "zstd") if kind in kinds]


def dedup(pool: Pool, facts: Facts, needs: Needs) -> Finding:
    """Clones share their blocks without it."""
    topic = f"{pool.name} dedup"
    below = facts.dataset if isinstance(facts.dataset, Mapping) else pool.root
    if isinstance(below, Unknown):
        return Finding(topic, "note", str(below))
    value = below.get("dedup", "off")
    where = needs.dataset if isinstance(facts.dataset, Mapping) else pool.name
    if value == "off":
        return Finding(topic, "ok", "off")
    why = "each block written is looked up in a table in memory; clones share blocks without it"
    return Finding(topic, "warn", value, f"zfs set dedup=off {where}", why)
