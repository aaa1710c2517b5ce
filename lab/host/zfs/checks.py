"""The table of checks: one row for each state in which a host or a pool may be.

A check has a topic, the reason why the subject matters, and a function that yields its rows: the
first whose condition holds is the finding. A fact that is ``Unknown`` ends the check with a note.
Rules are from the manual pages and the source of OpenZFS.
"""

from __future__ import annotations

import re
from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass
from typing import NamedTuple, TypeVar

from lab.host.finding import Finding, Level
from lab.host.zfs.facts import Disk, Facts, Lvm, Needs, Pool, Unknown
from lab.host.zfs.tunables import how_to_set
from lab.spec import GIB, MIB, format_size

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

    def __init__(self, unknown: Unknown, level: Level = "note") -> None:
        super().__init__(str(unknown))
        self.level = level


def known(fact: T | Unknown) -> T:
    """``fact``; raises Missing."""
    if isinstance(fact, Unknown):
        raise Missing(fact)
    return fact


@dataclass(frozen=True)
class View:
    """What a check sees."""

    facts: Facts
    needs: Needs
    checked: Pool | None

    @property
    def pool(self) -> Pool:
        """The pool, in checks of pools."""
        return known(self.checked or Unknown("no pool was given"))

    @property
    def labs(self) -> Mapping[str, str]:
        """Properties of the labs' dataset, or of the pool's root before there is one."""
        found = self.facts.dataset
        return found if isinstance(found, Mapping) else known(self.pool.root)

    def tunable(self, key: str, absent: Level = "note") -> int:
        """Its value; raises Missing. ``absent``: the level where this version has no such."""
        value = self.facts.tunables[key].value
        if isinstance(value, Unknown):
            raise Missing(value, absent if value.absent else "note")
        return value

    def is_on(self, key: str) -> bool:
        """True if the tunable ``key`` is 1; False if it is not known."""
        return key in self.facts.tunables and self.facts.tunables[key].value == 1

    def set(self, key: str, value: int) -> str:
        """The commands that set a tunable."""
        return how_to_set(self.facts.system, key, self.facts.tunables[key], value)


@dataclass(frozen=True)
class Check:
    """``topic``: what is checked; ``why``: why that matters, in one line."""

    topic: str
    why: str
    rows: Callable[[View], Iterator[Row]]

    def __call__(self, facts: Facts, needs: Needs, pool: Pool | None = None) -> Finding:
        """The finding, of ``pool`` if this is a check of pools."""
        topic = f"{pool.name} {self.topic}" if pool else self.topic
        try:
            row = next(row for row in self.rows(View(facts, needs, pool)) if row.when)
        except Missing as missing:
            return Finding(topic, missing.level, str(missing), why=self.why)
        why = self.why if row.why is None else row.why
        return Finding(topic, row.level, row.value, row.advice, why)


HOST: list[Check] = []
POOL: list[Check] = []


def check(
    table: list[Check], topic: str, why: str = ""
) -> Callable[[Callable[[View], Iterator[Row]]], Check]:
    """Put a function into ``table``: checks run in the order in which they are written here."""

    def put(rows: Callable[[View], Iterator[Row]]) -> Check:
        table.append(Check(topic, why, rows))
        return table[-1]

    return put


# The module, and what it does for the whole host.

_LOAD = {
    "linux": "modprobe zfs; if there is none: apt install zfs-dkms and the kernel's headers",
    "freebsd": 'kldload zfs; for good: zfs_enable="YES" in /etc/rc.conf',
}


def _numbers(version: str) -> list[int]:
    """``[2, 3, 9]`` of ``2.3.9-0+deb13u1``."""
    found = re.match(r"[0-9]+(\.[0-9]+)*", version)
    return [int(number) for number in found[0].split(".")] if found else []


@check(
    HOST,
    "zfs version",
    "programs and module of two releases do not know all of each other's features",
)
def versions(view: View) -> Iterator[Row]:
    """Programs and module of one release."""
    load, lost = _LOAD[view.facts.system], "without it there are no pools"
    level = view.needs.level("fail")
    yield Row(not view.facts.module, level, "the module is not loaded", load, lost)
    found = known(view.facts.versions)
    programs, module = found.userland, found.kernel
    form = "unknown: `zfs --version` is of an unknown form"
    yield Row(not programs or not module, "note", form)
    differ = f"programs {programs}, module {module}"
    same = (_numbers(programs) or programs) == (_numbers(module) or module)
    yield Row(not same, "warn", differ, "reboot, or install both of one release")
    yield Row(True, "ok", module)


