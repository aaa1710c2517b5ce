"""ZFS on this host: what there is, and what labs would like better.

``read`` gathers facts without a judgement; each check is a function of facts that returns one
finding. Checks say where their rule comes from: the manual pages and the source of OpenZFS.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator

from lab.host.finding import Finding
from lab.host.system import System
from lab.host.zfs import arc, neighbours, pools, volumes, writes
from lab.host.zfs.facts import Facts, Pool, Unknown
from lab.host.zfs.facts import Needs as Needs
from lab.host.zfs.read import read
from lab.host.zfs.source import Source

Check = Callable[[Facts, Needs], Finding]
PoolCheck = Callable[[Pool, Facts, Needs], Finding]

HOST: tuple[Check, ...] = (
    volumes.versions,
    arc.limit,
    arc.prefetch,
    writes.txg_timeout,
    writes.cache_flush,
    volumes.block_size,
    volumes.mode,
    volumes.threads,
    volumes.queues,
    neighbours.links,
    neighbours.lvm,
    neighbours.multipath,
    neighbours.holders,
    neighbours.swap,
)
POOL: tuple[PoolCheck, ...] = (
    pools.health,
    pools.scrub,
    pools.space,
    pools.fragmentation,
    pools.ashift,
    pools.autotrim,
    pools.features,
    pools.dedup,
    writes.slog,
    writes.l2arc,
)


def check(needs: Needs, system: System, source: Source | None = None) -> list[Finding]:
    """Everything about ZFS; one line where there is none and none is asked for."""
    facts = None if system == "other" else read(system, source or Source(), needs.dataset)
    if facts is not None:
        return list(findings(facts, needs))
    if not needs.dataset:
        return [Finding("zfs", "ok", "no ZFS here: volumes are qcow2 files")]
    return [
        Finding(
            "zfs",
            "fail",
            f"none here, but pool is set to {needs.dataset}",
            "install zfsutils-linux and zfs-dkms, or unset pool to have qcow2 files",
        )
    ]


def findings(facts: Facts, needs: Needs) -> Iterator[Finding]:
    """What the checks find, the host's first."""
    if not facts.module:
        yield volumes.versions(facts, needs)
        return
    yield from (check(facts, needs) for check in HOST)
    yield from _pools(facts, needs)


def _pools(facts: Facts, needs: Needs) -> Iterator[Finding]:
    if isinstance(facts.pools, Unknown):
        yield Finding("zfs pools", "note", str(facts.pools))
        return
    wanted = needs.dataset.partition("/")[0]
    if wanted and not facts.pools:
        advice = f"zpool import {wanted}, or make it: zpool create {wanted} ..."
        yield Finding("zfs pools", "fail", f"there is no pool {wanted}", advice)
    elif isinstance(facts.dataset, Unknown):
        advice = f"`lab host init --pool {needs.dataset}` makes it"
        yield Finding("zfs dataset", "warn", str(facts.dataset), advice)
    elif not facts.pools:
        yield Finding("zfs pools", "ok", "none imported")
    for pool in facts.pools:
        yield from (check(pool, facts, needs) for check in POOL)
