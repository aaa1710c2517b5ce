"""``lab engine add``: builds of servers as engines.

What is given is unpacked and looked at apart (lab/imagebuild/foreign), and its programs say what
they are. What they need is known before an image is built. The build is kept as one archive, which
images are made of; its name is an engine from the moment at which its directory has its place.
"""

from __future__ import annotations

import gzip
import os
import platform
import shutil
import stat
import tarfile
import time
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from dataclasses import replace
from functools import partial
from pathlib import Path

from lab.blueprints.dialects import check_version
from lab.config import enginefile
from lab.config.enginefile import Family, families
from lab.errors import Conflict, HostUnfit, InvalidSpec, NotFound
from lab.host import check_space
from lab.imagebuild import added, isolate
from lab.imagebuild.added import BASE, Build, Common
from lab.imagebuild.foreign import apart, libraries, unpack
from lab.imagebuild.foreign.programs import Found, both_names
from lab.imagebuild.recipe import RECIPES, recipes
from lab.lifecycle.core.context import Context
from lab.lifecycle.host.engines import view_of
from lab.locks.named import lock
from lab.names import check_engine_name
from lab.paths import PRIVATE, REACHABLE, exchange, from_user, make_directory, sync, writing
from lab.requests.host import AddEngine, RemoveEngine
from lab.undo import Undo
from lab.units import MIB
from lab.views.catalog import EngineView

_LEFT_OUT = frozenset({"man", "doc"})
"""Directories of all builds that no guest reads, besides those of their families."""
_LIBRARY = ".a"
"""The end of the names of libraries that only compilers read."""

_KEY = "engine-"
# What is in the directory of a command, beside what ``apart`` makes there: no name of an engine.
_MADE = "made"
_FORMER = "former"
"""An engine that makes room for a new one, where the two cannot be exchanged at one moment."""
_REMOVED = "removed"
_WATCHED = 64 * MIB
"""Bytes of a build after which it is looked again whether there is room for more."""

Ask = Callable[[Context, Path, Found, libraries.Choice], Callable[[str], str]]
"""Makes what runs programs of an unpacked build: what each says of its version."""


def _ask(ctx: Context, work: Path, found: Found, choice: libraries.Choice) -> Callable[[str], str]:
    apart.system(work, choice, work / "log", ctx.progress)
    return partial(apart.version_text, work, found)


def add(ctx: Context, asked: AddEngine, *, ask: Ask = _ask) -> EngineView:
    """Add a build as an engine. The same content under the same name changes nothing.

    Raises InvalidSpec for a build that cannot be an engine here, Conflict if the name is taken,
    NotFound if nothing is at the path, HostUnfit.
    """
    name, source = check_engine_name(asked.name), from_user(asked.source).absolute()
    _check_name(name)
    _check_host(source)
    with _working(ctx, name) as work:
        with ctx.progress.step("unpack", f"unpacking {source.name}"):
            kinds = {family.builds: family for family in families() if family.builds}
            commons = {directory: added.common(RECIPES / directory) for directory in kinds}
            room = _room(ctx)
            found = apart.unpacked(source, work, list(commons.values()), min(room, unpack.BYTES))
            _check_machine(found)
        choice = libraries.choose(found.libraries, found.glibc, found.cxx)
        with ctx.progress.step("ask", f"asking its programs, on Debian {choice.suite}"):
            says = ask(ctx, work, found, choice)
            text = says(found.server)
            family = _family(text)
            common = commons[family.builds]
            found = replace(found, programs=both_names(found, common))
            _check_programs(found, common, family)
            version = apart.version(text)
            check_version(family.dialect, version)
            has_client = family.client in found.programs
            if has_client:
                says(found.programs[family.client])
        made = make_directory(work / _MADE, REACHABLE)
        with ctx.progress.step("keep", "keeping the build"), writing(made):
            base = work / apart.FOREIGN / apart.TREE / found.base
            content, size = pack(
                base, made / added.ARCHIVE, lambda: _room(ctx), left_out=common.left_out
            )
        build = Build(
            name=name,
            family=family.name,
            version=version,
            said=text,
            suite=choice.suite,
            packages=(*choice.packages, *(() if has_client else common.client_packages)),
            features=tuple(
                one for one, file in common.features if file in {*found.files, *found.programs}
            ),
            links=tuple(_links(found, common, choice)),
            library_paths=found.library_paths,
            options=tuple(found.options.items()),
            content=content,
            size=size,
            source=str(source),
            added_at=time.time(),
            directory=made,
        )
        for one in found.left_out:
            ctx.progress.note("unpack", f"left out: {one}")
        return _keep(ctx, build, force=asked.force)


