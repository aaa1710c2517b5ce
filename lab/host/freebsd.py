"""FreeBSD as a host of bhyve guests: its memory, and what vm-bhyve needs, judged.

Checks as vm-bhyve does them: util::check_bhyve_support and util::setup in lib/vm-util, lib/vm-base
and zfs::init. Names of sysctls: vmm(4), sys/amd64/vmm/amd/svm.c, if_tuntap(4), if_bridge(4),
inet(4), sys/vm/vm_meter.c (vm.stats.vm). What pfctl(8) prints: print_status and print_rule in
sbin/pfctl/pfctl_parser.c.
"""

from __future__ import annotations

import importlib.util
import re
import sys
from collections.abc import Callable, Iterator

from lab.errors import HostUnfit
from lab.host.finding import Finding, Level
from lab.host.zfs import parse
from lab.host.zfs.facts import Unknown
from lab.host.zfs.source import Source

FIRMWARE = "/usr/local/share/uefi-firmware/BHYVE_UEFI.fd"

ANCHOR = "lab"
"""The anchor of pf that all of ours are in."""
ANCHOR_LINE = f'rdr-anchor "{ANCHOR}/*"'
"""What pf's main ruleset must have, among its translation rules."""
ANCHOR_ADVICE = (
    f"put the line {ANCHOR_LINE} into /etc/pf.conf, before the first block, pass, antispoof or"
    " anchor, then: service pf reload"
)
PF_ADVICE = "sysrc pf_enable=YES && service pf start"
GATEWAY_ADVICE = "sysctl net.inet.ip.forwarding=1; for good: sysrc gateway_enable=YES"

PACKAGES = {"sqlite3": "sqlite3", "_sqlite3": "sqlite3", "cryptography": "cryptography"}
"""Modules that FreeBSD's Python has not, or that pip would have to compile -> their packages."""

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
_AMD = "hw.vmm.svm.features"
_TAP = "net.link.tap.up_on_open"
_FORWARDING = "net.inet.ip.forwarding"
_FILTERED = "net.link.bridge.pfil_member"


def memory(source: Source) -> tuple[int, int]:
    """Bytes available without swapping, and in all; raises HostUnfit if they cannot be read.

    Free and inactive pages count as available, and what ZFS's cache holds above its least: it
    gives that back when it is asked for.
    """
    output = source.output("sysctl", "-ei", *_MEMORY)
    found = {} if isinstance(output, Unknown) else parse.numbers(parse.sysctls(output))
    try:
        pages = found[f"{_PAGES}v_free_count"] + found[f"{_PAGES}v_inactive_count"]
        available, total = pages * found[f"{_PAGES}v_page_size"], found["hw.physmem"]
    except KeyError as missing:
        raise HostUnfit(
            f"the host's memory is not known: no sysctl {missing.args[0]}",
            details=[str(output)] if isinstance(output, Unknown) else [],
        ) from None
    cache = max(0, found.get(f"{_ARC}size", 0) - found.get(f"{_ARC}c_min", 0))
    return min(available + cache, total), total


def check(
    source: Source,
    *,
    published: bool = False,
    find: Callable[[str], object | None] = importlib.util.find_spec,
) -> Iterator[Finding]:
    """What ``lab doctor`` says of a host that is to run guests under vm-bhyve.

    ``published``: other machines are to reach labs. ``find``: what there is of a Python module.
    """
    yield _packages(find)
    yield _module(source)
    yield from _processor(source)
    yield _enabled(source)
    yield _datastore(source)
    yield _firmware(source)
    yield from _network(source, published=published)
    yield _pf(source, published=published)


def _packages(find: Callable[[str], object | None]) -> Finding:
    missing = sorted({PACKAGES[module] for module in PACKAGES if find(module) is None})
    if not missing:
        return Finding("python packages", "ok", "all installed")
    version = f"{sys.version_info.major}{sys.version_info.minor}"
    names = " ".join(f"py{version}-{name}" for name in missing)
    advice = f"pkg install {names}; a venv sees them with --system-site-packages"
    return Finding("python packages", "fail", f"missing: {', '.join(missing)}", advice)


def _module(source: Source) -> Finding:
    # -m: the module works; -n: the file is loaded, as it stays where the processor is unfit.
    if not isinstance(source.output("kldstat", "-qm", "vmm"), Unknown):
        return Finding("vmm", "ok", "loaded")
    if not isinstance(source.output("kldstat", "-qn", "vmm"), Unknown):
        advice = "enable VT-x or AMD-V in the firmware's setup"
        return Finding("vmm", "fail", "loaded, but it found no virtualisation", advice)
    return Finding("vmm", "fail", "not loaded", "kldload vmm; for good: sysrc kld_list+=vmm")


