"""What the servers' manuals say against servers of several versions in one lab.

Nothing is refused for it: how such a lab behaves may be what is to be found out. Series are
compared, as manuals do: the first two numbers of a version.

Sources: the MySQL manual, "Replication Compatibility Between MySQL Versions", "Upgrade Paths" and
"Combining Different Member Versions in a Group"; the MariaDB documentation, "Replication Overview"
and "Upgrading from MariaDB ... with Galera Cluster".
"""

from __future__ import annotations

import re
from collections.abc import Callable, Mapping, Sequence
from typing import Literal

from lab.blueprints import Blueprint, Engine, Member
from lab.config.enginefile import DialectName, family_of
from lab.values import dataclass

Series = tuple[int, ...]
Where = Literal["link", "galera", "group"]

_LONG_TERM: Sequence[Series] = ((5, 5), (5, 6), (5, 7), (8, 0), (8, 4), (9, 7))
"""MySQL's series with long-term support. From one of them or the innovation releases after it, the
next one is the last to which a server is upgraded directly."""
_SEVERAL: Mapping[DialectName, int] = {"mysql": 2}
"""How many versions are supported where several servers are sources."""


@dataclass(frozen=True)
class _Rule:
    """What is not supported, where ``broken`` is true."""

    dialect: DialectName
    where: Where
    broken: Callable[[Series, Series], bool]
    """Of a link: by the series of source and replica; of a cluster: by the lowest and highest."""
    text: str


_RULES = (
    _Rule(
        "mariadb",
        "link",
        lambda source, replica: replica < source,
        "MariaDB supports replicas that are of their source's series or a newer one",
    ),
    _Rule(
        "mysql",
        "link",
        lambda source, replica: replica < source,
        "MySQL supports no replica that is older than its source",
    ),
    _Rule(
        "mysql",
        "link",
        lambda source, replica: replica > _last_upgrade(source),
        "MySQL supports replicas up to the next series with long-term support",
    ),
    _Rule(
        "mariadb",
        "galera",
        lambda lowest, highest: lowest != highest,
        "MariaDB supports members of several series while a cluster is upgraded: what only the"
        " newer one has must not be used, and once only newer members are left, an older one cannot"
        " return",
    ),
    _Rule(
        "mysql",
        "galera",
        lambda lowest, highest: lowest != highest,
        "Percona supports members of several series while a cluster is upgraded",
    ),
    _Rule(
        "mysql",
        "group",
        lambda lowest, highest: lowest != highest,
        "MySQL supports members of several series while a group is upgraded: a member joins no"
        " group of newer ones, so n1, which starts it, has to be of the lowest series; and newer"
        " members of a multi-primary group stay read-only",
    ),
)


def cautions(
    plan: Blueprint, members: Sequence[Member], engines: Mapping[str, Engine]
) -> list[str]:
    """What is not supported about the servers of a lab; ``engines``: of these, by node."""
    found = {name: series(engine.version) for name, engine in engines.items()}
    links = plan.links(members)
    pairs: list[tuple[Where, str, str]] = [("link", one.source, one.replica) for one in links]
    cluster = sorted(
        (one.name for one in members if one.role == "member" and one.name in found),
        key=lambda name: found[name],
    )
    if cluster:
        pairs.append(("group" if plan.elects else "galera", cluster[0], cluster[-1]))
    texts = [
        f"{_shown(first, engines)} and {_shown(second, engines)}: {rule.text}"
        for where, first, second in pairs
        for rule in _RULES
        if rule.where == where
        and rule.dialect == family_of(engines[first].name).dialect
        and rule.broken(found[first], found[second])
    ]
    dialects, versions = (
        {family_of(one.name).dialect for one in engines.values()},
        set(found.values()),
    )
    most = min((_SEVERAL[one] for one in dialects if one in _SEVERAL), default=len(versions))
    if len({one.source for one in links}) > 1 and len(versions) > most:
        texts.append(
            f"MySQL supports {most} versions where several servers are sources, and these have"
            f" {len(versions)}"
        )
    return texts


def series(version: str) -> Series:
    """The numbers of a version that name its series, such as 8.4 of 8.4.9-9."""
    return tuple(int(number) for number in re.findall(r"\d+", version)[:2])


def _last_upgrade(source: Series) -> Series:
    """The last series to which a server of MySQL is upgraded directly."""
    return next((one for one in _LONG_TERM if one > source), (10**6,))


def _shown(node: str, engines: Mapping[str, Engine]) -> str:
    return f"{node} ({engines[node].version})"