def remove(ctx: Context, asked: RemoveEngine) -> None:
    """Remove an added engine; what was made of it stays. Raises NotFound."""
    name = check_engine_name(asked.name)
    place = ctx.home.engines / name
    if not place.is_dir():
        raise NotFound(f"there is no added engine {name!r}", hint="`lab engine ls` lists them")
    with _working(ctx, name) as work:
        place.rename(work / _REMOVED)
        sync(ctx.home.engines)


def _room(ctx: Context) -> int:
    """Bytes that may be used where builds are kept; raises HostUnfit if there are none."""
    free, floor = shutil.disk_usage(ctx.home.root).free, ctx.settings.space_floor
    check_space(free, floor, ctx.home.root)
    return free - floor


@contextmanager
def _working(ctx: Context, name: str) -> Iterator[Path]:
    """A directory for the block, which `lab gc` removes if this process is killed.

    Nobody else adds or removes an engine of that name meanwhile.
    """
    key = f"{_KEY}{name}"
    work = ctx.home.build(key)
    with lock(ctx.home, "image", key), Undo() as undo:
        undo.push(f"build files {work}", lambda: remove_work(ctx, work))
        remove_work(ctx, work)
        yield make_directory(work, REACHABLE)


def remove_work(ctx: Context, work: Path) -> None:
    """Remove the directory of a command that ended; its lock is held.

    If it was ended while it replaced an engine, that engine gets its place back.
    """
    former, place = work / _FORMER, ctx.home.engines / work.name.removeprefix(_KEY)
    if work.name.startswith(_KEY) and former.is_dir() and not place.exists():
        former.rename(place)
        sync(ctx.home.engines)
    isolate.remove_tree(work)


def _keep(ctx: Context, build: Build, *, force: bool) -> EngineView:
    """Give a build its place; raises Conflict if another one has it."""
    there = None
    place = ctx.home.engines / build.name
    try:
        there = added.find(ctx.home.engines, build.name)
    except InvalidSpec:
        force = True  # it cannot be read
    same = there is not None and there.content == build.content
    if there is not None and same:
        ctx.progress.note("engine", f"{build.name} is there already, with the same content")
        found = replace(build, source=there.source, added_at=there.added_at)
        if replace(found, directory=there.directory) == there:
            return view_of(ctx, there)
    if there is not None and not same and not force:
        raise Conflict(
            f"the engine {build.name} is {there.family} {there.version}, with other content than"
            f" {build.source}, which is {build.family} {build.version}",
            hint="choose another name, or replace it with --force: what was made of it stays",
        )
    with writing(place):
        added.write(build)
        sync(build.archive, build.directory / added.FOUND, build.directory)
        make_directory(ctx.home.engines, PRIVATE)
        if not place.exists():
            build.directory.rename(place)
        elif not exchange(build.directory, place):
            place.rename(build.directory.with_name(_FORMER))
            build.directory.rename(place)
        sync(ctx.home.engines)
    return view_of(ctx, added.named(ctx.home.engines, build.name))


def _check_name(name: str) -> None:
    """Raise Conflict if requests mean something else by the name."""
    taken = {*enginefile.engines(), *recipes()}
    taken |= {word for family in families() for word in (family.name, family.engine)}
    if name in taken:
        raise Conflict(
            f"{name} is an engine of lab's own", hint=f"choose another name, such as my-{name}"
        )


