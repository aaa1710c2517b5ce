"""Recipes: what an image is made of, read from ``images/<name>/recipe.toml``."""

from __future__ import annotations

import re
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from lab.config import tomlfile
from lab.config.tomlfile import Key, Keys, WrongType
from lab.errors import InvalidSpec, NotFound
from lab.spec import GIB, MIB
from lab.suggest import did_you_mean

HERE = Path(__file__).parent
RECIPES = HERE.parent / "recipes"
"""Where the recipes are, a directory each: `images/` of a checkout, by a link."""

GUEST = RECIPES / "guest"
"""What all recipes share: files, a provision script and ``guest.toml``."""

_DISK_LEAST = 2 * GIB


@dataclass(frozen=True)
class Repository:
    """Signed APT repositories of one owner, besides Debian's.

    The first of ``urls`` has the engine; only its reachability is checked before a build
    (``reachable``). A build needs all of them: apt fails if one does not have ``suite``.
    ``key_url`` is where the public key is fetched from at build time. Only ``key_fingerprint``
    (40 hexadecimal digits) decides whether the key is trusted.
    """

    urls: tuple[str, ...]
    suite: str
    component: str
    key_url: str
    key_fingerprint: str


@dataclass(frozen=True)
class Recipe:
    """An image as described: ``disk`` in bytes, paths as the guest sees them.

    ``version_package`` is the package whose version is the engine's. ``service``,
    ``user`` and ``config`` are the engine's systemd unit, account and option file;
    ``log_files`` which files of its data directory are kept on a log volume, where there is one.
    ``occupied`` is a directory that holds a file while packages are installed, for packages
    that initialise an empty one; the recipe's ``provision`` empties it.
    """

    name: str
    engine: str
    suite: str
    disk: int
    packages: tuple[str, ...]
    version_package: str
    service: str
    user: str
    config: str
    log_files: tuple[str, ...]
    directory: Path
    repository: Repository | None = None
    occupied: str = ""


@dataclass(frozen=True)
class Guest:
    """What all guests have: ``packages`` and the kernel's ``cmdline``."""

    packages: tuple[str, ...]
    cmdline: str


def recipes(root: Path = RECIPES) -> list[str]:
    """The names of all recipes below ``root``, sorted."""
    return sorted(path.parent.name for path in root.glob("*/recipe.toml"))


def load(name: str, root: Path = RECIPES) -> Recipe:
    """The recipe called ``name``; raises NotFound, or InvalidSpec if it is not sound."""
    known = recipes(root)
    if name not in known:
        have = f"recipes are: {', '.join(known)}"
        raise NotFound(
            f"there is no image recipe {name!r}", hint=did_you_mean(name, known, otherwise=have)
        )
    directory = root / name
    values = _read(directory / "recipe.toml", _RECIPE, optional=("repository", "occupied"))
    for needed in ("provision", "my.cnf"):
        if not (directory / needed).is_file():
            raise InvalidSpec(f"the recipe {name} has no file {needed}")
    return Recipe(name=name, directory=directory, **values)


def load_guest(directory: Path = GUEST) -> Guest:
    """What ``guest.toml`` in ``directory`` says; raises InvalidSpec."""
    return Guest(**_read(directory / "guest.toml", _GUEST))


def all_packages(recipe: Recipe, guest: Guest) -> tuple[str, ...]:
    """Every package that is asked for, sorted, each once."""
    return tuple(sorted({*guest.packages, *recipe.packages}))


def _read(path: Path, keys: Keys, optional: Sequence[str] = ()) -> dict[str, Any]:
    values = tomlfile.read(path, keys)
    _complete(values, keys, optional, path)
    return values


def _complete(
    values: Mapping[str, Any], keys: Keys, optional: Sequence[str], place: object
) -> None:
    missing = [key for key in keys if key not in values and key not in optional]
    if missing:
        expected = f"expected {keys[missing[0]].expected}"
        raise InvalidSpec(f"{place}: {missing[0]} is missing", hint=expected)


def _matching(pattern: str) -> Callable[[object], str]:
    def parse(value: object) -> str:
        if not re.fullmatch(pattern, tomlfile.text(value)):
            raise WrongType
        return tomlfile.text(value)

    return parse


def _disk(value: object) -> int:
    size = tomlfile.size(value)
    if size < _DISK_LEAST or size % MIB:
        raise WrongType
    return size


def _packages(value: object) -> tuple[str, ...]:
    if not isinstance(value, list) or not value:
        raise WrongType
    return tuple(_PACKAGE.parse(name) for name in value)


def _names(value: object) -> tuple[str, ...]:
    if not isinstance(value, list) or not value:
        raise WrongType
    return tuple(_FILE.parse(name) for name in value)


def _urls(value: object) -> tuple[str, ...]:
    if not isinstance(value, list) or not value:
        raise WrongType
    return tuple(_URL.parse(url) for url in value)


def _repository(value: object) -> Repository:
    if not isinstance(value, dict):
        raise WrongType
    place = "[repository]"
    values = {key: tomlfile.parse(_REPOSITORY, key, each, place) for key, each in value.items()}
    _complete(values, _REPOSITORY, (), place)
    return Repository(**values)


_WORD = Key("a word of small letters, digits and hyphens", _matching(r"[a-z][a-z0-9-]*"))
_PACKAGE = Key("a package's name", _matching(r"[a-z0-9][a-z0-9+.-]+"))  # Debian Policy 5.6.7
_PACKAGES = Key("a list of names of packages", _packages)
_FILE = Key("a file's name", _matching(r"[\w#.-]+"))
_URL = Key("an http or https URL", _matching(r"https?://[^\s\]]+"))

_REPOSITORY: Keys = {
    "urls": Key("a list of http or https URLs", _urls),
    "suite": _WORD,
    "component": _WORD,
    "key_url": _URL,
    "key_fingerprint": Key("40 hexadecimal digits, capital letters", _matching("[0-9A-F]{40}")),
}
_RECIPE: Keys = {
    "engine": _WORD,
    "suite": _WORD,
    "disk": Key("a size in whole MiB, 2G or more", _disk),
    "packages": _PACKAGES,
    "version_package": _PACKAGE,
    "service": Key("a systemd unit, such as mysql.service", _matching(r"[\w@.-]+\.service")),
    "user": _WORD,
    "config": Key("an absolute path in the guest", _matching(r"(/[\w.-]+)+")),
    "log_files": Key("a list of names of files", _names),
    "repository": Key("a table", _repository),
    "occupied": Key("an absolute path in the guest", _matching(r"(/[\w.-]+)+")),
}
_GUEST: Keys = {
    "packages": _PACKAGES,
    "cmdline": Key("the kernel's command line", _matching(r"[^\n]+")),
}
