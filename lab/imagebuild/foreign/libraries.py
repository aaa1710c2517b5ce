"""What programs need of a system, as their files say it, and the Debian release that has it."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import field
from pathlib import Path
from typing import IO, Any

from lab.config import tomlfile
from lab.errors import InvalidSpec
from lab.imagebuild.recipe import RECIPES
from lab.keys import WrongType, complete, keys, parse_all
from lab.values import dataclass

FILE = RECIPES / "libraries.toml"
_OF_C = frozenset({
    "ld-linux-x86-64.so.2", "libanl.so.1", "libc.so.6", "libdl.so.2", "libm.so.6", "libnsl.so.1",
    "libpthread.so.0", "libresolv.so.2", "librt.so.1", "libutil.so.1",
})  # fmt: skip
"""Libraries of the C library's own package."""
_MACHINES = {"EM_X86_64": "x86_64", "EM_AARCH64": "aarch64", "EM_386": "i386", "EM_PPC64": "ppc64"}


@dataclass(frozen=True)
class Needs:
    """What an ELF file needs."""

    machine: str
    libraries: tuple[str, ...] = ()
    glibc: str = ""
    """The newest version of the C library's symbols; empty: none."""
    cxx: str = ""
    """The same of the C++ library's."""
    paths: tuple[str, ...] = ()
    """Where it looks for libraries first (DT_RPATH, DT_RUNPATH)."""


def needs(file: IO[bytes]) -> Needs | None:
    """What an ELF file needs; None if it is none. Raises InvalidSpec if it is damaged."""
    from elftools.elf.dynamic import DynamicSection
    from elftools.elf.elffile import ELFFile
    from elftools.elf.gnuversions import GNUVerNeedSection

    if file.read(4) != b"\x7fELF":
        return None
    try:
        elf = ELFFile(file)
        tags: list[Any] = [
            tag
            for section in elf.iter_sections()
            if isinstance(section, DynamicSection)
            for tag in section.iter_tags()
        ]
        versions = [
            one.name
            for section in elf.iter_sections()
            if isinstance(section, GNUVerNeedSection)
            for _, its in section.iter_versions()
            for one in its
        ]
        machine = str(elf["e_machine"])
    except MemoryError:
        raise
    except Exception as error:  # noqa: BLE001  the library has assertions, and no error of its own
        why = str(error)[:200] or type(error).__name__
        raise InvalidSpec(f"a program of the build is damaged: {why}") from None
    paths = [
        one
        for tag in tags
        if tag.entry.d_tag in ("DT_RPATH", "DT_RUNPATH")
        for one in (tag.rpath if tag.entry.d_tag == "DT_RPATH" else tag.runpath).split(":")
    ]
    return Needs(
        machine=_MACHINES.get(machine, machine),
        libraries=tuple(tag.needed for tag in tags if tag.entry.d_tag == "DT_NEEDED"),
        glibc=_newest(versions, "GLIBC_"),
        cxx=_newest(versions, "GLIBCXX_"),
        paths=tuple(paths),
    )


def _newest(versions: list[str], prefix: str) -> str:
    found = [one.removeprefix(prefix) for one in versions if one.startswith(prefix)]
    return max((one for one in found if one[:1].isdecimal()), key=_number, default="")


def _number(version: str) -> tuple[int, ...]:
    return tuple(int(part) for part in version.split(".") if part.isdecimal())


@dataclass(frozen=True)
class Release:
    """A release of Debian's; see images/libraries.toml."""

    glibc: str
    cxx: str

    def has(self, glibc: str, cxx: str) -> bool:
        """Whether its C and C++ libraries are new enough."""
        pairs = ((self.glibc, glibc), (self.cxx, cxx))
        return all(not its or _number(asked) <= _number(its) for its, asked in pairs)


@dataclass(frozen=True)
class Debian:
    """Releases, and in which packages libraries are."""

    releases: Mapping[str, Release]
    libraries: Mapping[str, Mapping[str, str]]
    """The package of each, by release; a word behind it is its name there."""
    gone: Mapping[str, str]


def _plain(value: object) -> Any:
    if not isinstance(value, dict):
        raise WrongType
    return value


def debian(file: Path = FILE) -> Debian:
    """What images/libraries.toml says; raises InvalidSpec."""
    tables = tomlfile.loads(file.read_bytes(), file)
    releases = {
        name: complete(Release, _parsed(table, file), file)
        for name, table in _plain(tables["releases"]).items()
    }
    libraries = {
        name: one if isinstance(one, dict) else dict.fromkeys(releases, one)
        for name, one in _plain(tables["libraries"]).items()
    }
    return Debian(releases, libraries, _plain(tables["gone"]))


def _parsed(table: object, file: Path) -> dict[str, Any]:
    return parse_all(keys(Release), table, file)


@dataclass(frozen=True)
class Choice:
    """The release for a build, and what it gets of it."""

    suite: str
    packages: tuple[str, ...]
    links: tuple[tuple[str, str], ...] = field(default=())
    """Further names of libraries: absolute paths, and what they lead to."""


def choose(wanted: Mapping[str, str], glibc: str, cxx: str, known: Debian | None = None) -> Choice:
    """The first release with all libraries ``wanted``, each with a program that needs it.

    Raises InvalidSpec with every library that none has, or that no release has together.
    """
    known = known or debian()
    asked = {name: why for name, why in wanted.items() if name not in _OF_C}
    absent = [name for name in asked if name not in known.libraries]
    if absent:
        raise InvalidSpec(
            f"no release of Debian's that guests can have has {', '.join(sorted(absent))}",
            hint="use a build for a newer system, or put the library into its directory lib",
            details=[f"{asked[name]} needs {name}{_had(known, name)}" for name in sorted(absent)],
        )
    for suite, release in known.releases.items():
        if release.has(glibc, cxx) and all(suite in known.libraries[name] for name in asked):
            return _choice(known, suite, list(asked))
    details = [
        f"{asked[name]} needs {name}: {', '.join(known.libraries[name])}"
        for name in sorted(asked)
        if len(known.libraries[name]) < len(known.releases)
    ]
    details += [f"it needs GLIBC_{glibc}{f' and GLIBCXX_{cxx}' if cxx else ''}"]
    raise InvalidSpec(
        "no release of Debian's that guests can have has all that the build needs",
        hint="use a build for another system: the libraries below are of different releases",
        details=details,
    )


def _had(known: Debian, name: str) -> str:
    return f" ({known.gone[name]})" if name in known.gone else " (no known package)"


def _choice(known: Debian, suite: str, names: list[str]) -> Choice:
    packages, links = set(), []
    for name in names:
        package, _, there = known.libraries[name][suite].partition(" ")
        packages.add(package)
        if there:
            links.append((f"/usr/lib/x86_64-linux-gnu/{name}", there))
    return Choice(suite, tuple(sorted(packages)), tuple(sorted(links)))
