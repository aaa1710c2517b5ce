"""Parsers of what ZFS and its tools print, on their real formats, cut off and malformed too."""

from __future__ import annotations

import time
from collections.abc import Callable
from typing import Any

import pytest

from lab.host.zfs import parse
from lab.host.zfs.facts import Disk, Scan, Status, Unknown, Versions
from lab.host.zfs.parse import status
from tests.support.zfs_hosts import text


@pytest.mark.parametrize(
    ("name", "expected"),
    [
        ("version-2.1", Versions("2.1.11-1+deb12u1", "2.1.11-1+deb12u1")),
        ("version-freebsd-14", Versions("2.2.9-FreeBSD_g33174af15", "2.2.9-FreeBSD_g33174af15")),
    ],
)
def test_versions(name: str, expected: Versions) -> None:
    assert parse.versions(text(name)) == expected


def test_version_without_a_module() -> None:
    assert parse.versions("zfs-2.3.9-1\n") == Versions("2.3.9-1", "")
    assert parse.versions("ZFS? never heard\n") == Versions("", "")


@pytest.mark.parametrize(("name", "most"), [("2.1", 1564215296), ("2.3", 2049089536)])
def test_arcstats_of_linux(name: str, most: int) -> None:
    """Protects the figures: the header's numbers are none of them."""
    found = parse.kstat(text(f"arcstats-{name}"))
    assert found["c_max"] == most
    assert found["memory_available_bytes"] > 0
    assert not {"12", "19", "name"} & set(found)


def test_arcstats_of_freebsd() -> None:
    found = parse.numbers(parse.sysctls(text("arcstats-freebsd")), "kstat.zfs.misc.arcstats.")
    assert found["c_max"] == 33179013120
    assert found["memory_available_bytes"] == -1048576


def test_sysctls_that_are_no_assignments() -> None:
    """Protects from taking a complaint for a variable."""
    said = "sysctl: unknown oid 'vfs.zfs.x=1'\nvfs.zfs.vol.mode=2\nhw.model=A = B\nnonsense\n"
    assert parse.sysctls(said) == {"vfs.zfs.vol.mode": "2", "hw.model": "A = B"}
    assert parse.numbers({"a": "1", "b": "-2", "c": "3x", "d": ""}) == {"a": 1, "b": -2}


@pytest.mark.parametrize("version", ["2.1", "2.3"])
def test_devices_of_a_pool(version: str) -> None:
    """Protects what each device is for: sections differ in width between versions."""
    tun = [f"/var/tmp/tun{n}" for n in range(8)]
    assert parse.disks(text(f"list-{version}")) == (
        Disk(tun[1], "data", "mirror-0"),
        Disk(tun[2], "data", "mirror-0"),
        Disk(tun[6], "special", "mirror-1"),
        Disk(tun[7], "special", "mirror-1"),
        Disk(tun[3], "logs", "mirror-2"),
        Disk(tun[4], "logs", "mirror-2"),
        Disk(tun[5], "cache"),
    )
    names = parse.tops(text(f"list-{version}"), ("data", "special", "logs"))
    assert names == ["mirror-0", "mirror-1", "mirror-2"]


def test_devices_that_are_replaced_or_spare() -> None:
    """Protects groups within groups, and devices that are gone."""
    by_id = "/dev/disk/by-id/ata-ST2000NM"
    assert parse.disks(text("list-disks")) == (
        Disk(f"{by_id}-1-part1", "data", "mirror-0"),
        Disk("13847839271348291137", "data", "mirror-0"),
        Disk(f"{by_id}-9-part1", "data", "mirror-0"),
        Disk("/dev/sdc1", "data"),
        Disk("/dev/nvme0n1p1", "logs"),
        Disk("/dev/nvme0n1p2", "cache"),
        Disk(f"{by_id}-9-part1", "spare"),
    )
    assert parse.tops(text("list-disks"), ("data", "logs")) == [
        "mirror-0",
        "/dev/sdc1",
        "/dev/nvme0n1p1",
    ]


def test_ashifts() -> None:
    three = {"mirror-0": 12, "mirror-1": 12, "mirror-2": 12}
    assert parse.ashifts(text("ashift-2.3")) == three
    assert parse.ashifts("root-0\t0\nsda\t-\nsdb\t9\n") == {"sdb": 9}
    assert parse.cached_ashifts(text("zdb-2.1"), "tank") == three
    assert parse.cached_ashifts(text("zdb-2.1"), "other") == {}


def test_cached_ashifts_of_several_pools() -> None:
    """Protects from another pool's figure: the cache file holds all of them."""
    child = "        children[0]:\n            type: 'disk'\n            id: 0\n"
    pools = "".join(
        f"{name}:\n    version: 5000\n    vdev_tree:\n        type: 'root'\n{child}"
        f"            path: '/dev/{name}1'\n            ashift: {shift}\n"
        for name, shift in (("a", 9), ("b", 12), ("c", 13))
    )
    assert parse.cached_ashifts(pools, "b") == {"/dev/b1": 12}


