"""Recipes: what an image is made of, read from ``images/<name>/recipe.toml``."""

from __future__ import annotations

import difflib
import re
import sys
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from lab.errors import InvalidSpec, NotFound
from lab.spec import GIB, MIB, parse_size

if sys.version_info >= (3, 11):
    import tomllib
else:
    import tomli as tomllib

RECIPES = Path(__file__).parent
"""Where the recipes are: one directory each, beside this module."""

GUEST = RECIPES / "guest"
"""What all recipes share: files, a provision script and ``guest.toml``."""

_PACKAGE = re.compile(r"[a-z0-9][a-z0-9+.-]+")  # Debian Policy 5.6.7
_WORD = re.compile(r"[a-z][a-z0-9-]*")
_FINGERPRINT = re.compile(r"[0-9A-F]{40}")
_DISK_LEAST = 2 * GIB


@dataclass(frozen=True)
class Repository:
    """A signed APT repository besides Debian's.

    ``key_url`` is where its public key is fetched from at build time. Nothing but
    ``key_fingerprint`` (40 hexadecimal digits) decides whether the key is trusted.
    """

    url: str
    suite: str
    component: str
    key_url: str
    key_fingerprint: str


@dataclass(frozen=True)
class Recipe:
    """An image as described: ``disk`` in bytes, paths as the guest sees them.

    ``version_package`` is the package whose version is the engine's. ``service``,
    ``user`` and ``config`` are the engine's systemd unit, account and option file.
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
    directory: Path
    repository: Repository | None = None


@dataclass(frozen=True)
class Guest:
    """What all guests have: ``packages``, the kernel's ``cmdline``, the boot loader's package."""

    packages: tuple[str, ...]
    cmdline: str
    boot_loader: Mapping[str, str]


def recipes(root: Path = RECIPES) -> list[str]:
    """The names of all recipes below ``root``, sorted."""
    return sorted(path.parent.name for path in root.glob("*/recipe.toml"))


def load(name: str, root: Path = RECIPES) -> Recipe:
    """The recipe called ``name``; raises NotFound, or InvalidSpec if it is not sound."""
    known = recipes(root)
    if name not in known:
        close = difflib.get_close_matches(name, known, 1)
        guess = f"did you mean {close[0]}? " if close else ""
        raise NotFound(
            f"there is no image recipe {name!r}", hint=f"{guess}recipes are: {', '.join(known)}"
        )
    directory = root / name
    table = _Table(directory / "recipe.toml")
    recipe = Recipe(
        name=name,
        engine=table.match("engine", _WORD),
        suite=table.match("suite", _WORD),
        disk=_disk(table),
        packages=table.packages("packages"),
        version_package=table.match("version_package", _PACKAGE),
        service=table.text("service"),
        user=table.match("user", _WORD),
        config=table.text("config"),
        directory=directory,
        repository=_repository(table),
    )
    table.finish()
    for needed in ("provision", "my.cnf"):
        if not (directory / needed).is_file():
            raise InvalidSpec(f"the recipe {name} has no file {needed}")
    if not recipe.config.startswith("/"):
        raise InvalidSpec(f"{table.where}: config must be an absolute path in the guest")
    return recipe


def load_guest(directory: Path = GUEST) -> Guest:
    """What ``guest.toml`` in ``directory`` says; raises InvalidSpec."""
    table = _Table(directory / "guest.toml")
    loader = table.table("boot_loader")
    guest = Guest(
        packages=table.packages("packages"),
        cmdline=table.text("cmdline"),
        boot_loader={str(suite): str(package) for suite, package in loader.items()},
    )
    table.finish()
    return guest


def all_packages(recipe: Recipe, guest: Guest) -> tuple[str, ...]:
    """Every package that is asked for, sorted, each once."""
    loader = guest.boot_loader.get(recipe.suite)
    if loader is None:
        raise InvalidSpec(
            f"the recipe {recipe.name} wants the suite {recipe.suite}, which guest.toml lacks",
            hint=f"suites are: {', '.join(sorted(guest.boot_loader))}",
        )
    return tuple(sorted({loader, *guest.packages, *recipe.packages}))


def _disk(table: _Table) -> int:
    size = parse_size(table.text("disk"))
    if size < _DISK_LEAST or size % MIB:
        raise InvalidSpec(f"{table.where}: disk must be whole MiB, 2G or more")
    return size


def _repository(table: _Table) -> Repository | None:
    if not table.has("repository"):
        return None
    inner = _Table(table.path, table.table("repository"), "repository.")
    repository = Repository(
        url=inner.text("url"),
        suite=inner.text("suite"),
        component=inner.match("component", _WORD),
        key_url=inner.text("key_url"),
        key_fingerprint=inner.match("key_fingerprint", _FINGERPRINT),
    )
    inner.finish()
    if any(re.search(r"\s", text) for text in (repository.url, repository.suite)):
        raise InvalidSpec(f"{table.where}: no blanks in a repository's url or suite")
    return repository


class _Table:
    """A TOML table that remembers which keys were asked for, to tell of all others."""

    def __init__(
        self, path: Path, values: Mapping[str, Any] | None = None, prefix: str = ""
    ) -> None:
        self.path = path
        self.where = f"{path.parent.name}/{path.name}"
        self._prefix = prefix
        self._known: list[str] = []
        self._values = _parse(path) if values is None else values

    def has(self, key: str) -> bool:
        self._known.append(key)
        return key in self._values

    def text(self, key: str) -> str:
        value = self._get(key)
        if not isinstance(value, str) or not value.strip():
            raise InvalidSpec(f"{self.where}: {self._prefix}{key} must be a text")
        return value

    def match(self, key: str, pattern: re.Pattern[str]) -> str:
        value = self.text(key)
        if not pattern.fullmatch(value):
            raise InvalidSpec(
                f"{self.where}: {value!r} is not valid for {self._prefix}{key}",
                hint=f"it must match {pattern.pattern}",
            )
        return value

    def packages(self, key: str) -> tuple[str, ...]:
        value = self._get(key)
        if not isinstance(value, list) or not value:
            raise InvalidSpec(f"{self.where}: {key} must be a list of package names")
        for name in value:
            if not isinstance(name, str) or not _PACKAGE.fullmatch(name):
                raise InvalidSpec(f"{self.where}: {name!r} is not a package name")
        return tuple(value)

    def table(self, key: str) -> Mapping[str, Any]:
        value = self._get(key)
        if not isinstance(value, dict):
            raise InvalidSpec(f"{self.where}: [{key}] must be a table")
        return value

    def finish(self) -> None:
        """Raise InvalidSpec if there is a key that nobody asked for."""
        for key in self._values:
            if key not in self._known:
                close = difflib.get_close_matches(key, self._known, 1)
                raise InvalidSpec(
                    f"{self.where}: unknown key {self._prefix}{key}",
                    hint=f"did you mean {close[0]}?"
                    if close
                    else f"keys are: {', '.join(self._known)}",
                )

    def _get(self, key: str) -> Any:
        self._known.append(key)
        if key not in self._values:
            raise InvalidSpec(
                f"{self.where}: {self._prefix}{key} is missing",
                hint=self._misspelt(key),
            )
        return self._values[key]

    def _misspelt(self, key: str) -> str:
        close = difflib.get_close_matches(key, self._values, 1)
        return f"is {close[0]} meant to be {key}?" if close else ""


def _parse(path: Path) -> Mapping[str, Any]:
    try:
        return tomllib.loads(path.read_text(encoding="utf-8"))
    except (tomllib.TOMLDecodeError, UnicodeDecodeError) as error:
        raise InvalidSpec(f"{path.parent.name}/{path.name} is not valid TOML: {error}") from None
