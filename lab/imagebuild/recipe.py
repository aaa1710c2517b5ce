"""Recipes: what an image is made of, read from ``images/<name>/recipe.toml``."""

from __future__ import annotations

from pathlib import Path
from typing import Annotated

from lab.config import tomlfile
from lab.config.enginefile import family_of
from lab.errors import InvalidSpec, NotFound
from lab.imagebuild import added
from lab.imagebuild.added import Build
from lab.keys import Given, Key, WrongType, complete, keys, list_of, matching
from lab.suggest import did_you_mean
from lab.units import GIB, MIB, SIZE
from lab.values import dataclass

HERE = Path(__file__).parent
RECIPES = HERE.parent / "recipes"
"""Where the recipes are, a directory each: `images/` of a checkout, by a link."""

GUEST = RECIPES / "guest"
"""What all recipes share: files, a provision script and ``guest.toml``."""

DIALECTS = RECIPES / "dialects"
"""What recipes of servers share, a directory for each dialect: files."""


def _disk(value: object) -> int:
    size = int(SIZE.parse(value))
    if size < 2 * GIB or size % MIB:
        raise WrongType
    return size


_PACKAGE = matching("a package's name", r"[a-z0-9][a-z0-9+.-]+")  # Debian Policy 5.6.7
_URL = matching("an http or https URL", r"https?://[^\s\]]+")
_COMPONENT = matching("a component such as main", r"[a-z][a-z0-9.-]*")
_FILE = matching("a file's name", r"[\w#.-]+")
_Word = Annotated[str, matching("a word of small letters, digits and hyphens", r"[a-z][a-z0-9-]*")]
_Path = Annotated[str, matching("an absolute path in the guest", r"(/[\w.-]+)+")]
_Packages = Annotated[tuple[str, ...], list_of("a list of names of packages", _PACKAGE)]


@dataclass(frozen=True)
class Repository:
    """Signed APT repositories of one owner, besides Debian's."""

    urls: Annotated[tuple[str, ...], list_of("a list of http or https URLs", _URL)]
    """The first has the engine; only its reachability is checked before a build
    (``reachable``). A build needs all of them: apt fails if one does not have ``suite``."""
    suite: _Word
    """The suite of all of them."""
    component: Annotated[str, _COMPONENT]
    """The component of all of them."""
    key_url: Annotated[str, _URL]
    """Where the public key is fetched from at build time."""
    key_fingerprint: Annotated[
        str, matching("40 hexadecimal digits, capital letters", "[0-9A-F]{40}")
    ]
    """This alone decides whether the key is trusted."""


@dataclass(frozen=True)
class Recipe:
    """An image as described; paths as the guest sees them."""

    name: Given[str]
    """The name of its directory."""
    engine: _Word
    """The engine that is installed."""
    suite: _Word
    """Debian's release."""
    disk: Annotated[int, Key("a size in whole MiB, 2G or more", _disk)]
    """The size of the system volume, in bytes."""
    packages: _Packages
    """The packages to install, besides those of all guests."""
    version_package: Annotated[str, _PACKAGE]
    """The package whose version is the engine's; empty if a build has it."""
    service: Annotated[str, matching("a systemd unit, such as mysql.service", r"[\w@.-]+\.service")]
    """The engine's systemd unit."""
    user: _Word
    """The engine's account."""
    config: _Path
    """The engine's option file."""
    directory: Given[Path]
    """Where the recipe is."""
    log_files: Annotated[tuple[str, ...], list_of("a list of names of files", _FILE)] = ()
    """The files of the data directory that are kept on a log volume, where there is one."""
    repository: Repository | None = None
    """Where packages come from that Debian does not have."""
    occupied: _Path = ""
    """A directory that holds a file while packages are installed, for packages that initialise
    an empty one; the recipe's ``provision`` empties it."""
    build: Given[Build | None] = None
    """The programs of the engine, where they are not of a package."""


@dataclass(frozen=True)
class Guest:
    """What all guests have."""

    packages: _Packages
    """The packages to install."""
    cmdline: Annotated[str, matching("the kernel's command line", r"[^\n]+")]
    """The kernel's command line."""


def recipes(root: Path = RECIPES) -> list[str]:
    """The names of all recipes below ``root``, sorted."""
    return sorted(path.parent.name for path in root.glob("*/recipe.toml"))


def load(name: str, root: Path = RECIPES, *, engines: Path | None = None) -> Recipe:
    """The recipe called ``name``; raises NotFound, or InvalidSpec if it is not sound.

    ``engines``: where the builds are that were added to a home, each a recipe as well.
    """
    known = recipes(root)
    if name not in known:
        if engines is not None and name in (there := added.families(engines)):
            return of_build(added.named(engines, name), root)
        known += there if engines is not None else ()
        have = f"recipes are: {', '.join(known)}"
        raise NotFound(
            f"there is no image recipe {name!r}", hint=did_you_mean(name, known, otherwise=have)
        )
    directory = root / name
    path = directory / "recipe.toml"
    recipe = complete(
        Recipe, tomlfile.read(path, keys(Recipe)), path, name=name, directory=directory
    )
    for needed in ("provision", "my.cnf"):
        if not (directory / needed).is_file():
            raise InvalidSpec(f"the recipe {name} has no file {needed}")
    return recipe


def of_build(build: Build, root: Path = RECIPES) -> Recipe:
    """The recipe that a build is; raises InvalidSpec if its family takes none."""
    family = family_of(build.family)
    if not family.builds:
        raise InvalidSpec(f"builds of {family.title} cannot be images")
    common = added.common(root / family.builds)
    return Recipe(
        name=build.name,
        engine=family.recorded or family.name,
        suite=build.suite,
        disk=common.disk,
        packages=tuple(sorted({*common.packages, *build.packages})),
        version_package="",
        service=common.service,
        user=common.user,
        config=common.config,
        log_files=common.log_files,
        directory=root / family.builds,
        build=build,
    )


def load_guest(directory: Path = GUEST) -> Guest:
    """What ``guest.toml`` in ``directory`` says; raises InvalidSpec."""
    path = directory / "guest.toml"
    return complete(Guest, tomlfile.read(path, keys(Guest)), path)


def shared(recipe: Recipe, guest: Path = GUEST, dialects: Path = DIALECTS) -> list[Path]:
    """The directories whose files ``recipe`` has beside its own."""
    family = family_of(recipe.engine)
    return [guest, *([dialects / family.dialect] if family.series else [])]


def all_packages(recipe: Recipe, guest: Guest) -> tuple[str, ...]:
    """Every package that is asked for, sorted, each once."""
    return tuple(sorted({*guest.packages, *recipe.packages}))
