"""ZFS on this host, as ``lab doctor`` reports it.

``read`` gathers facts without a judgement; ``checks`` is a table of what is checked: topic,
condition, finding and remedy. Adding a check is one function there.
"""

from __future__ import annotations

from collections.abc import Iterator

from lab.host.finding import Finding
from lab.host.system import System
from lab.host.zfs.checks import HOST, POOL, versions
from lab.host.zfs.facts import Facts, Unknown
from lab.host.zfs.facts import Needs as Needs
from lab.host.zfs.read import read
from lab.host.zfs.source import Source


def check(needs: Needs, system: System, source: Source | None = None) -> list[Finding]:
    """Everything about ZFS; one line if it is neither installed nor needed."""
    facts = None if system == "other" else read(system, source or Source(), needs.dataset)
    if facts is not None:
        return list(findings(facts, needs))
    if not needs.dataset:
        return [Finding("zfs", "ok", "not installed: volumes are qcow2 files")]
    value = f"not installed, but pool is set to {needs.dataset}"
    advice = "install zfsutils-linux and zfs-dkms, or unset pool to have qcow2 files"
    return [Finding("zfs", "fail", value, advice)]


def findings(facts: Facts, needs: Needs) -> Iterator[Finding]:
    """The findings of all checks, the host's first; without the module only that it is missing."""
    if not facts.module:
        yield versions(facts, needs)
        return
    yield from (check(facts, needs) for check in HOST)
    if isinstance(facts.pools, Unknown):
        yield Finding("zfs pools", "note", str(facts.pools))
        return
    pool_name = needs.dataset.partition("/")[0]
    if pool_name and not facts.pools:
        advice = f"zpool import {pool_name}, or zpool create {pool_name} ..."
        yield Finding("zfs pools", "fail", f"there is no pool {pool_name}", advice)
    elif isinstance(facts.dataset, Unknown):
        advice = f"lab host init --pool {needs.dataset}"
        yield Finding("zfs dataset", "warn", str(facts.dataset), advice)
    elif not facts.pools:
        yield Finding("zfs pools", "ok", "none imported")
    for pool in facts.pools:
        yield from (check(facts, needs, pool) for check in POOL)
