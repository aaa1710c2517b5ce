"""The table of checks of a host's ZFS and of a pool.

A check has a topic, the reason why it matters, and a function that yields its rows: the first row
whose condition holds is the finding. A fact that is ``Unknown`` ends the check with a note.
Rules are from the manual pages and the source of OpenZFS.
"""

from __future__ import annotations

import re
from collections.abc import Callable, Iterator, Mapping
from typing import NamedTuple, TypeVar

from lab.host.finding import Finding, Level
from lab.host.zfs.facts import Facts, Lvm, Needs, Pool, Unknown
from lab.units import GIB, MIB, format_size
from lab.values import dataclass

T = TypeVar("T")


class Row(NamedTuple):
    """One state: its condition, and the finding. ``why``: None for that of the check."""

    when: bool
    level: Level
    value: str
    advice: str = ""
    why: str | None = None


class Missing(Exception):
    """A fact that a check needs is unknown."""


def known(fact: T | Unknown) -> T:
    """Return ``fact``; raises Missing if it is not known."""
    if isinstance(fact, Unknown):
        raise Missing(str(fact))
    return fact


class View(NamedTuple):
    """The arguments of a check; ``pool`` in checks of pools only."""

    facts: Facts
    needs: Needs
    checked: Pool | None

    @property
    def pool(self) -> Pool:
        """The pool, in checks of pools."""
        return known(self.checked or Unknown("no pool was given"))

    @property
    def labs(self) -> Mapping[str, str]:
        """Properties of the labs' dataset, or of the pool's root if there is none yet."""
        found = self.facts.dataset
        return found if isinstance(found, Mapping) else known(self.pool.root)

    def is_on(self, key: str) -> bool:
        """Whether the tunable ``key`` is 1; raises Missing unless this version lacks it."""
        found = self.facts.tunables.get(key)
        if found is None or (isinstance(found.value, Unknown) and found.value.absent):
            return False
        return known(found.value) == 1

    def set(self, key: str, value: int) -> str:
        """The commands that set a tunable now and permanently."""
        line = f"{self.facts.tunables[key].name}={value}"
        if self.facts.system == "freebsd":
            return f"sysctl {line}; permanently: {line} in /etc/sysctl.conf"
        now = f"echo {value} > /sys/module/zfs/parameters/{self.facts.tunables[key].name}"
        return (
            f"{now}; permanently: `options zfs {line}` in /etc/modprobe.d/zfs.conf"
            " (then update-initramfs -u, if ZFS is in the initramfs)"
        )


@dataclass(frozen=True)
class ZfsCheck:
    """A check of a host's ZFS."""

    topic: str
    """What is checked."""
    why: str
    """Why that matters, in one line."""
    rows: Callable[[View], Iterator[Row]]

    def __call__(self, facts: Facts, needs: Needs, pool: Pool | None = None) -> Finding:
        """The finding, of ``pool`` if this is a check of pools."""
        topic = f"{pool.name} {self.topic}" if pool else self.topic
        try:
            row = next(row for row in self.rows(View(facts, needs, pool)) if row.when)
        except Missing as missing:
            return Finding(topic, "note", str(missing), why=self.why)
        why = self.why if row.why is None else row.why
        return Finding(topic, row.level, row.value, row.advice, why)


HOST: list[ZfsCheck] = []
POOL: list[ZfsCheck] = []


def check(
    table: list[ZfsCheck], topic: str, why: str = ""
) -> Callable[[Callable[[View], Iterator[Row]]], ZfsCheck]:
    """Add a function to ``table``: checks run in the order of this file."""

    def put(rows: Callable[[View], Iterator[Row]]) -> ZfsCheck:
        table.append(ZfsCheck(topic, why, rows))
        return table[-1]

    return put


_LOAD = {
    "linux": "modprobe zfs; if it is missing: apt install zfs-dkms and the kernel's headers",
    "freebsd": 'kldload zfs; permanently: zfs_enable="YES" in /etc/rc.conf',
}


