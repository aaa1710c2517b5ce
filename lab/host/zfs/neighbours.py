"""Others on the host that open ZVols, and so keep them from being destroyed."""

from __future__ import annotations

import re

from lab.host.finding import Finding
from lab.host.zfs.facts import Facts, Lvm, Needs, Unknown

_BUSY = "`dataset is busy`: what opens a guest's disk keeps it from being removed"
# All of a ZVol's names that LVM may know, by udev's rules.
_NAMES = ("/dev/zd0", "/dev/zvol/tank/lab/x", "/dev/disk/by-diskseq/1", "/dev/block/230:0")
FILTER = 'global_filter = [ "r|^/dev/zd|", "r|^/dev/zvol/|" ]'


def links(facts: Facts, needs: Needs) -> Finding:
    """The links /dev/zvol/<dataset>: udev has a rule of the ZFS package, FreeBSD needs none."""
    topic, seen = "zvol links", facts.neighbours
    why = "/dev/zvol/... is how a volume's device is found"
    if facts.system == "freebsd":
        return Finding(topic, "ok", "made by the kernel", why=why)
    if not seen.udev:
        return Finding(topic, "note", "udev does not run: lab looks for devices itself", why=why)
    if not seen.link_rule:
        advice = "install zfsutils-linux, or remove an empty /etc/udev/rules.d/60-zvol.rules"
        return Finding(topic, needs.level("warn"), "udev has no 60-zvol.rules", advice, why)
    return Finding(topic, "ok", seen.link_rule, why=why)


def lvm(facts: Facts, needs: Needs) -> Finding:
    """LVM reads every block device that its filters and its devices file do not keep out.

    It counts ZVols among the kinds of devices that it knows (lib/device/device-types.h).
    """
    topic, found = "lvm and zvols", facts.neighbours.lvm
    if facts.system == "freebsd" or found is None:
        return Finding(topic, "ok", "no LVM here", why=_BUSY)
    if isinstance(found, Unknown):
        return Finding(topic, "note", str(found), why=_BUSY)
    if found.devices_file:
        return Finding(topic, "ok", "left alone: LVM has a devices file", why=_BUSY)
    kept_out = keeps_out(found)
    if kept_out:
        return Finding(topic, "ok", "left alone: LVM's filters keep them out", why=_BUSY)
    advice = f"in /etc/lvm/lvm.conf, section devices: {FILTER}; then update-initramfs -u"
    value = "LVM opens them" if kept_out is False else "unknown: a filter of LVM is not readable"
    return Finding(topic, needs.level("warn"), value, advice, _BUSY)


def keeps_out(found: Lvm) -> bool | None:
    """True if a filter rejects ZVols; None if one cannot be read.

    lvm.conf(5): for each name of a device the first pattern that matches counts; one name
    that is accepted makes the device accepted, and if none matches it is accepted too.
    """
    answers = [_rejects(patterns) for patterns in found.filters]
    return True if True in answers else None if None in answers else False


def _rejects(patterns: tuple[str, ...]) -> bool | None:
    verdicts = set()
    for name in _NAMES:
        for pattern in patterns:
            kind, rest = pattern[:1], pattern[1:]
            try:
                matches = re.search(rest[1:].rstrip(rest[:1]), name)
            except re.error:
                return None
            if matches:
                verdicts.add(kind)
                break
    return "a" not in verdicts and "r" in verdicts


def multipath(facts: Facts, needs: Needs) -> Finding:
    """By default multipathd takes SCSI, DASD and NVMe only; blacklist_exceptions may name more."""
    del needs
    topic = "multipath and zvols"
    taken = [name for name in facts.neighbours.multipath if _matches(name, "zd0")]
    if taken:
        advice = (
            "take it out of blacklist_exceptions in /etc/multipath.conf; multipathd reconfigure"
        )
        value = f"multipathd is configured to take them: {', '.join(taken)}"
        return Finding(topic, "warn", value, advice, _BUSY)
    return Finding(topic, "ok", "left alone", why=_BUSY)


def _matches(expression: str, name: str) -> bool:
    try:
        return re.search(expression, name) is not None
    except re.error:
        return False


def holders(facts: Facts, needs: Needs) -> Finding:
    """What the kernel has stacked on ZVols right now: the cause itself, not a likely one."""
    del needs
    topic, found = "zvols in use", facts.neighbours.holders
    if found is None:
        return Finding(topic, "ok", "by guests only", why=_BUSY)
    if isinstance(found, Unknown):
        return Finding(topic, "note", str(found), why=_BUSY)
    if not found:
        return Finding(topic, "ok", "nothing is stacked on them", why=_BUSY)
    first, kind = next(iter(found.items()))
    value = ", ".join(f"{device} by {holder}" for device, holder in list(found.items())[:3])
    if len(found) > 3:
        value += f" and {len(found) - 3} more"
    if kind.startswith("mpath-"):
        advice = f"multipath -f /dev/{first}, and blacklist zd* in /etc/multipath.conf"
    elif kind.startswith("LVM-"):
        advice = f"vgchange -an the group on /dev/{first} (pvs); then keep LVM away from ZVols"
    else:
        advice = f"lsblk /dev/{first} shows what it is"
    return Finding(topic, "warn", value, advice, _BUSY)


def swap(facts: Facts, needs: Needs) -> Finding:
    """Swap on a ZVol: to free memory ZFS then needs memory (openzfs/zfs#7734)."""
    del needs
    topic, found = "swap", facts.neighbours.swaps
    why = "writing to a ZVol takes memory: when there is none left, the host hangs"
    if isinstance(found, Unknown):
        return Finding(topic, "note", str(found), why=why)
    ours = [device for device in found if re.match(r"/dev/(zd[0-9]|zvol/)", device)]
    if ours:
        advice = f"swapoff {ours[0]}; for good: swap on a partition, in /etc/fstab"
        return Finding(topic, "warn", f"on a ZVol: {', '.join(ours)}", advice, why)
    return Finding(topic, "ok", "on no ZVol", why=why)