def _processor(source: Source) -> Iterator[Finding]:
    output = source.output("sysctl", "-ei", "hw.model", *_INTEL, _AMD)
    values = {} if isinstance(output, Unknown) else parse.sysctls(output)
    model = values.get("hw.model", "")
    if not model:
        yield Finding("processor", "warn", "its model is not known", "sysctl hw.model")
    elif "Intel" not in model:
        # The module has looked at it too: without nested paging it does not work. All bits are
        # set until it has looked.
        features = values.get(_AMD, "")
        if features.isdigit() and not int(features) & 1:
            advice = "bhyve needs a processor with nested paging (RVI)"
            yield Finding("amd-v", "fail", "no nested paging", advice)
        elif features.isdigit() and int(features) != (1 << 32) - 1:
            yield Finding("amd-v", "ok", "with nested paging")
    elif values.get(_INTEL[0]) != "1":
        advice = "enable VT-x in the firmware's setup, then kldload vmm"
        yield Finding("vt-x", "fail", f"{_INTEL[0]} is not 1", advice)
    elif values.get(_INTEL[1]) != "1":
        advice = "guests boot by firmware, for which bhyve needs a newer processor"
        yield Finding("vt-x", "fail", "no unrestricted guest", advice)
    else:
        yield Finding("vt-x", "ok", "with unrestricted guest")


def _enabled(source: Source) -> Finding:
    output = source.output("vm", "version")
    if isinstance(output, Unknown):
        return Finding("vm-bhyve", "fail", str(output), "pkg install vm-bhyve")
    enabled = source.output("sysrc", "-in", "vm_enable")
    if isinstance(enabled, Unknown) or enabled.strip().lower() not in ("yes", "true", "on", "1"):
        return Finding("vm-bhyve", "fail", "not enabled", "sysrc vm_enable=YES")
    return Finding("vm-bhyve", "ok", output.strip().rpartition(" ")[2])


def _datastore(source: Source) -> Finding:
    output = source.output("sysrc", "-in", "vm_dir")
    place = "" if isinstance(output, Unknown) else output.strip()
    make = "zfs create zroot/vm && sysrc vm_dir=zfs:zroot/vm && vm init"
    if not place:
        return Finding("vm_dir", "fail", "not set", make)
    dataset = place.partition(":")[2] if place.startswith("zfs:") else ""
    if dataset:
        mounted = source.output("zfs", "get", "-Hpo", "value", "mounted", dataset)
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


def _network(source: Source, *, published: bool) -> Iterator[Finding]:
    output = source.output("sysctl", "-ei", _TAP, _FORWARDING, _FILTERED)
    values = {} if isinstance(output, Unknown) else parse.sysctls(output)
    if values.get(_TAP) != "1":
        advice = f"vm init; for good: sysctl {_TAP}=1, and that line in /etc/sysctl.conf"
        yield Finding(_TAP, "warn", values.get(_TAP, "not known: no tap device yet"), advice)
    if values.get(_FORWARDING) == "1":
        yield Finding(
            _FORWARDING,
            "note",
            "on: this host forwards packets, also of guests",
            "let pf keep 100.64.0.0/10 in, unless guests are to reach others",
        )
    elif published:
        now = values.get(_FORWARDING, "not known")
        yield Finding(
            _FORWARDING, "fail", f"{now}: published labs cannot be reached", GATEWAY_ADVICE
        )
    if values.get(_FILTERED) == "1" and not isinstance(_asked(source, "info"), Unknown):
        advice = f"sysctl {_FILTERED}=0, and that line in /etc/sysctl.conf, if pf.conf blocks"
        yield Finding(_FILTERED, "note", "1: pf also filters the traffic between nodes", advice)


def _pf(source: Source, *, published: bool) -> Finding:
    """Whether ports can be led to guests: as important as somebody wants to publish labs."""
    level: Level = "fail" if published else "note"
    if isinstance(source.output("kldstat", "-qm", "pf"), Unknown):
        return Finding("pf", level, "not loaded", _when(PF_ADVICE, published=published))
    status = _asked(source, "info")
    if isinstance(status, Unknown):
        return Finding("pf", level, str(status), "run lab as root")
    if re.search(r"^Status: Enabled\b", status, re.MULTILINE) is None:
        return Finding("pf", level, "disabled", _when(PF_ADVICE, published=published))
    rules = _asked(source, "nat")
    if isinstance(rules, Unknown) or not leads(rules):
        what = f"its main ruleset does not lead to the anchor {ANCHOR}"
        return Finding("pf", level, what, _when(ANCHOR_ADVICE, published=published))
    return Finding("pf", "ok", f"on, and leads to the anchor {ANCHOR}")


def leads(rules: str) -> bool:
    """Whether ``rules``, as ``pfctl -s nat`` prints the main ruleset's, lead to our anchor."""
    return any(re.match(re.escape(ANCHOR_LINE) + r"(?:\s|$)", line) for line in rules.splitlines())


def _asked(source: Source, what: str) -> str | Unknown:
    return source.output("pfctl", "-s", what)


def _when(advice: str, *, published: bool) -> str:
    return advice if published else f"only to publish labs: {advice}"
