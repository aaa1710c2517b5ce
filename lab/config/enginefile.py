"""The engines that requests name, and all that differs between them: ``images/engines.toml``.

An engine has one or more families, kinds of servers such as Percona Server and Percona XtraDB
Cluster. A blueprint names the families that it runs on; each series of a family is a recipe.
"""

from __future__ import annotations

import re
from collections.abc import Collection, Iterable, Mapping
from dataclasses import replace
from datetime import date
from functools import cache
from pathlib import Path
from typing import Annotated, Literal

from lab.config import tomlfile
from lab.errors import InvalidSpec
from lab.keys import Given, Key, WrongType, complete, keys, list_of, matching, parse_all
from lab.suggest import did_you_mean
from lab.values import dataclass

FILE = Path(__file__).parents[1] / "recipes" / "engines.toml"
"""Where they are declared, beside the recipes."""

_WORD = matching("a word of small letters, digits and hyphens", r"[a-z][a-z0-9-]*")
_SERIES = matching("a series such as 8.4", r"[0-9]+(\.[0-9]+)*")
_OPTION = matching("an option such as ssl-mode=REQUIRED", r"[a-z][a-z-]*(=[A-Za-z_]+)?")
_ARGUMENT = matching("an argument of a program", r"[\w./=-]+")
_RECIPE = matching("a recipe such as mariadb-10.11", r"[a-z][a-z0-9.-]*")


def _by_series(value: object) -> tuple[tuple[str, str], ...]:
    if not isinstance(value, dict) or not value:
        raise WrongType
    return tuple((_SERIES.parse(series), _RECIPE.parse(recipe)) for series, recipe in value.items())


def _by_date(value: object) -> tuple[tuple[str, str], ...]:
    if not isinstance(value, dict) or not all(type(day) is date for day in value.values()):
        raise WrongType
    return tuple((_SERIES.parse(series), day.isoformat()) for series, day in value.items())


DialectName = Literal["mariadb", "mysql"]
"""Whose SQL a server understands; the family of that name is the one that others follow."""
_LIKE: DialectName = "mysql"
NONE: Mapping[str, str] = {}
"""No engines that were added to a home. ``added`` of a function: their families, by name."""
Authentication = Literal["mysql_native_password", "caching_sha2_password"]


@dataclass(frozen=True)
class Family:
    """A kind of server of an engine, with all of its series."""

    engine: Given[str]
    """What requests call it."""
    name: Given[str]
    """The recipe of the first series."""
    title: str
    """Its name in lists."""
    series: Annotated[tuple[tuple[str, str], ...], Key("a table of recipes by series", _by_series)]
    """Each series and its recipe, the default first."""
    dialect: DialectName
    """Whose SQL and options it has."""
    authentication: Authentication
    """The plugin of the accounts that labs have."""
    client: Annotated[str, _WORD]
    """Its client program."""
    tls_option: Annotated[str, _OPTION]
    """The option, without its hyphens, with which the client program verifies the server."""
    jdbc_tls: str
    """The parameters with which Connector/J does; ``{ca}``: the path of the certificate."""
    plain_option: Annotated[str, _OPTION] = ""
    """The option, without its hyphens, with which the client program uses no TLS."""
    loads_datasets: bool = False
    """Whether datasets can be made on it."""
    checks: Annotated[tuple[str, ...], list_of("a list of words", _ARGUMENT)] = ("true",)
    """The command that fails, and says why, if the server does not know all of its options."""
    dump: Annotated[tuple[str, ...], list_of("a list of words", _ARGUMENT)] = ("mysqldump",)
    """The program that writes databases as SQL, with options that only it knows."""
    upgrade: Annotated[tuple[str, ...], list_of("a list of words", _ARGUMENT)] = ()
    """The program, with its arguments, that upgrades system tables where the server does not."""
    run: Annotated[tuple[tuple[str, str], ...], Key("a table of dates by series", _by_date)] = ()
    """The series that the project's own tests ran labs on, and the last day, as 2026-11-27."""
    says: str = ""
    """What the server's ``--version`` has in it, by which a build is of this family; empty: a
    build of the dialect that says nothing else."""
    builds: Annotated[str, _WORD] = ""
    """The directory beside the file with what all added builds have; empty: none can be added."""
    recorded: Annotated[str, _WORD] = ""
    """The engine in its recipes and in records; empty: the family's name."""
    runs: Annotated[str, _WORD] = ""
    """The family in whose place it runs, too; empty: none."""

    @property
    def kind(self) -> str:
        """The family whose servers replicate with its own."""
        return self.runs or self.name

    def suits(self, families: Collection[str]) -> bool:
        """Whether a blueprint that names ``families`` runs on it."""
        return self.name in families or self.runs in families


@cache
def families(file: Path = FILE) -> tuple[Family, ...]:
    """All families, in the order of the file; raises InvalidSpec for what is wrong in it."""
    known, found = keys(Family), []
    for engine, tables in tomlfile.loads(file.read_bytes(), file).items():
        place = f"{file}: [{engine}]"
        try:
            for name, table in tables.items():
                place = f"{file}: [{_WORD.parse(engine)}.{_WORD.parse(name)}]"
                values = parse_all(known, table, place)
                found.append(complete(Family, values, place, engine=engine, name=name))
        except (WrongType, AttributeError):
            raise InvalidSpec(f"{place} is no table of an engine's servers") from None
    for family in found:
        if family.series[0][1] != family.name:
            raise InvalidSpec(
                f"{file}: the recipe of the first series of {family.name} is {family.series[0][1]}",
                hint="a family has the name of that recipe",
            )
        if other := dict(family.run).keys() - dict(family.series).keys():
            raise InvalidSpec(f"{file}: {family.name} has no series {', '.join(sorted(other))}")
    return tuple(found)


