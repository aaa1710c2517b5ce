"""Hosts with ZFS, as texts: what their files hold and their programs print.

tests/texts/zfs/*-2.1.txt and *-2.3.txt were printed by OpenZFS 2.1.11 and 2.3.9 on Debian.
Those of FreeBSD and of sick pools are written after the format strings of the sources
(OpenZFS cmd/zpool, FreeBSD sbin/swapon).
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import Any

from lab.config.profile import PROFILES
from lab.errors import CommandFailed, HostUnfit
from lab.host.finding import Finding
from lab.host.zfs.facts import Facts, Needs, Pool, Tunable, Unknown
from lab.host.zfs.read import TUNABLES, read
from lab.host.zfs.source import Source
from lab.units import MIB

NEEDS = Needs("tank/lab", 0, 512 * MIB, 64 * MIB, PROFILES["balanced"])
SECRET = Unknown("/x: Permission denied")

TEXTS = Path(__file__).parents[1] / "texts" / "zfs"


def text(name: str) -> str:
    return (TEXTS / f"{name}.txt").read_text()


@dataclass
class Programs:
    """Answers by the command's words; a program that has none is not installed."""

    answers: dict[str, str | CommandFailed] = field(default_factory=dict)
    asked: list[Sequence[str]] = field(default_factory=list)

    def __call__(self, argv: Sequence[str]) -> str:
        self.asked.append(argv)
        said = self.answers.get(" ".join(argv))
        if said is None:
            if any(known.split()[0] == argv[0] for known in self.answers):
                raise CommandFailed(argv, 1, stderr=f"{argv[0]}: what is {' '.join(argv[1:])}?\n")
            raise HostUnfit(f"{argv[0]} is not installed")
        if isinstance(said, CommandFailed):
            raise said
        return said


def pool_answers(version: str, name: str = "tank") -> dict[str, str | CommandFailed]:
    """What the programs say of one healthy pool."""
    wanted = "available,volmode,dedup"
    return {
        "zfs --version": text(f"version-{version}"),
        "zpool list -Hp -o name": f"{name}\n",
        f"zpool status -x {name}": f"pool '{name}' is healthy\n",
        f"zpool get -Hp -o property,value all {name}": text(f"pool-{version}"),
        f"zfs get -Hp -o property,value {wanted} {name}": text(f"dataset-{version}"),
        f"zfs get -Hp -o property,value {wanted} {name}/lab": text(f"dataset-{version}").replace(
            "volmode\tdefault", "volmode\tdev"
        ),
    }


def linux(root: Path, version: str) -> tuple[Source, Programs]:
    """A Debian host: the files below ``root``, to be changed by the test."""
    programs = Programs(pool_answers(version))
    programs.answers["lvmconfig --type full devices/global_filter devices/filter"] = text(
        "lvmconfig"
    )
    programs.answers["lvmconfig --type full devices/use_devicesfile"] = "use_devicesfile=0\n"
    parameters = {
        "zfs_arc_max": "0",
        "zfs_nocacheflush": "0",
        "zil_nocacheflush": "0",
        "zvol_inhibit_dev": "0",
    }
    for name, value in parameters.items():
        put(root, f"sys/module/zfs/parameters/{name}", f"{value}\n")
    put(root, "proc/spl/kstat/zfs/arcstats", text(f"arcstats-{version}"))
    put(root, "proc/swaps", text("swaps"))
    put(root, "run/udev/control", "")
    put(root, "usr/lib/udev/rules.d/60-zvol.rules", 'PROGRAM=="/usr/lib/udev/zvol_id $devnode"\n')
    return Source(root, programs), programs


def link(path: Path, target: Path) -> None:
    path.parent.mkdir(parents=True, exist_ok=True)
    path.symlink_to(target)


def put(root: Path, path: str, content: str) -> None:
    (root / path).parent.mkdir(parents=True, exist_ok=True)
    (root / path).write_text(content)


def freebsd(root: Path, release: str) -> tuple[Source, Programs]:
    """A FreeBSD host: nothing but programs."""
    names = [name for _, name in TUNABLES.values()]
    programs = Programs(pool_answers("2.3"))
    programs.answers |= {
        "zfs --version": text("version-freebsd-14"),
        "sysctl -n vfs.zfs.version.module": "2.2.9-FreeBSD_g33174af15\n",
        f"sysctl -ei {' '.join(names)}": text(f"sysctl-freebsd-{release}"),
        "sysctl -e kstat.zfs.misc.arcstats": text("arcstats-freebsd"),
        "swapctl -l": text("swapctl"),
    }
    return Source(root, programs), programs


def healthy(root: Path) -> Facts:
    """Those of a Linux host in order, with OpenZFS 2.3."""
    found = read("linux", linux(root, "2.3")[0], "tank/lab")
    assert found
    return found


def healthy_freebsd(root: Path) -> Facts:
    """Those of FreeBSD 14."""
    found = read("freebsd", freebsd(root, "14")[0], "tank/lab")
    assert found
    return found


def pool_of(facts: Facts, **changes: Any) -> Pool:
    """Its first pool, changed."""
    assert not isinstance(facts.pools, Unknown)
    return replace(facts.pools[0], **changes)


def tuned(facts: Facts, **values: int | Unknown) -> Facts:
    """With other tunables."""
    changed = {k: Tunable(facts.tunables[k].name, value) for k, value in values.items()}
    return replace(facts, tunables={**facts.tunables, **changed})


def counted(facts: Facts, **values: int) -> Facts:
    """With other counters of the ARC."""
    assert not isinstance(facts.arc, Unknown)
    return replace(facts, arc={**facts.arc, **values})


def levels(*findings: Finding) -> list[str]:
    return [one.level for one in findings]
