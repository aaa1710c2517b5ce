"""What an unpacked build holds: its server, its programs, and what these need of a system.

Found by looking: nothing is concluded from the names of directories. Runs in a process of its own.
"""

from __future__ import annotations

import os
import re
from collections.abc import Iterator, Mapping, Sequence
from fnmatch import fnmatchcase
from pathlib import Path

from lab.errors import InvalidSpec
from lab.imagebuild.added import Common
from lab.imagebuild.foreign.libraries import Needs, needs
from lab.imagebuild.foreign.unpack import real
from lab.values import dataclass

_DIRECTORIES = ("bin", "sbin", "libexec", "scripts")
_ORIGIN = re.compile(r"\$ORIGIN|\$\{ORIGIN\}")


@dataclass(frozen=True)
class Found:
    """What a build holds; paths are below ``base``, which is below the unpacked tree."""

    base: str
    server: str
    machine: str
    programs: dict[str, str]
    """All programs, by name."""
    files: dict[str, str]
    """Of the files by whose names features are known, those that are there."""
    options: dict[str, str]
    """Directories of the server: plugin_dir, lc_messages_dir, character_sets_dir."""
    libraries: dict[str, str]
    """What the system has to have, each with a program that needs it."""
    library_paths: tuple[str, ...]
    """Directories with libraries that the programs do not find by themselves."""
    glibc: str
    cxx: str
    left_out: tuple[str, ...] = ()


def look(root: Path, kinds: Sequence[Common]) -> Found:
    """What a build that was unpacked to ``root`` holds; raises InvalidSpec if it has no server."""
    base, server = _server(root, kinds)
    everything = list(_files(base))
    own = [pattern for kind in kinds for pattern in kind.own]
    programs = {Path(server).name: server, **dict(_programs(base, Path(server).parent, own))}
    by_name: dict[str, str] = {}
    for path in everything:
        if not _is_inside(base, base / path):
            continue  # a link to what the build does not have
        by_name.setdefault(Path(path).name, path)
    wanted = {name for kind in kinds for _, name in (*kind.features, *kind.links)}
    files = {name: by_name[name] for name in wanted if name in by_name}
    files |= {name: programs[name] for name in wanted if name in programs}
    names = {name for kind in kinds for pair in kind.programs for name in pair}
    called = {programs[name] for name in names & programs.keys()}
    of_system, inside, of_all = _libraries(
        base, [server, *sorted(called), *files.values()], by_name
    )
    machine = of_all[server].machine
    return Found(
        base=base.relative_to(root).as_posix(),
        server=server,
        machine=machine,
        programs=programs,
        files=files,
        options=dict(_options(everything)),
        libraries=of_system,
        library_paths=inside,
        glibc=_newest([one.glibc for one in of_all.values()]),
        cxx=_newest([one.cxx for one in of_all.values()]),
    )


def both_names(found: Found, common: Common) -> dict[str, str]:
    """The programs of a build by their names and by those of other series of its family."""
    programs = dict(found.programs)
    for name, former in common.programs:
        if former and name in programs:
            programs.setdefault(former, programs[name])
        elif former in programs:
            programs[name] = programs[former]
    return programs


def _server(root: Path, kinds: Sequence[Common]) -> tuple[Path, str]:
    """The base directory, and the server below it."""
    names = list(dict.fromkeys(name for kind in kinds for name in kind.server))
    found: dict[Path, list[tuple[int, str]]] = {}
    for path in _files(root):
        its = root / path
        if its.name not in names or its.is_symlink():
            continue
        with its.open("rb") as file:
            if file.read(4) != b"\x7fELF":
                continue
        base = its.parent.parent if its.parent.name in _DIRECTORIES else its.parent
        place = names.index(its.name)
        found.setdefault(base, []).append((place, its.relative_to(base).as_posix()))
    if not found:
        raise InvalidSpec(
            f"there is no server in it: no program {' or '.join(names)}",
            hint="is it the archive of the client, or of a debugger's symbols?",
        )
    nearest = min(len(base.parts) for base in found)
    bases = [base for base in found if len(base.parts) == nearest]
    if len(bases) > 1:
        raise InvalidSpec(
            f"there are {len(bases)} servers in it",
            hint="unpack it, and give the directory of one of them",
            details=[base.relative_to(root).as_posix() for base in sorted(bases)],
        )
    _, server = min(found[bases[0]])
    return bases[0], server


def _files(top: Path) -> Iterator[str]:
    for here, _, names in os.walk(top):
        for name in sorted(names):
            yield (Path(here) / name).relative_to(top).as_posix()


def _is_inside(base: Path, path: Path) -> bool:
    """Whether it is a file of the build, or leads to one."""
    whole = real(path)
    return whole.is_relative_to(real(base)) and whole.is_file()


def _programs(base: Path, beside: Path, own: Sequence[str]) -> Iterator[tuple[str, str]]:
    """Programs by name, links among them; the first directory counts, ``beside`` as the last.

    ``own``: patterns of the names of those that count.
    """
    seen = set()
    for directory in (*_DIRECTORIES, beside):
        place = base / directory
        for path in sorted(place.iterdir()) if place.is_dir() else ():
            fits = any(fnmatchcase(path.name, pattern) for pattern in own)
            fits = fits and _is_inside(base, path)
            if fits and path.name not in seen and os.access(path, os.X_OK):
                seen.add(path.name)
                yield path.name, path.relative_to(base).as_posix()


def _options(files: Sequence[str]) -> Iterator[tuple[str, str]]:
    plugins: dict[str, int] = {}
    for path in files:
        parts = Path(path).parts
        if path.endswith(".so") and parts[-2:-1] == ("plugin",):
            plugins[str(Path(path).parent)] = plugins.get(str(Path(path).parent), 0) + 1
        elif path.endswith("english/errmsg.sys"):
            yield "lc_messages_dir", str(Path(path).parents[1])
        elif path.endswith("charsets/Index.xml"):
            yield "character_sets_dir", str(Path(path).parent)
    if plugins:
        yield "plugin_dir", max(plugins, key=lambda place: plugins[place])


def _libraries(
    base: Path, files: Sequence[str], by_name: Mapping[str, str]
) -> tuple[dict[str, str], tuple[str, ...], dict[str, Needs]]:
    """What the system must have, what the build has itself but not where programs look; all."""
    of_system: dict[str, str] = {}
    places: set[str] = set()
    read: dict[str, Needs] = {}
    waiting = list(files)
    while waiting:
        name = waiting.pop()
        path = base / name
        if name in read or not _is_inside(base, path):
            continue
        with path.open("rb") as file:
            its = needs(file)
        if its is None:
            continue
        read[name] = its
        for library in its.libraries:
            bundled = _bundled(base, path, its, library)
            if bundled is None and library in by_name:
                bundled = by_name[library]
                places.add(str(Path(bundled).parent))
            if bundled is not None:
                waiting.append(bundled)
            else:
                of_system.setdefault(library, name)
    return of_system, tuple(sorted(places)), read


def _bundled(base: Path, path: Path, its: Needs, library: str) -> str | None:
    """The library of the build that a program finds by itself, if it does."""
    whole = real(base)
    for place in its.paths:
        expanded = _ORIGIN.sub(lambda _: str(real(path).parent), place)
        found = Path(os.path.normpath(expanded)) / library
        if found.is_relative_to(whole) and _is_inside(base, found):
            return found.relative_to(whole).as_posix()
    return None


def _newest(versions: Sequence[str]) -> str:
    return max(
        (one for one in versions if one),
        key=lambda text: tuple(int(part) for part in text.split(".") if part.isdecimal()),
        default="",
    )