def advised_arc(total: int, guests: int, floor: int) -> int:
    """A limit for a host of labs: an eighth of memory, at least 1G, within half of what is free.

    Bytes, a multiple of 64M, and more than the ARC's least size, which is a 32nd of memory.
    """
    step, free = 64 * MIB, max(total - guests - floor, 0)
    wanted = min(max(total // 8, GIB), free // 2)
    return max(wanted // step, total // 32 // step + 1) * step


@check(HOST, "zfs arc")
def arc_limit(view: View) -> Iterator[Row]:
    """How far the ARC may grow, against what guests have and what stays free.

    In force is ``c_max`` of arcstats. What was set (zfs_arc_max, 0: the default) only counts if
    it is at least 64M, above the least size and below all memory (``arc_tuning_update`` in
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
        value += "; what running labs have is unknown"
    guests = needs.guests or 0
    limit = advised_arc(total, guests, needs.memory_floor)
    advice = f"{format_size(limit)}: {view.set('arc_max', limit)}"
    why = "guests cache data themselves (buffer pool): memory serves them better than the ARC"
    if view.facts.system == "linux":
        why += "; Linux counts the ARC as used memory, so `lab up` refuses earlier"
    ignored = isinstance(asked.value, int) and asked.value not in (0, most)
    rule = "a value below 64M or the ARC's least size, or above all memory, is ignored"
    yield Row(ignored, "warn", f"{value}; {asked.name}={asked.value} is not in force", advice, rule)
    too_much = bool(guests) and most + guests + needs.memory_floor > total
    yield Row(too_much, "warn", value, advice, why)
    yield Row(most > total // 2, "note", value, advice, why)
    yield Row(True, "ok", value, why=why)


@check(
    HOST,
    "zfs prefetch",
    "guests read databases at random; sends and scrubs have a prefetch of their own",
)
def prefetch(view: View) -> Iterator[Row]:
    """Whether predictive prefetch reads what is used, by the ARC's own count.

    ``predictive_prefetch`` counts what it read, ``demand_[io]hit_predictive_prefetch`` what of
    that was used (``arc_access`` in module/zfs/arc.c from 2.2; 2.1 lacks the first).
    """
    yield Row(view.tunable("prefetch_disable") != 0, "ok", "off")
    arc = view.facts.arc
    if isinstance(arc, Unknown):
        yield Row(True, "ok", f"on; {arc}")
        return
    read = arc.get("predictive_prefetch")
    if read is None:
        yield Row(True, "ok", "on; this version does not count its hits")
        return
    yield Row(read < 1000, "ok", "on; too few reads yet to judge it")
    hits = ("demand_hit_predictive_prefetch", "demand_iohit_predictive_prefetch")
    used = min(100 * sum(arc.get(name, 0) for name in hits) // read, 100)
    yield Row(used >= 50, "ok", f"on; {used} % of its reads were used")
    advice = view.set("prefetch_disable", 1)
    yield Row(True, "note", f"on; only {used} % of its reads were used", advice)


@check(
    HOST,
    "zfs txg timeout",
    "with sync=disabled a power loss takes what was written since the last one",
)
def txg_timeout(view: View) -> Iterator[Row]:
    """Seconds after which what was written goes to disk at the latest (zfs(4): 5)."""
    seconds = view.tunable("txg_timeout")
    value, advice = f"{seconds} s, 5 s is the default", view.set("txg_timeout", 5)
    small = "shorter ones write more metadata for the same data, and batch less"
    yield Row(seconds == 5, "ok", "5 s")
    yield Row(seconds < 5, "note", value, advice, small)
    yield Row(True, "note", value, advice)


@check(
    HOST,
    "zfs cache flush",
    "without flushes a power loss damages the pool, unless all write caches are protected",
)
def cache_flush(view: View) -> Iterator[Row]:
    """Whether disks are asked to make writes durable.

    zfs(4) of zfs_nocacheflush and zil_nocacheflush: pool corruption on power loss if a
    volatile out-of-order write cache is enabled. FreeBSD's vdev_geom.c has
    bio_flush_disable to the same end.
    """
    tunables = view.facts.tunables
    keys = ("nocacheflush", "zil_nocacheflush", "bio_flush_disable")
    off = [key for key in keys if view.is_on(key)]
    text = "switched off: " + ", ".join(f"{tunables[key].name}=1" for key in off)
    advice = "; ".join(view.set(key, 0) for key in off)
    idle = f"{text}; no disk here reports a volatile cache"
    gain = "nothing is gained, and disks change"
    yield Row(bool(off) and _no_volatile_cache(view.facts), "note", idle, advice, gain)
    yield Row(bool(off), "warn", text, advice)
    for value in (tunables[key].value for key in keys if key in tunables):
        if isinstance(value, Unknown) and not value.absent:
            raise Missing(value)
    yield Row(True, "ok", "on")


def _no_volatile_cache(facts: Facts) -> bool:
    """True if every disk of every pool says so."""
    disks: list[Disk] = []
    for pool in () if isinstance(facts.pools, Unknown) else facts.pools:
        if isinstance(pool.disks, Unknown):
            return False
        disks += pool.disks
    return bool(disks) and all(disk.volatile is False for disk in disks)


# ZVols as devices.


_PAGES = "InnoDB writes pages of 16K; the size of a volume's blocks cannot be changed later"


@check(HOST, "zvol block size", _PAGES)
def block_size(view: View) -> Iterator[Row]:
    """ZVOL_DEFAULT_BLOCKSIZE (include/sys/fs/zfs.h): 8K up to 2.1, 16K from 2.2."""
    kept, found = view.needs.profile, view.facts.versions
    data, log = (volume.block_size >> 10 for volume in (kept.data, kept.log))
    ours = f"lab makes them with {data}K (logs {log}K)"
    version = [] if isinstance(found, Unknown) else _numbers(found.userland)
    yield Row(len(version) < 2, "ok", ours)
    yield Row(True, "ok", f"{ours}; zfs itself with {8 if version < [2, 2] else 16}K")


_MODES = {1: "full", 2: "dev", 3: "none"}  # zfs(4), zvol_volmode


@check(
    HOST,
    "zvol mode",
    "dev shows a guest's disk as one device: the host does not read its partitions",
)
def volmode(view: View) -> Iterator[Row]:
    """How ZVols show up: zfsprops(7), volmode; inherited, and by default as the tunable says."""
    if view.is_on("inhibit_dev"):
        value = f"{view.facts.tunables['inhibit_dev'].name}=1: no devices are made"
        level, advice = view.needs.level("fail"), view.set("inhibit_dev", 0)
        yield Row(True, level, value, advice, "guests open ZVols by their devices")
    number = view.tunable("volmode")
    default, dataset = _MODES.get(number, str(number)), view.facts.dataset
    if not isinstance(dataset, Mapping):
        yield Row(True, "ok", f"{default} by default; `lab host init` sets dev")
        return
    mode = dataset.get("volmode", "default")
    mode = default if mode == "default" else mode
    advice = f"zfs set volmode=dev {view.needs.dataset}"
    yield Row(mode == "dev", "ok", mode)
    yield Row(mode == "none", "fail", mode, advice)
    yield Row(True, "warn", mode, advice)


@check(HOST, "zvol threads", "all guests share them; with few, one busy guest delays the others")
def threads(view: View) -> Iterator[Row]:
    """Threads for reads and writes of ZVols; 0: as many as processors, at least 32 (zfs(4))."""
    sync = view.facts.tunables["zvol_request_sync"].name
    advice = view.set("zvol_request_sync", 0)
    why = "a guest then has one read or write under way at a time"
    yield Row(view.is_on("zvol_request_sync"), "warn", f"{sync}=1: they are not used", advice, why)
    count = view.tunable("zvol_threads", absent="ok")
    advice = view.set("zvol_threads", 32)
    yield Row(count == 0, "ok", "automatic")
    yield Row(count < 32, "note", f"{count}, 32 is the default", advice)
    yield Row(True, "ok", str(count))


@check(HOST, "zvol queues", "the effect depends on the workload: measure it before you keep it")
def queues(view: View) -> Iterator[Row]:
    """Whether ZVols have several queues (zvol_use_blk_mq, 2.2 and later, Linux only)."""
    yield Row("zvol_use_blk_mq" not in view.facts.tunables, "ok", "one: only Linux has more")
    several = view.tunable("zvol_use_blk_mq", absent="ok")
    advice = view.set("zvol_use_blk_mq", 0)
    text = "several (blk-mq), for ZVols made since that was set"
    yield Row(several != 0, "note", text, advice)
    yield Row(True, "ok", "one (blk-mq is off, the default)")


# Others on the host that open ZVols, and so keep them from being destroyed.

_BUSY = "`dataset is busy`: what opens a guest's disk keeps it from being removed"


@check(HOST, "zvol links", "/dev/zvol/... is how a volume's device is found")
def links(view: View) -> Iterator[Row]:
    """The links /dev/zvol/<dataset>: udev has a rule of the ZFS package, FreeBSD needs none."""
    seen, level = view.facts.neighbours, view.needs.level("warn")
    yield Row(view.facts.system == "freebsd", "ok", "made by the kernel")
    yield Row(not seen.udev, "note", "udev does not run: lab looks for devices itself")
    advice = "install zfsutils-linux, or remove an empty /etc/udev/rules.d/60-zvol.rules"
    yield Row(not seen.link_rule, level, "udev has no 60-zvol.rules", advice)
    yield Row(True, "ok", seen.link_rule)


LVM_FILTER = 'global_filter = [ "r|^/dev/zd|", "r|^/dev/zvol/|" ]'
# All of a ZVol's names that LVM may know, by udev's rules.
_LVM_NAMES = ("/dev/zd0", "/dev/zvol/tank/lab/x", "/dev/disk/by-diskseq/1", "/dev/block/230:0")


@check(HOST, "lvm and zvols", _BUSY)
def lvm(view: View) -> Iterator[Row]:
    """LVM reads every block device that its filters and its devices file do not keep out.

    It counts ZVols among the kinds of devices that it knows (lib/device/device-types.h).
    """
    if view.facts.system == "freebsd" or view.facts.neighbours.lvm is None:
        yield Row(True, "ok", "no LVM here")
        return
    found, level = known(view.facts.neighbours.lvm), view.needs.level("warn")
    kept_out = lvm_keeps_out(found)
    advice = f"in /etc/lvm/lvm.conf, section devices: {LVM_FILTER}; then update-initramfs -u"
    yield Row(found.devices_file, "ok", "left alone: LVM has a devices file")
    yield Row(kept_out is True, "ok", "left alone: LVM's filters keep them out")
    yield Row(kept_out is None, level, "unknown: a filter of LVM is not readable", advice)
    yield Row(True, level, "LVM opens them", advice)


def lvm_keeps_out(found: Lvm) -> bool | None:
    """True if a filter rejects ZVols; None if one cannot be read.

    lvm.conf(5): for each name of a device the first pattern that matches counts, such as
    r|^/dev/zd|, with any delimiter; one name that is accepted makes the device accepted, and if
    none matches it is accepted too.
    """

    def kind(patterns: tuple[str, ...], name: str) -> str:
        matching = (it for it in patterns if re.search(it[2:].rstrip(it[1:2]), name))
        return next(matching, "")[:1]

    try:
        kinds = [{kind(patterns, name) for name in _LVM_NAMES} for patterns in found.filters]
    except re.error:
        return None
    return any("a" not in some and "r" in some for some in kinds)


@check(HOST, "multipath and zvols", _BUSY)
def multipath(view: View) -> Iterator[Row]:
    """By default multipathd takes SCSI, DASD and NVMe only; blacklist_exceptions may name more."""
    taken = [name for name in view.facts.neighbours.multipath if _matches(name, "zd0")]
    value = f"multipathd is configured to take them: {', '.join(taken)}"
    advice = "take it out of blacklist_exceptions in /etc/multipath.conf; multipathd reconfigure"
    yield Row(bool(taken), "warn", value, advice)
    yield Row(True, "ok", "left alone")


def _matches(expression: str, name: str) -> bool:
    try:
        return re.search(expression, name) is not None
    except re.error:
        return False


@check(HOST, "zvols in use", _BUSY)
def holders(view: View) -> Iterator[Row]:
    """What the kernel has stacked on ZVols right now: the cause itself, not a likely one."""
    if view.facts.neighbours.holders is None:
        yield Row(True, "ok", "by guests only")
        return
    found = list(known(view.facts.neighbours.holders).items())
    if not found:
        yield Row(True, "ok", "nothing is stacked on them")
        return
    first, kind = found[0]
    value = ", ".join(f"{device} by {holder}" for device, holder in found[:3])
    if len(found) > 3:
        value += f" and {len(found) - 3} more"
    unmap = f"multipath -f /dev/{first}, and blacklist zd* in /etc/multipath.conf"
    leave = f"vgchange -an the group on /dev/{first} (pvs); then keep LVM away from ZVols"
    yield Row(kind.startswith("mpath-"), "warn", value, unmap)
    yield Row(kind.startswith("LVM-"), "warn", value, leave)
    yield Row(True, "warn", value, f"lsblk /dev/{first} shows what it is")


@check(HOST, "swap", "writing to a ZVol takes memory: when there is none left, the host hangs")
def swap(view: View) -> Iterator[Row]:
    """Swap on a ZVol: to free memory ZFS then needs memory (openzfs/zfs#7734)."""
    devices = known(view.facts.neighbours.swaps)
    ours = [device for device in devices if re.match(r"/dev/(zd[0-9]|zvol/)", device)]
    advice = f"swapoff {' '.join(ours[:1])}; for good: swap on a partition, in /etc/fstab"
    yield Row(bool(ours), "warn", f"on a ZVol: {', '.join(ours)}", advice)
    yield Row(True, "ok", "on no ZVol")


# Pools.

_DEAD = ("FAULTED", "UNAVAIL", "SUSPENDED", "REMOVED")
# Not a fault: the pool could have newer features, or has other ones than a list says.
_HARMLESS = ("requested features are not enabled", "compatibility", "legacy on-disk format")
_ASHIFT = "non-native block size"
_CALM = "ONLINE, no known errors"


@check(POOL, "health")
def health(view: View) -> Iterator[Row]:
    """State, errors and the problem that ``zpool status`` names."""
    found = known(view.pool.status)
    advice, why = found.action or f"zpool status -v {view.pool.name}", found.problem
    errors = "" if found.errors.startswith("No known") else found.errors
    value = ", ".join(part for part in (found.state, errors) if part)
    dead: Level = "fail" if view.needs.dataset else "warn"
    yield Row(found.state in _DEAD, dead, found.state, advice, why)
    yield Row(found.state != "ONLINE" or errors != "", "warn", value, advice, why)
    yield Row(not why or _ASHIFT in why, "ok", _CALM)  # the check `ashift` reports that
    yield Row(any(word in why for word in _HARMLESS), "ok", _CALM, why=why)
    yield Row(True, "warn", "ONLINE, with a problem", advice, why)


_SCRUB_DAYS = 35  # FreeBSD's daily_scrub_zfs_default_threshold; Debian scrubs monthly
_MONTHLY = {
    "linux": "systemctl enable --now zfs-scrub-monthly@{}.timer",  # Debian's cron does it too
    "freebsd": 'daily_scrub_zfs_enable="YES" in /etc/periodic.conf',
}


@check(
    POOL,
    "scrub",
    "bad blocks that nobody reads are found by a scrub only, while a copy can still heal them",
)
def scrub(view: View) -> Iterator[Row]:
    """When all data was last read and compared with its checksums."""
    pool, now = view.pool, view.facts.now
    scans = [scan for scan in known(pool.status).scans if scan.kind == "scrub"]
    advice = f"zpool scrub {pool.name}; for good: {_MONTHLY[view.facts.system].format(pool.name)}"
    if not scans:
        created = "" if isinstance(pool.root, Unknown) else pool.root.get("creation", "")
        old = _days(now, float(created)) if created.isdigit() else None
        young = old is not None and old <= _SCRUB_DAYS
        yield Row(young, "ok", f"none yet; the pool is {_spoken(old)} old")
        yield Row(True, "note", "none on record", advice)
        return
    last, age = scans[0], _days(now, scans[0].at)
    stopped = last.state in ("paused", "canceled")
    yield Row(stopped, "note", f"the last one was {last.state}", advice)
    failed = f"{_spoken(age)} ago, with {last.errors} errors"
    yield Row(last.errors > 0, "warn", failed, f"zpool status -v {pool.name}")
    yield Row(last.state == "running", "ok", "under way")
    yield Row(age is None, "note", "at an unknown time", advice)
    value = f"{_spoken(age)} ago, without errors"
    yield Row((age or 0) > _SCRUB_DAYS, "note", value, advice)
    yield Row(True, "ok", value)


def _days(now: float, at: float | None) -> int | None:
    return None if at is None else max(int((now - at) / 86400), 0)


def _spoken(days: int | None) -> str:
    return f"{days} day{'s' * (days != 1)}" if days else "less than a day"


@check(POOL, "space", "volumes are sparse: a pool that is full stops all guests on it at once")
def space(view: View) -> Iterator[Row]:
    """Room for labs (``available``, which knows parity and quotas), and how full the pool is.

    ZFS keeps back 1/32 of a pool, at most 128G (``spa_get_slop_space``): available is 0 while
    zpool list still shows that as free.
    """
    capacity = known(view.pool.properties).get("capacity", "")
    available = view.labs.get("available", "")
    if not capacity.isdigit() or not available.isdigit():
        yield Row(True, "note", "unknown: zfs names no capacity, or no available space")
        return
    full, free, floor = int(capacity), int(available), view.needs.space_floor
    value = f"{full} % full, {format_size(free)} available"
    refused = f"{value}, {format_size(floor)} is kept free: `lab up` refuses"
    advice = "remove labs, images or templates (`lab ls`, `lab image`), snapshots, or add disks"
    slow = f"from about 80 % on ZFS searches long for free space; {space.why}"
    yield Row(view.needs.dataset != "" and free < floor, "fail", refused, advice)
    yield Row(full >= 80, "warn", value, advice, slow)
    yield Row(True, "ok", value)


@check(POOL, "fragmentation", "writes then go to many small places")
def fragmentation(view: View) -> Iterator[Row]:
    """Of the free space, in percent (zpoolprops(7))."""
    text = known(view.pool.properties).get("fragmentation", "")
    if not text.isdigit():
        yield Row(True, "note", "unknown: the pool does not count it (spacemap_histogram)")
        return
    advice = "free space, or move volumes to a new pool: ZFS cannot defragment a pool"
    yield Row(int(text) >= 50, "note", f"{text} % of the free space", advice)
    yield Row(True, "ok", f"{text} % of the free space")


@check(
    POOL, "ashift", "a smaller write than a sector makes the disk read, change and write the sector"
)
def ashift(view: View) -> Iterator[Row]:
    """The smallest write (2^ashift bytes) against the sectors that the disks report.

    zpoolprops(7): too small a value costs reads for each write, and cannot be changed.
    """
    pool, found = view.pool, known(view.pool.ashifts).values()
    least, most = min(found), max(found)
    sector = max((disk.sector or 0 for disk in pool.of("data", "special")), default=0)
    value = f"{least}" if least == most else f"{least} to {most}"
    value += f" ({format_size(1 << least)})"
    value += f", sectors of {format_size(sector)}" if sector else ""
    new = "for good only by a new pool: zpool create -o ashift=12, or 13 where sectors are of 8K"
    reported = not isinstance(pool.status, Unknown) and _ASHIFT in pool.status.problem
    later = "disks with sectors of 4K can then not replace these without that loss"
    waste = "blocks of 16K then compress to 16K or not at all"
    yield Row(reported or 1 << least < sector, "warn", value, new)
    yield Row(least < 12, "note", value, new, later)
    yield Row(most > 13, "note", value, new, waste)
    yield Row(True, "ok", value)


@check(POOL, "autotrim", "labs come and go; an SSD without TRIM of free blocks slows down")
def autotrim(view: View) -> Iterator[Row]:
    """Whether disks hear of freed space."""
    name, value = view.pool.name, known(view.pool.properties).get("autotrim", "")
    able = {disk.discards for disk in view.pool.of("data", "special")}
    advice = f"zpool set autotrim=on {name}, or `zpool trim {name}` once a week"
    yield Row(value == "on", "ok", "on")
    yield Row(not value, "note", "unknown: zpool names no such property")
    yield Row(True in able, "note", "off, and disks can discard", advice)
    yield Row(able == {False}, "ok", "off; the disks cannot discard")
    yield Row(True, "ok", "off; the disks do not say whether they can discard")


@check(POOL, "features", "without the feature volumes cannot be set so")
def features(view: View) -> Iterator[Row]:
    """Whether the pool has the compressions of the default profile (zpool-features(7)).

    gzip, zle and lzjb are older than features. ``on`` is lz4 where that is there.
    """
    pool, kept, level = view.pool, view.needs.profile, view.needs.level("fail")
    kinds = {volume.compression.split("-")[0] for volume in (kept.os, kept.data, kept.log)}
    wanted = [f"{kind}_compress" for kind in ("lz4", "zstd") if kind in kinds]
    have = known(pool.properties)
    missing = [it for it in wanted if have.get(f"feature@{it}") not in ("enabled", "active")]
    advice = "; ".join(f"zpool set feature@{name}=enabled {pool.name}" for name in missing)
    yield Row(bool(missing), level, f"{', '.join(missing)} not enabled", advice)
    yield Row(True, "ok", ", ".join(wanted) or "none needed")


@check(POOL, "dedup")
def dedup(view: View) -> Iterator[Row]:
    """Clones share their blocks without it."""
    value = view.labs.get("dedup", "off")
    where = view.needs.dataset if isinstance(view.facts.dataset, Mapping) else view.pool.name
    why = "each block written is looked up in a table in memory; clones share blocks without it"
    yield Row(value == "off", "ok", "off")
    yield Row(True, "warn", value, f"zfs set dedup=off {where}", why)


@check(POOL, "slog", "a commit waits for the log: on the SLOG, or else among the data")
def slog(view: View) -> Iterator[Row]:
    """A separate log device, and whether the default profile has work for it.

    zfsprops(7): logbias=latency uses it, throughput does not; sync=disabled has no log.
    Losing one that is not mirrored costs the last seconds only if the host goes down with it.
    """
    known(view.pool.disks)
    pool, profile, logs = view.pool, view.needs.profile, view.pool.of("logs")
    waits = any(
        kept.sync != "disabled" and kept.logbias == "latency"
        for kept in (profile.data, profile.log)
    )
    slow = not logs and waits and any(disk.rotates for disk in pool.of("data"))
    value = f"none, on rotating disks; commits of profile {profile.name} wait for them"
    advice = f"zpool add {pool.name} log mirror SSD SSD, with power-loss protection"
    yield Row(slow, "note", value, advice)
    yield Row(not logs, "ok", "none: the log is among the data")
    value = f"{len(logs)} device{'s' * (len(logs) > 1)}"
    yield Row(not waits, "ok", f"{value}; profile {profile.name} does not use it (sync, logbias)")
    alone = [disk.path for disk in logs if not disk.group]
    advice = f"zpool attach {pool.name} {' '.join(alone[:1])} ANOTHER"
    why = "if it fails together with the host, the last commits are lost"
    yield Row(bool(alone), "note", f"{value}, not mirrored", advice, why)
    yield Row(True, "ok", f"{value}, mirrored")


@check(POOL, "l2arc", "it is filled from the ARC: with primarycache=metadata no data gets there")
def l2arc(view: View) -> Iterator[Row]:
    """A second-level cache: filled from the ARC, so it never sees what the ARC does not keep."""
    known(view.pool.disks)
    caches, profile, arc = view.pool.of("cache"), view.needs.profile, view.facts.arc
    yield Row(not caches, "ok", "none: labs need none")
    value = f"{len(caches)} device{'s' * (len(caches) > 1)}"
    headers = 0 if isinstance(arc, Unknown) else arc.get("l2_hdr_size", 0)
    if headers:
        value += f", its index takes {format_size(headers)} of memory"
    kept = profile.data.primarycache
    yield Row(kept == "all", "ok", value)
    value += f"; data volumes of profile {profile.name} have primarycache={kept}"
    advice = f"zpool remove {view.pool.name} {caches[0].path}, if nothing else uses the pool"
    yield Row(True, "note", value, advice)
