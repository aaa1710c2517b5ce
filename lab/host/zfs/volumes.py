"""What makes ZVols devices, and how the module serves them."""

from __future__ import annotations

import re
from collections.abc import Mapping

from lab.host.finding import Finding, Level
from lab.host.zfs.facts import Facts, Needs, Unknown, Versions
from lab.host.zfs.names import how_to_set

_LOAD = {
    "linux": "modprobe zfs; if there is none: apt install zfs-dkms and the kernel's headers",
    "freebsd": 'kldload zfs; for good: zfs_enable="YES" in /etc/rc.conf',
}
_MODES = {1: "full", 2: "dev", 3: "none"}  # zfs(4), zvol_volmode


def versions(facts: Facts, needs: Needs) -> Finding:
    """Programs and module of one release: newer ones of either kind speak of new things."""
    topic, found = "zfs version", facts.versions
    why = "programs and module of two releases do not know all of each other's features"
    if not facts.module:
        advice = _LOAD[facts.system]
        value, without = "the module is not loaded", "without it there are no pools"
        return Finding(topic, needs.level("fail"), value, advice, without)
    if isinstance(found, Unknown):
        return Finding(topic, "note", str(found), why=why)
    if not found.userland or not found.kernel:
        return Finding(topic, "note", "unknown: `zfs --version` is of an unknown form", why=why)
    if _release(found.userland) != _release(found.kernel):
        value = f"programs {found.userland}, module {found.kernel}"
        return Finding(topic, "warn", value, "reboot, or install both of one release", why)
    return Finding(topic, "ok", found.kernel, why=why)


def _release(version: str) -> str:
    """``2.3.9`` of ``2.3.9-0+deb13u1``."""
    found = re.match(r"[0-9]+(\.[0-9]+)*", version)
    return found[0] if found else version


def block_size(facts: Facts, needs: Needs) -> Finding:
    """ZVOL_DEFAULT_BLOCKSIZE (include/sys/fs/zfs.h): 8K up to 2.1, 16K from 2.2."""
    topic, found = "zvol block size", facts.versions
    kept = needs.profile
    ours = f"lab makes them with {kept.data.block_size >> 10}K (logs {kept.log.block_size >> 10}K)"
    why = "InnoDB writes pages of 16K; the size of a volume's blocks cannot be changed later"
    known = isinstance(found, Versions) and re.match(r"([0-9]+)\.([0-9]+)", found.userland)
    if not known:
        return Finding(topic, "ok", ours, why=why)
    default = "8K" if (int(known[1]), int(known[2])) < (2, 2) else "16K"
    return Finding(topic, "ok", f"{ours}; zfs itself with {default}", why=why)


def mode(facts: Facts, needs: Needs) -> Finding:
    """How ZVols show up: zfsprops(7), volmode; inherited, and by default as the tunable says."""
    topic, tunable = "zvol mode", facts.tunables["volmode"]
    why = "dev shows a guest's disk as one device: the host does not read its partitions"
    hidden = facts.tunables.get("inhibit_dev")
    if hidden and hidden.value == 1:
        advice = how_to_set(facts.system, "inhibit_dev", hidden, 0)
        reason = "guests open ZVols by their devices"
        value = f"{hidden.name}=1: no devices are made"
        return Finding(topic, needs.level("fail"), value, advice, reason)
    if isinstance(tunable.value, Unknown):
        return Finding(topic, "note", str(tunable.value), why=why)
    default = _MODES.get(tunable.value, str(tunable.value))
    if not isinstance(facts.dataset, Mapping):
        return Finding(topic, "ok", f"{default} by default; `lab host init` sets dev", why=why)
    value = facts.dataset.get("volmode", "default")
    ours = default if value == "default" else value
    if ours == "dev":
        return Finding(topic, "ok", "dev", why=why)
    level: Level = "fail" if ours == "none" else "warn"
    return Finding(topic, level, ours, f"zfs set volmode=dev {needs.dataset}", why)


def threads(facts: Facts, needs: Needs) -> Finding:
    """Threads for reads and writes of ZVols; 0: as many as processors, at least 32 (zfs(4))."""
    del needs
    topic, tunable = "zvol threads", facts.tunables["zvol_threads"]
    why = "all guests share them; with few, one busy guest delays the others"
    at_once = facts.tunables["zvol_request_sync"]
    if at_once.value == 1:
        advice = how_to_set(facts.system, "zvol_request_sync", at_once, 0)
        reason = "a guest then has one read or write under way at a time"
        return Finding(topic, "warn", f"{at_once.name}=1: they are not used", advice, reason)
    value = tunable.value
    if isinstance(value, Unknown):
        return Finding(topic, "ok" if value.absent else "note", str(value), why=why)
    if value == 0:
        return Finding(topic, "ok", "automatic", why=why)
    if value < 32:
        advice = how_to_set(facts.system, "zvol_threads", tunable, 32)
        return Finding(topic, "note", f"{value}, 32 is the default", advice, why)
    return Finding(topic, "ok", str(value), why=why)


def queues(facts: Facts, needs: Needs) -> Finding:
    """Whether ZVols have several queues (zvol_use_blk_mq, 2.2 and later, Linux only)."""
    del needs
    topic, why = "zvol queues", "the effect depends on the workload: measure it before you keep it"
    tunable = facts.tunables.get("zvol_use_blk_mq")
    if tunable is None:
        return Finding(topic, "ok", "one: only Linux has more", why=why)
    value = tunable.value
    if isinstance(value, Unknown):
        return Finding(topic, "ok" if value.absent else "note", str(value), why=why)
    if value:
        advice = how_to_set(facts.system, "zvol_use_blk_mq", tunable, 0)
        many = "several (blk-mq), for ZVols made since that was set"
        return Finding(topic, "note", many, advice, why)
    return Finding(topic, "ok", "one (blk-mq is off, the default)", why=why)