def test_properties() -> None:
    found = parse.properties(text("pool-2.3"))
    assert (found["ashift"], found["autotrim"], found["expandsize"]) == ("12", "off", "-")
    assert found["feature@lz4_compress"] == "active"


def when(words: str) -> float:
    return time.mktime(time.strptime(words, "%Y-%m-%d %H:%M:%S"))


def test_status_of_a_sound_pool() -> None:
    scan = Scan("scrub", "finished", when("2026-11-21 11:42:37"))
    assert status(text("status-2.3")) == Status(
        "ONLINE", scans=(scan,), errors="No known data errors"
    )


def test_status_of_a_sick_pool() -> None:
    """Protects long texts, two scans, and the end of the first pool."""
    found = status(text("status-sick"))
    assert found == Status(
        "DEGRADED",
        "One or more devices has experienced an error resulting in data corruption."
        " Applications may be affected.",
        "Restore the file in question if possible. Otherwise restore the entire pool from backup.",
        (
            Scan("scrub", "finished", when("2026-11-01 03:37:12"), 2),
            Scan("resilver", "running", when("2026-11-21 09:00:00")),
        ),
        "2 data errors, use '-v' for a list",
    )


def test_status_that_is_none() -> None:
    assert isinstance(status(""), Unknown)
    assert isinstance(status("no such pool\n"), Unknown)
    assert isinstance(status("  pool: tank\n state: ONLIN"), Unknown)
    strange = status("  pool: tank\n state: ONLINE\n  scan: levitated on Foo Bar\nerrors: ?\n")
    assert strange == Status("ONLINE", errors="?")


@pytest.mark.parametrize(
    ("line", "expected"),
    [
        ("none requested", ()),
        ("scrub canceled on Sun Nov  1 03:37:12 2026", ("scrub", "canceled")),
        ("scrub in progress since Sun Nov  1 03:37:12 2026", ("scrub", "running")),
        ("scrub paused since Sun Nov  1 03:37:12 2026", ("scrub", "paused")),
        ("resilvered 1G in 00:01:00 with 0 errors on Sun Nov  1 03:37:12 2026",
         ("resilver", "finished")),
        ("resilver (mirror-0) canceled on Sun Nov  1 03:37:12 2026", ("resilver", "canceled")),
        ("scrubbed 3 error blocks in 0 days 00:01:00 on Sun Nov  1 03:37:12 2026", ()),
    ],
)  # fmt: skip
def test_scans(line: str, expected: tuple[str, ...]) -> None:
    found = status(f"  pool: tank\n state: ONLINE\n  scan: {line}\nerrors: none\n")
    assert isinstance(found, Status)
    assert [(scan.kind, scan.state) for scan in found.scans] == ([expected] if expected else [])
    assert all(scan.at == when("2026-11-01 03:37:12") for scan in found.scans)


def test_a_time_that_cannot_be_read_is_none() -> None:
    found = status("  pool: t\n state: ONLINE\n  scan: scrub canceled on soon\nerrors: x\n")
    assert isinstance(found, Status)
    assert found.scans == (Scan("scrub", "canceled", None),)


def test_diskinfo() -> None:
    found = parse.diskinfo(text("diskinfo"))
    assert (found["sectorsize"], found["stripesize"]) == ("512", "4096")
    assert (found["TRIM/UNMAP support"], found["Rotation rate in RPM"]) == ("Yes", "0")


def test_swaps() -> None:
    assert parse.swaps(text("swaps")) == ("/dev/dm-1", "/dev/zd16")
    assert parse.swaps(text("swapctl")) == ("/dev/ada0p2", "/dev/zvol/zroot/swap")
    assert parse.swaps("Filename\tType\tSize\tUsed\tPriority\n") == ()


PARSERS: list[tuple[Callable[[str], Any], str]] = [
    (parse.versions, "version-2.3"),
    (parse.kstat, "arcstats-2.1"),
    (parse.sysctls, "sysctl-freebsd-15"),
    (parse.properties, "pool-2.1"),
    (parse.ashifts, "ashift-2.3"),
    (parse.diskinfo, "diskinfo"),
    (parse.swaps, "swapctl"),
    (parse.disks, "list-disks"),
    (lambda said: parse.cached_ashifts(said, "tank"), "zdb-2.1"),
    (status, "status-sick"),
]


@pytest.mark.parametrize(("parser", "name"), PARSERS)
def test_texts_that_were_cut_off(parser: Callable[[str], Any], name: str) -> None:
    """Protects from half a number: what a shorter text says, the whole one says too."""
    whole = text(name)
    full = parser(whole)
    for length in range(0, len(whole), 3):
        part = parser(whole[:length])
        if isinstance(part, dict):
            assert part.items() <= full.items()
        elif isinstance(part, tuple):
            assert part == full[: len(part)]


@pytest.mark.parametrize(("parser", "name"), PARSERS)
def test_texts_of_another_form(parser: Callable[[str], Any], name: str) -> None:
    """Protects doctor from a version that prints something else."""
    for said in ("", "\n\n\n", "\x00\xff\n" * 3, text(name).replace("\t", " "), "=\n#\n:\n\t\n"):
        parser(said)
