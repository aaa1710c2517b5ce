"""What becomes of writes: how often they go to disk, by which way, and whether they stay there."""

from __future__ import annotations

from lab.host.finding import Finding
from lab.host.zfs.facts import Disk, Facts, Needs, Pool, Unknown
from lab.host.zfs.names import how_to_set

_FLUSHES = ("nocacheflush", "zil_nocacheflush", "bio_flush_disable")


def txg_timeout(facts: Facts, needs: Needs) -> Finding:
    """Seconds after which what was written goes to disk at the latest (zfs(4): 5)."""
    del needs
    topic, tunable = "zfs txg timeout", facts.tunables["txg_timeout"]
    why = "with sync=disabled a power loss takes what was written since the last one"
    value = tunable.value
    if isinstance(value, Unknown):
        return Finding(topic, "note", str(value), why=why)
    if value == 5:
        return Finding(topic, "ok", "5 s", why=why)
    if value < 5:
        why = "shorter ones write more metadata for the same data, and batch less"
    advice = how_to_set(facts.system, "txg_timeout", tunable, 5)
    return Finding(topic, "note", f"{value} s, 5 s is the default", advice, why)


def cache_flush(facts: Facts, needs: Needs) -> Finding:
    """Whether disks are asked to make writes durable.

    zfs(4) of zfs_nocacheflush and zil_nocacheflush: pool corruption on power loss if a
    volatile out-of-order write cache is enabled. FreeBSD's vdev_geom.c has
    bio_flush_disable to the same end.
    """
    del needs
    topic = "zfs cache flush"
    why = "without flushes a power loss damages the pool, unless all write caches are protected"
    found = [(key, facts.tunables[key]) for key in _FLUSHES if key in facts.tunables]
    unknown = [t.value for _, t in found if isinstance(t.value, Unknown) and not t.value.absent]
    off = [(key, tunable) for key, tunable in found if tunable.value == 1]
    if off:
        value = "switched off: " + ", ".join(f"{tunable.name}=1" for _, tunable in off)
        advice = "; ".join(how_to_set(facts.system, key, tunable, 0) for key, tunable in off)
        if _no_volatile_cache(facts.pools):
            idle = f"{value}; no disk here reports a volatile cache"
            return Finding(topic, "note", idle, advice, "nothing is gained, and disks change")
        return Finding(topic, "warn", value, advice, why)
    if unknown:
        return Finding(topic, "note", str(unknown[0]), why=why)
    return Finding(topic, "ok", "on", why=why)


def _no_volatile_cache(pools: tuple[Pool, ...] | Unknown) -> bool:
    """True if every disk of every pool says so."""
    known: list[Disk] = []
    for pool in () if isinstance(pools, Unknown) else pools:
        if isinstance(pool.disks, Unknown):
            return False
        known += pool.disks
    return bool(known) and all(disk.volatile is False for disk in known)


def slog(pool: Pool, facts: Facts, needs: Needs) -> Finding:
    """A separate log device, and whether the default profile has work for it.

    zfsprops(7): logbias=latency uses it, throughput does not; sync=disabled has no log.
    Losing one that is not mirrored costs the last seconds only if the host goes down with it.
    """
    del facts
    topic = f"{pool.name} slog"
    if isinstance(pool.disks, Unknown):
        return Finding(topic, "note", str(pool.disks))
    logs, name = pool.of("logs"), needs.profile.name
    waits = any(
        kept.sync != "disabled" and kept.logbias == "latency"
        for kept in (needs.profile.data, needs.profile.log)
    )
    why = "a commit waits for the log: on the SLOG, or else among the data"
    if not logs:
        if waits and any(disk.rotates for disk in pool.of("data")):
            advice = f"zpool add {pool.name} log mirror SSD SSD, with power-loss protection"
            value = f"none, on rotating disks; commits of profile {name} wait for them"
            return Finding(topic, "note", value, advice, why)
        return Finding(topic, "ok", "none: the log is among the data", why=why)
    value = f"{len(logs)} device{'s' * (len(logs) > 1)}"
    if not waits:
        idle = f"{value}; profile {name} does not use it (sync, logbias)"
        return Finding(topic, "ok", idle, why=why)
    alone = [disk.path for disk in logs if not disk.group]
    if alone:
        why = "if it fails together with the host, the last commits are lost"
        advice = f"zpool attach {pool.name} {alone[0]} ANOTHER"
        return Finding(topic, "note", f"{value}, not mirrored", advice, why)
    return Finding(topic, "ok", f"{value}, mirrored", why=why)


def l2arc(pool: Pool, facts: Facts, needs: Needs) -> Finding:
    """A second-level cache: filled from the ARC, so it never sees what the ARC does not keep."""
    topic = f"{pool.name} l2arc"
    if isinstance(pool.disks, Unknown):
        return Finding(topic, "note", str(pool.disks))
    caches, kept = pool.of("cache"), needs.profile.data.primarycache
    why = "it is filled from the ARC: with primarycache=metadata no data gets there"
    if not caches:
        return Finding(topic, "ok", "none: labs need none", why=why)
    value = f"{len(caches)} device{'s' * (len(caches) > 1)}"
    headers = None if isinstance(facts.arc, Unknown) else facts.arc.get("l2_hdr_size")
    if headers:
        from lab.spec import format_size

        value += f", its index takes {format_size(headers)} of memory"
    if kept == "all":
        return Finding(topic, "ok", value, why=why)
    value += f"; data volumes of profile {needs.profile.name} have primarycache={kept}"
    advice = f"zpool remove {pool.name} {caches[0].path}, if nothing else uses the pool"
    return Finding(topic, "note", value, advice, why)