@cache
def family_of(engine: str) -> Family:
    """The family of the ``engine`` of a record, an image or a recipe, or the one of that name.

    One that the file does not have, such as of another version of lab, counts as one like MySQL
    with the older passwords.
    """
    for family in families():
        if engine in (family.recorded or family.name, family.name):
            return family
    return replace(
        family_of(_LIKE), engine=engine, name=engine, title=engine, series=(),
        authentication="mysql_native_password", loads_datasets=False,
    )  # fmt: skip


def clients() -> dict[str, Family]:
    """The client programs of all families, each with one that has it."""
    return {family.client: family for family in families()}


def engines(added: Mapping[str, str] = NONE) -> tuple[str, ...]:
    """What requests may say: each engine, each with each of its series, and the added ones."""
    found: dict[str, None] = {}
    for family in families():
        found |= dict.fromkeys((family.engine, *_names(family)))
    return tuple(found | dict.fromkeys(added))


def recipes_of(wanted: Iterable[str], added: Mapping[str, str] = NONE) -> tuple[str, ...]:
    """All recipes that a blueprint which names these families runs on, those families' own first.

    A family that is not in the file, such as one of tests, is its only recipe.
    """
    names = list(wanted)
    found = dict.fromkeys(names)
    found |= {
        recipe: None for family in families() if family.suits(names) for _, recipe in family.series
    }
    found |= {name: None for name, its in added.items() if family_of(its).suits(names)}
    return tuple(found)


def known(wanted: Collection[str], added: Mapping[str, str] = NONE) -> list[str]:
    """What ``engine`` takes for a blueprint that names these families."""
    found: dict[str, None] = {}
    for family in families():
        if family.suits(wanted):
            found |= dict.fromkeys((family.engine, *_names(family)))
    return [*found, *(name for name, its in added.items() if family_of(its).suits(wanted))]


def kind_of(recipe: str, added: Mapping[str, str] = NONE) -> str:
    """The kind of the servers of a recipe: only those of one kind can be in one lab."""
    if recipe in added:
        return family_of(added[recipe]).kind
    return next((f.kind for f in families() if recipe in dict(f.series).values()), recipe)


def named(recipe: str) -> str:
    """What ``engine`` takes for a recipe: ENGINE:SERIES, or the recipe of no series."""
    for family in families():
        for series, name in family.series:
            if name == recipe:
                return f"{family.engine}:{series}"
    return recipe


def recipe(
    text: str, wanted: Collection[str], blueprint: str, added: Mapping[str, str] = NONE
) -> str:
    """The recipe that ``text`` means for a blueprint, which names the families ``wanted``.

    ``text``: ``ENGINE``, ``ENGINE:SERIES``, a recipe or an added engine. Raises InvalidSpec.
    """
    engine, separator, series = text.partition(":")
    suiting = [family for family in families() if family.suits(wanted)]
    of_engine = [family for family in suiting if family.engine == engine]
    for family in of_engine:
        for one, name in family.series:
            if one == series or not separator:
                return name
    if not separator and text in recipes_of(wanted, added):
        return text
    valid = known(wanted, added)
    if of_engine:
        known_names = ", ".join(name for family in of_engine for name in _names(family))
        raise InvalidSpec(
            f"there is no series {series[:40]!r} of {engine} for {blueprint}",
            hint=f"there are: {known_names}; `lab engine ls` lists all",
        )
    otherwise = f"engines: {', '.join(valid)}"
    raise InvalidSpec(
        f"{blueprint} cannot run on the engine {text[:80]!r}",
        hint=did_you_mean(text, valid, otherwise=otherwise),
    )


def image_recipe(text: str) -> str:
    """The recipe of the image that ``text`` means: a recipe, ``ENGINE`` or ``ENGINE:SERIES``.

    A text that is no engine is returned as it is. Raises InvalidSpec where an engine has several.
    """
    engine, separator, series = text.partition(":")
    of_engine = [family for family in families() if family.engine == engine]
    if not of_engine or (not separator and any(text == family.name for family in of_engine)):
        return text
    found = [
        name
        for family in of_engine
        for one, name in (family.series if separator else family.series[:1])
        if one == series or not separator
    ]
    if len(found) == 1:
        return found[0]
    if not found:
        known_names = ", ".join(dict.fromkeys(name for one in of_engine for name in _names(one)))
        raise InvalidSpec(
            f"there is no series {series[:40]!r} of {engine}", hint=f"there are: {known_names}"
        )
    raise InvalidSpec(f"{text} has {len(found)} recipes", hint=f"name one: {', '.join(found)}")


def series_of(recipe_name: str) -> str:
    """The series of that recipe; empty if it is of none."""
    every = (pair for family in families() for pair in family.series)
    return next((series for series, name in every if name == recipe_name), "")


def _names(family: Family) -> list[str]:
    return [f"{family.engine}:{series}" for series, _ in family.series]


def numbers(version: str) -> tuple[int, ...]:
    """``10.11.6-MariaDB`` as (10, 11, 6); empty if it does not begin so."""
    # Replicas of old clients have 5.5.5- before MariaDB's own version.
    match = re.match(r"(?:5\.5\.5-)?(\d{1,4})\.(\d{1,4})(?:\.(\d{1,4}))?", version)
    return tuple(int(part) for part in match.groups() if part is not None) if match else ()