@check(HOST, "zfs version", "programs and module of two releases differ in features")
def versions(view: View) -> Iterator[Row]:
    """Programs and module of one release."""
    load, lost = _LOAD[view.facts.system], "without it there are no pools"
    level = view.needs.level("fail")
    yield Row(not view.facts.module, level, "the module is not loaded", load, lost)
    programs, module = known(view.facts.versions).userland, known(view.facts.versions).kernel
    form = "unknown: the output of `zfs --version` is not known"
    yield Row(not programs or not module, "note", form)
    differ = f"programs {programs}, module {module}"
    same = re.split(r"[^0-9.]", programs)[0] == re.split(r"[^0-9.]", module)[0]
    yield Row(not same, "warn", differ, "reboot, or install the same release of both")
    yield Row(True, "ok", module)


def advised_arc(total: int, guests: int, floor: int) -> int:
    """A limit for a host of labs: an eighth of memory, at least 1G, within half of what is free.

    Bytes, a multiple of 64M, and more than the ARC's minimum, which is a 32nd of memory.
    """
    step, free = 64 * MIB, max(total - guests - floor, 0)
    advised = min(max(total // 8, GIB), free // 2)
    return max(advised // step, total // 32 // step + 1) * step


@check(HOST, "zfs arc")
def arc_limit(view: View) -> Iterator[Row]:
    """The maximum of the ARC against the memory of guests.

    ``c_max`` of arcstats is in effect. A set value (zfs_arc_max, 0: the default) is used only if it
    is at least 64M, above the minimum and below all memory (``arc_tuning_update`` in
    module/zfs/arc.c). The default is the larger of 5/8 of memory and all but 1G; on Linux half of
    memory before 2.3 (``arc_default_max`` in module/os/*/zfs/arc_os.c).
    """
    arc, needs, asked = known(view.facts.arc), view.needs, view.facts.tunables["arc_max"]
    names = ("size", "c_max", "memory_all_bytes")
    if any(name not in arc for name in names):
        yield Row(True, "note", "unknown: arcstats lacks size, c_max or memory_all_bytes")
    size, most, total = (arc[name] for name in names)
    value = f"{format_size(size)}, at most {format_size(most)} of {format_size(total)}"
    if needs.guests:
        value += f"; running labs have {format_size(needs.guests)}"
    if needs.guests is None:
        value += "; the memory of running labs is unknown"
    guests = needs.guests or 0
    limit = advised_arc(total, guests, needs.memory_floor)
    advice = f"{format_size(limit)}: {view.set('arc_max', limit)}"
    why = "guests cache data themselves (buffer pool): memory serves them better than the ARC"
    if view.facts.system == "linux":
        why += "; Linux counts the ARC as used memory, so `lab up` refuses earlier"
    ignored = isinstance(asked.value, int) and asked.value not in (0, most)
    rule = "a value below 64M or the ARC's minimum, or above all memory, is ignored"
    yield Row(ignored, "warn", f"{value}; {asked.name}={asked.value} is ignored", advice, rule)
    too_much = bool(guests) and most + guests + needs.memory_floor > total
    yield Row(too_much, "warn", value, advice, why)
    yield Row(most > total // 2, "note", value, advice, why)
    yield Row(True, "ok", value, why=why)


@check(
    HOST,
    "zfs cache flush",
    "without flushes a power loss damages the pool, unless all write caches are protected",
)
def cache_flush(view: View) -> Iterator[Row]:
    """Whether disks flush their caches: zfs(4), zfs_nocacheflush; vdev_geom.c of FreeBSD."""
    keys = ("nocacheflush", "zil_nocacheflush", "bio_flush_disable")
    off = [key for key in keys if view.is_on(key)]
    value = "disabled: " + ", ".join(f"{view.facts.tunables[key].name}=1" for key in off)
    yield Row(bool(off), "warn", value, "; ".join(view.set(key, 0) for key in off))
    yield Row(True, "ok", "on")


@check(HOST, "zvol mode", "dev: a guest's disk is one device, whose partitions the host ignores")
def volmode(view: View) -> Iterator[Row]:
    """Whether ZVols have devices, and of which kind: zfsprops(7), volmode."""
    if view.is_on("inhibit_dev"):
        value = f"{view.facts.tunables['inhibit_dev'].name}=1: ZVols have no devices"
        level, advice = view.needs.level("fail"), view.set("inhibit_dev", 0)
        yield Row(True, level, value, advice, "guests open ZVols by their devices")
    if not isinstance(view.facts.dataset, Mapping):
        yield Row(True, "ok", "`lab host init` sets dev")
        return
    mode = view.facts.dataset.get("volmode", "default")
    advice = f"zfs set volmode=dev {view.needs.dataset}"
    yield Row(mode == "dev", "ok", mode)
    yield Row(True, "fail" if mode == "none" else "warn", mode, advice)


@check(HOST, "zvol links", "/dev/zvol/... leads to a volume's device")
def links(view: View) -> Iterator[Row]:
    """The links /dev/zvol/<dataset>, by a udev rule of the ZFS package; FreeBSD needs none."""
    rule, level = view.facts.link_rule, view.needs.level("warn")
    yield Row(view.facts.system == "freebsd", "ok", "created by the kernel")
    yield Row(rule is None, "note", "udev does not run: lab searches the devices")
    advice = "install zfsutils-linux, or remove an empty /etc/udev/rules.d/60-zvol.rules"
    yield Row(not rule, level, "udev has no 60-zvol.rules", advice)
    yield Row(True, "ok", rule or "")


_BUSY = "`dataset is busy`: a volume cannot be removed while another program has it open"
LVM_FILTER = 'global_filter = [ "r|^/dev/zd|", "r|^/dev/zvol/|" ]'
# All of a ZVol's names that LVM may know, by udev's rules.
_LVM_NAMES = ("/dev/zd0", "/dev/zvol/tank/lab/x", "/dev/disk/by-diskseq/1", "/dev/block/230:0")


@check(HOST, "lvm and zvols", _BUSY)
def lvm(view: View) -> Iterator[Row]:
    """LVM opens every ZVol that its filters or its devices file do not exclude."""
    if view.facts.lvm is None:
        yield Row(True, "ok", "LVM is not installed")
        return
    found, level = known(view.facts.lvm), view.needs.level("warn")
    kept_out = lvm_keeps_out(found)
    advice = f"in /etc/lvm/lvm.conf, section devices: {LVM_FILTER}; then update-initramfs -u"
    yield Row(found.devices_file, "ok", "excluded by LVM's devices file")
    yield Row(kept_out is True, "ok", "excluded by LVM's filters")
    yield Row(kept_out is None, level, "unknown: a filter of LVM is invalid", advice)
    yield Row(True, level, "LVM opens them", advice)


def lvm_keeps_out(found: Lvm) -> bool | None:
    """True if a filter rejects ZVols; None if one is invalid.

    lvm.conf(5): for each name of a device the first pattern that matches counts, such as
    r|^/dev/zd|, with any delimiter; one accepted name makes the device accepted, and a name that
    matches no pattern is accepted too.
    """

    def kind(patterns: tuple[str, ...], name: str) -> str:
        matching = (it for it in patterns if re.search(it[2:].rstrip(it[1:2]), name))
        return next(matching, "")[:1]

    try:
        kinds = [{kind(patterns, name) for name in _LVM_NAMES} for patterns in found.filters]
    except re.error:
        return None
    return any("a" not in some and "r" in some for some in kinds)


@check(HOST, "zvols in use", _BUSY)
def holders(view: View) -> Iterator[Row]:
    """The devices that the kernel has on top of ZVols now."""
    found = list(known(view.facts.holders or {}).items())
    if not found:
        yield Row(True, "ok", "by guests only")
        return
    first, kind = found[0]
    value = ", ".join(f"{device} by {holder}" for device, holder in found[:3])
    if len(found) > 3:
        value += f" and {len(found) - 3} more"
    unmap = f"multipath -f /dev/{first}, and blacklist zd* in /etc/multipath.conf"
    leave = f"vgchange -an the group on /dev/{first} (pvs); then exclude ZVols in LVM"
    yield Row(kind.startswith("mpath-"), "warn", value, unmap)
    yield Row(kind.startswith("LVM-"), "warn", value, leave)
    yield Row(True, "warn", value, f"lsblk /dev/{first} shows it")


@check(HOST, "swap", "a write to a ZVol needs memory: when there is none left, the host hangs")
def swap(view: View) -> Iterator[Row]:
    """Swap on a ZVol (openzfs/zfs#7734)."""
    ours = [it for it in known(view.facts.swaps) if re.match(r"/dev/(zd[0-9]|zvol/)", it)]
    advice = f"swapoff {' '.join(ours[:1])}; permanently: swap on a partition, in /etc/fstab"
    yield Row(bool(ours), "warn", f"on a ZVol: {', '.join(ours)}", advice)
    yield Row(True, "ok", "on no ZVol")


_DEAD = ("FAULTED", "UNAVAIL", "SUSPENDED", "REMOVED")


@check(POOL, "health")
def health(view: View) -> Iterator[Row]:
    """State, errors and problem by ``zpool status -x``, which ignores features to be enabled."""
    found = known(view.pool.status)
    yield Row(not found, "ok", "ONLINE, no known errors")
    state, errors = found.get("state", ""), found.get("errors", "")
    value = state if errors.startswith("No known") or not errors else f"{state}, {errors}"
    level: Level = "fail" if state in _DEAD and view.needs.dataset else "warn"
    advice = found.get("action", f"zpool status -v {view.pool.name}")
    yield Row(True, level, value, advice, found.get("status", ""))


@check(POOL, "space", "volumes are sparse: a full pool pauses all guests on it at once")
def space(view: View) -> Iterator[Row]:
    """Space for labs (``available``: with parity and quotas), and the use of the pool.

    ZFS reserves 1/32 of a pool, at most 128G (``spa_get_slop_space``): available is 0 while
    zpool list still shows that as free.
    """
    capacity = known(view.pool.properties).get("capacity", "")
    available = view.labs.get("available", "")
    if not capacity.isdigit() or not available.isdigit():
        yield Row(True, "note", "unknown: zfs reports no capacity, or no available space")
        return
    full, free, floor = int(capacity), int(available), view.needs.space_floor
    value = f"{full} % full, {format_size(free)} available"
    refused = f"{value}, {format_size(floor)} is kept free: `lab up` refuses"
    advice = "remove labs, images or templates (`lab ls`, `lab image`), snapshots, or add disks"
    slow = f"from about 80 % on ZFS searches long for free space; {space.why}"
    yield Row(view.needs.dataset != "" and free < floor, "fail", refused, advice)
    yield Row(full >= 80, "warn", value, advice, slow)
    yield Row(True, "ok", value)


@check(POOL, "fragmentation", "data is then written to many small extents")
def fragmentation(view: View) -> Iterator[Row]:
    """Of the free space, in percent (zpoolprops(7))."""
    text = known(view.pool.properties).get("fragmentation", "")
    if not text.isdigit():
        yield Row(True, "note", "unknown: the pool has no feature spacemap_histogram")
        return
    advice = "free space, or move volumes to a new pool: ZFS cannot defragment a pool"
    yield Row(int(text) >= 50, "note", f"{text} % of the free space", advice)
    yield Row(True, "ok", f"{text} % of the free space")


@check(POOL, "autotrim", "an SSD without TRIM of the blocks of removed labs gets slower")
def autotrim(view: View) -> Iterator[Row]:
    """Whether freed space is discarded on the disks."""
    name, value = view.pool.name, known(view.pool.properties).get("autotrim", "")
    advice = f"on SSDs: zpool set autotrim=on {name}, or `zpool trim {name}` once a week"
    yield Row(value == "on", "ok", "on")
    yield Row(True, "note", value or "unknown: the pool has no such property", advice)


@check(POOL, "features", "without the feature the compression of volumes cannot be set")
def features(view: View) -> Iterator[Row]:
    """Whether the pool has the compressions of the default profile (zpool-features(7))."""
    pool, kept, level = view.pool, view.needs.profile, view.needs.level("fail")
    kinds = {volume.compression.split("-")[0] for volume in (kept.os, kept.data, kept.log)}
    switches = [f"{kind}_compress" for kind in ("lz4", "zstd") if kind in kinds]
    have = known(pool.properties)
    missing = [it for it in switches if have.get(f"feature@{it}") not in ("enabled", "active")]
    advice = "; ".join(f"zpool set feature@{name}=enabled {pool.name}" for name in missing)
    yield Row(bool(missing), level, f"{', '.join(missing)} not enabled", advice)
    yield Row(True, "ok", ", ".join(switches) or "none needed")


@check(POOL, "dedup", "clones share blocks without it; its table takes memory for each block")
def dedup(view: View) -> Iterator[Row]:
    """Deduplication of the labs' dataset."""
    value = view.labs.get("dedup", "off")
    where = view.needs.dataset if isinstance(view.facts.dataset, Mapping) else view.pool.name
    yield Row(value == "off", "ok", "off")
    yield Row(True, "warn", value, f"zfs set dedup=off {where}")
