"""FreeBSD as a host of bhyve guests: its memory, and what vm-bhyve needs, judged.

Checks as vm-bhyve does them: util::check_bhyve_support and util::setup in lib/vm-util, lib/vm-base
and zfs::init. Names of sysctls: vmm(4), if_tuntap(4), inet(4), sys/vm/vm_meter.c (vm.stats.vm).
"""

from __future__ import annotations

from collections.abc import Iterator

from lab.errors import HostUnfit
from lab.host.finding import Finding
from lab.host.zfs import parse
from lab.host.zfs.facts import Unknown
from lab.host.zfs.source import Source

FIRMWARE = "/usr/local/share/uefi-firmware/BHYVE_UEFI.fd"

_ARC = "kstat.zfs.misc.arcstats."
_PAGES = "vm.stats.vm."
_MEMORY = (
    "hw.physmem",
    f"{_PAGES}v_page_size",
    f"{_PAGES}v_free_count",
    f"{_PAGES}v_inactive_count",
    f"{_ARC}size",
    f"{_ARC}c_min",
)
_INTEL = ("hw.vmm.vmx.initialized", "hw.vmm.vmx.cap.unrestricted_guest")
_TAP = "net.link.tap.up_on_open"
_FORWARDING = "net.inet.ip.forwarding"


def memory(source: Source) -> tuple[int, int]:
    """Bytes available without swapping, and in all; raises HostUnfit if they cannot be read.

    Free and inactive pages count as available, and what ZFS's cache holds above its least: it
    gives that back when it is asked for.
    """
    said = source.said("sysctl", "-ei", *_MEMORY)
    found = {} if isinstance(said, Unknown) else parse.numbers(parse.sysctls(said))
    try:
        pages = found[f"{_PAGES}v_free_count"] + found[f"{_PAGES}v_inactive_count"]
        available, total = pages * found[f"{_PAGES}v_page_size"], found["hw.physmem"]
    except KeyError as missing:
        raise HostUnfit(
            f"the host's memory is not known: no sysctl {missing.args[0]}",
            details=[str(said)] if isinstance(said, Unknown) else [],
        ) from None
    cache = max(0, found.get(f"{_ARC}size", 0) - found.get(f"{_ARC}c_min", 0))
    return min(available + cache, total), total


def look(source: Source) -> Iterator[Finding]:
    """What ``lab doctor`` says of a host that is to run guests under vm-bhyve."""
    yield _module(source)
    yield from _processor(source)
    yield _enabled(source)
    yield _datastore(source)
    yield _firmware(source)
    yield from _network(source)


def _module(source: Source) -> Finding:
    # -m: the module works; -n: the file is loaded, as it stays where the processor is unfit.
    if not isinstance(source.said("kldstat", "-qm", "vmm"), Unknown):
        return Finding("vmm", "ok", "loaded")
    if not isinstance(source.said("kldstat", "-qn", "vmm"), Unknown):
        advice = "switch on VT-x or AMD-V in the firmware's setup"
        return Finding("vmm", "fail", "loaded, but it found no virtualisation", advice)
    return Finding("vmm", "fail", "not loaded", "kldload vmm; for good: sysrc kld_list+=vmm")


def _processor(source: Source) -> Iterator[Finding]:
    said = source.said("sysctl", "-ei", "hw.model", *_INTEL)
    values = {} if isinstance(said, Unknown) else parse.sysctls(said)
    if "Intel" not in values.get("hw.model", ""):
        return  # on AMD the module itself refuses where nested paging is missing
    if values.get(_INTEL[0]) != "1":
        advice = "switch on VT-x in the firmware's setup, then kldload vmm"
        yield Finding("vt-x", "fail", f"{_INTEL[0]} is not 1", advice)
    elif values.get(_INTEL[1]) != "1":
        advice = "guests boot by firmware, for which bhyve needs a newer processor"
        yield Finding("vt-x", "fail", "no unrestricted guest", advice)
    else:
        yield Finding("vt-x", "ok", "with unrestricted guest")


def _enabled(source: Source) -> Finding:
    said = source.said("vm", "version")
    if isinstance(said, Unknown):
        return Finding("vm-bhyve", "fail", str(said), "pkg install vm-bhyve")
    enabled = source.said("sysrc", "-in", "vm_enable")
    if isinstance(enabled, Unknown) or enabled.strip().lower() not in ("yes", "true", "on", "1"):
        return Finding("vm-bhyve", "fail", "not enabled", "sysrc vm_enable=YES")
    return Finding("vm-bhyve", "ok", said.strip().rpartition(" ")[2])


def _datastore(source: Source) -> Finding:
    said = source.said("sysrc", "-in", "vm_dir")
    place = "" if isinstance(said, Unknown) else said.strip()
    make = "zfs create zroot/vm && sysrc vm_dir=zfs:zroot/vm && vm init"
    if not place:
        return Finding("vm_dir", "fail", "not set", make)
    dataset = place.partition(":")[2] if place.startswith("zfs:") else ""
    if dataset:
        mounted = source.said("zfs", "get", "-Hpo", "value", "mounted", dataset)
        if isinstance(mounted, Unknown):
            return Finding("vm_dir", "fail", f"{dataset}: {mounted}", f"zfs create {dataset}")
        if mounted.strip() != "yes":
            return Finding("vm_dir", "fail", f"{dataset} is not mounted", f"zfs mount {dataset}")
    elif not source.exists(place):
        return Finding("vm_dir", "fail", f"{place} does not exist", f"mkdir {place} && vm init")
    return Finding("vm_dir", "ok", place)


def _firmware(source: Source) -> Finding:
    if source.exists(FIRMWARE):
        return Finding("firmware", "ok", FIRMWARE)
    return Finding("firmware", "fail", f"no {FIRMWARE}", "pkg install bhyve-firmware")


def _network(source: Source) -> Iterator[Finding]:
    said = source.said("sysctl", "-ei", _TAP, _FORWARDING)
    values = {} if isinstance(said, Unknown) else parse.sysctls(said)
    if values.get(_TAP) != "1":
        advice = f"vm init; for good: sysctl {_TAP}=1, and that line in /etc/sysctl.conf"
        yield Finding(_TAP, "warn", values.get(_TAP, "not known: no tap device yet"), advice)
    if values.get(_FORWARDING) == "1":
        yield Finding(
            _FORWARDING,
            "note",
            "on: this host passes packets on, also from guests",
            "let pf keep 100.64.0.0/10 in, unless guests are to reach others",
        )
    if isinstance(source.said("kldstat", "-qm", "pf"), Unknown):
        yield Finding("pf", "note", "not loaded", "only to publish labs: sysrc pf_enable=YES")
    else:
        yield Finding("pf", "ok", "loaded")