def _check_host(source: Path) -> None:
    isolate.check()
    try:
        kind = source.stat().st_mode
    except FileNotFoundError:
        raise NotFound(f"there is no {source}") from None
    except OSError as error:
        raise HostUnfit(f"{source} cannot be read: {error.strerror}") from error
    if not stat.S_ISDIR(kind) and not stat.S_ISREG(kind):
        raise InvalidSpec(f"{source} is neither a file nor a directory")


def _check_machine(found: Found) -> None:
    if found.machine != platform.machine():
        raise InvalidSpec(
            f"the build is for {found.machine}, and guests of this host are {platform.machine()}",
            hint=f"use a build for Linux on {platform.machine()}",
        )


def _family(text: str) -> Family:
    """The family that a server is of, by what it says; raises InvalidSpec."""
    found = next((one for one in families() if one.says and one.says in text), None)
    found = found or next(one for one in families() if one.builds and not one.says)
    if not found.builds:
        raise InvalidSpec(f"builds of {found.title} cannot be added yet", details=[text])
    return found


def _check_programs(found: Found, common: Common, family: Family) -> None:
    """Raise InvalidSpec unless all programs that an image needs are there."""
    absent = [name for name in common.needed if name not in found.programs]
    if absent:
        raise InvalidSpec(
            f"the build of {family.title} has no program {' and no '.join(absent)}",
            hint="give the whole build, or the packages of server and client together",
        )


def _links(found: Found, common: Common, choice: libraries.Choice) -> Iterator[tuple[str, str]]:
    """Links in the guest to the programs and files of a build."""
    for name, path in sorted(found.programs.items()):
        place = "/usr/sbin" if name in common.server else "/usr/bin"
        yield f"{place}/{name}", f"{BASE}/{path}"
    for link, file in common.links:
        if file in found.files:
            yield link, f"{BASE}/{found.files[file]}"
    yield from choice.links


def pack(
    base: Path, target: Path, room: Callable[[], object], *, left_out: Sequence[str] = ()
) -> tuple[str, int]:
    """Write the tree below ``base`` as an archive; the digest of its content, and its bytes.

    ``room`` is called from time to time, and raises an error if the disk has none. ``left_out``:
    the names of directories that are not packed.

    The digest is of paths, kinds, modes and contents: it is the same however the build was packed.
    """
    whole, size, watched = added.Content(), 0, 0
    with (
        target.open("xb") as file,
        gzip.GzipFile("", "wb", 1, file, 0) as packed,
        tarfile.open(fileobj=packed, mode="w|", format=tarfile.PAX_FORMAT) as tar,
    ):
        for path in _paths(base, _LEFT_OUT.union(left_out)):
            info = tarfile.TarInfo(path.relative_to(base).as_posix())
            found = path.lstat()
            if stat.S_ISLNK(found.st_mode):
                info.type, info.linkname = tarfile.SYMTYPE, str(path.readlink())
                tar.addfile(info)
                whole.add(info, info.linkname)
            else:
                info.mode = 0o755 if found.st_mode & 0o100 else 0o644
                info.size = found.st_size
                handle = os.open(path, os.O_RDONLY | os.O_NOFOLLOW | os.O_CLOEXEC)
                with os.fdopen(handle, "rb") as source:
                    reader = added.Hashed(source)
                    tar.addfile(info, reader)
                whole.add(info, reader.digest.hexdigest())
                size += info.size
                if size - watched > _WATCHED:
                    watched = size
                    room()
    return whole.digest, size


def _paths(base: Path, left_out: frozenset[str]) -> Iterator[Path]:
    """Files and links below ``base``, sorted, without those that no guest reads."""
    found = []
    for top, directories, names in os.walk(base):
        here = Path(top)
        found += [here / name for name in names]
        found += [here / name for name in directories if (here / name).is_symlink()]
    for path in sorted(found):
        inside = path.relative_to(base)
        if path.suffix != _LIBRARY and left_out.isdisjoint(inside.parts):
            yield path
