"""What a lab is to have beyond its blueprint's defaults: part of its record and its template's key.

Kept and sent as JSON, in which only what differs from the defaults is said: so an option that is
added later changes no key and no digest of before.
"""

from __future__ import annotations

import os
import re
from collections.abc import Mapping, Sequence
from dataclasses import fields, replace
from pathlib import Path
from typing import Annotated, Any, Literal, get_args

from lab import texts, users
from lab.errors import InvalidSpec
from lab.keys import Key, WrongType, number, text
from lab.names import ENGINE, NODE_NAME, parse_node
from lab.paths import from_user
from lab.suggest import did_you_mean
from lab.units import format_duration, parse_duration
from lab.users import User
from lab.values import dataclass

Topology = Literal["star", "chain", "ring", "fan-in"]
TOPOLOGIES: tuple[Topology, ...] = get_args(Topology)
ProxyName = Literal["none", "haproxy", "router"]
PROXY_NAMES: tuple[ProxyName, ...] = get_args(ProxyName)

FILE_LIMIT = 1 << 18
"""Bytes of a file that is given."""
_SETTINGS_LIMIT, _FILES_LIMIT = 100, 16
_DELAY_LIMIT = 30 * 86400
_REPLICAS_LIMIT = 8
_SETTING = re.compile(r"[a-zA-Z][a-zA-Z0-9_.-]{0,99}(=[^\n\r\0]{0,1000})?")
_ROLE = re.compile(r"[a-z]{0,20}")


@dataclass(frozen=True)
class OptionFile:
    """A further option file of servers. ``role``: of the nodes that have it; empty: all."""

    text: str
    role: str = ""


def _delay(value: object) -> float:
    if isinstance(value, str):
        return parse_duration(value)
    if isinstance(value, bool) or not isinstance(value, int | float):
        raise WrongType
    return float(value)


def _several(value: object) -> tuple[str, ...]:
    if isinstance(value, str):
        return (value,)
    if not isinstance(value, list | tuple):
        raise WrongType
    return tuple(map(text, value))


def _nodes(value: object) -> tuple[str, ...]:
    return tuple(parse_node(name) for part in _several(value) for name in part.split(","))


def _node_engines(value: object) -> tuple[str, ...]:
    found = []
    for given in _several(value):
        node, separator, engine = given.partition("=")
        found.append(f"{parse_node(node)}={engine}" if separator else given)
    return tuple(found)


def read_file(path: str, base: Path = Path()) -> str:
    """The text of a file; a relative path is below ``base``. Raises InvalidSpec."""
    return texts.read(base / from_user(path), FILE_LIMIT)


def named_files(value: object) -> tuple[tuple[str, str], ...]:
    """The role and the path of each of some option files, which are not read."""
    found = []
    for given in _several(value):
        role, separator, path = given.partition("=")
        found.append((role, path) if separator else ("", given))
    return tuple(found)


def read_files(named: Sequence[tuple[str, str]], base: Path = Path()) -> tuple[OptionFile, ...]:
    """The option files of ``named_files``; raises as ``read_file``."""
    return tuple(OptionFile(read_file(path, base), role) for role, path in named)


def _option_files(value: object) -> tuple[OptionFile, ...]:
    return read_files(named_files(value))


def _script(value: object) -> str:
    return read_file(text(value))


def _users(value: object) -> tuple[User, ...]:
    found: list[User] = []
    for given in _several(value):
        variable = given.removeprefix("env:")
        if variable != given:
            if not os.environ.get(variable):
                raise InvalidSpec(f"the environment variable {variable[:80]!r} is not set")
            found += users.parse(os.environ[variable], f"the environment variable {variable}")
        elif "@" in given and not from_user(given).exists():
            # Not repeated: it may be a password.
            raise InvalidSpec(
                "an account is not given as an argument, which every user of this host can read",
                hint="--user FILE, or --user env:VARIABLE; both have lines NAME:PASSWORD@SCOPE",
            )
        else:
            found += users.parse(read_file(given), given)
    return tuple(found)


@dataclass(frozen=True)
class Options:
    """What differs from the defaults of a blueprint; each option is one of some blueprints."""

    topology: Topology = "star"
    """Who replicates from whom."""
    semi_sync: bool = False
    """Whether a commit returns only once a replica has received it."""
    delay: Annotated[float, Key("a duration such as 1h", _delay)] = 0.0
    """Seconds that replicas execute transactions late."""
    on: Annotated[tuple[str, ...], Key("names of nodes, such as n3", _nodes)] = ()
    """The replicas that do; empty: all."""
    multi_primary: bool = False
    """Whether all members of a group take writes."""
    proxy: ProxyName = "none"
    """The proxy that a further node runs, through which users connect."""
    arbiter: bool = False
    """Whether a further node is a member of the cluster that has a vote and no data."""
    client: bool = False
    """Whether a further node has no server, and runs programs that use the others: benchmarks."""
    replicas: Annotated[int, Key("a whole number", number)] = 1
    """How many nodes the remote site of a cluster has, further to ``nodes``."""
    set: Annotated[tuple[str, ...], Key("a list of NAME=VALUE", _several)] = ()
    """Options of all servers, as in an option file."""
    my_cnf: Annotated[tuple[OptionFile, ...], Key("files, as [ROLE=]PATH", _option_files)] = ()
    """Option files of servers."""
    init: Annotated[str, Key("a file of SQL", _script)] = ""
    """Statements that are executed once, when the nodes have become one system."""
    user: Annotated[tuple[User, ...], Key("files, or env:VARIABLE", _users)] = ()
    """Accounts of servers, further to the lab's own: of each lab, and not of its template."""
    node: Annotated[tuple[str, ...], Key("a list such as n2=mysql:9.7", _node_engines)] = ()
    """The engines of single nodes, as NODE=ENGINE, where they differ from the lab's."""

    def __post_init__(self) -> None:
        if not 0 <= self.delay <= _DELAY_LIMIT:
            raise InvalidSpec(f"a delay is 30 days at most, not {self.delay:g} seconds")
        if self.delay % 1:
            raise InvalidSpec(f"a delay is in whole seconds, not {self.delay:g}")
        if not 1 <= self.replicas <= _REPLICAS_LIMIT:
            raise InvalidSpec(
                f"a remote site has 1 to {_REPLICAS_LIMIT} replicas, not {self.replicas}"
            )
        if len(self.set) > _SETTINGS_LIMIT:
            raise InvalidSpec(f"{len(self.set)} settings were given, {_SETTINGS_LIMIT} can be")
        for setting in self.set:
            if not _SETTING.fullmatch(setting):
                raise InvalidSpec(
                    f"{setting[:80]!r} is not an option of a server",
                    hint="such as innodb_flush_log_at_trx_commit=2",
                )
        self._check_files()
        users.check(self.user)
        self._check_engines()
        # In any order they mean the same lab.
        object.__setattr__(self, "node", tuple(sorted(self.node)))

    def _check_files(self) -> None:
        if len(self.my_cnf) > _FILES_LIMIT:
            raise InvalidSpec(f"{len(self.my_cnf)} option files were given, {_FILES_LIMIT} can be")
        for one in self.my_cnf:
            if not _ROLE.fullmatch(one.role):
                raise InvalidSpec(f"{one.role[:80]!r} is not a role", hint="such as replica")
        for content in (*(one.text for one in self.my_cnf), self.init):
            if len(content.encode()) > FILE_LIMIT or "\0" in content:
                raise InvalidSpec(f"a file is a text of {FILE_LIMIT // 1024} KiB at most")

    def _check_engines(self) -> None:
        for one in self.node:
            node, _, engine = one.partition("=")
            if not re.fullmatch(NODE_NAME, node) or not re.fullmatch(ENGINE, engine):
                raise InvalidSpec(
                    f"{one[:80]!r} is not the engine of a node", hint="such as n2=mysql:9.7"
                )
        if len(self.engines) < len(self.node):
            raise InvalidSpec("a node has one engine: one of them was given twice")

    @property
    def engines(self) -> dict[str, str]:
        """The engines of single nodes, by the names of these."""
        return {node: engine for node, _, engine in (one.partition("=") for one in self.node)}

    @property
    def said(self) -> dict[str, Any]:
        """What differs from the defaults, as JSON has it; ``of`` is the reverse."""
        if self == NONE:
            return {}
        import msgspec

        given = (f.name for f in fields(self) if getattr(self, f.name) != f.default)
        return {name: msgspec.to_builtins(getattr(self, name)) for name in given}

    @property
    def of_template(self) -> Options:
        """Without what labs are given one by one."""
        return replace(self, user=()) if self.user else self

    @property
    def shown(self) -> dict[str, Any]:
        """What ``said`` returns, with digests in place of files, and accounts without passwords."""
        found = self.said
        if self.my_cnf:
            found["my_cnf"] = [{"role": one.role, "text": _digest(one.text)} for one in self.my_cnf]
        if self.init:
            found["init"] = _digest(self.init)
        if self.user:
            found["user"] = [f"{user.name}@{user.scope}" for user in self.user]
        return found

    def option_file(self, role: str) -> str:
        """What the option file of a server of ``role`` ends with; empty for nothing."""
        parts = [one.text for one in self.my_cnf if one.role in ("", role)]
        if self.set:
            parts.append("\n".join(["[mysqld]", *self.set]))
        return "".join(f"\n{part}\n" for part in parts)


NONE = Options()
"""The defaults."""


def of(values: Mapping[str, Any]) -> Options:
    """The options of which JSON says what differs from the defaults; raises InvalidSpec."""
    if not values:
        return NONE
    known = [field.name for field in fields(Options)]
    for name in values:
        if name not in known:
            otherwise = f"options are: {', '.join(known)}"
            raise InvalidSpec(
                f"unknown option {name[:80]!r}", hint=did_you_mean(name, known, otherwise=otherwise)
            )
    import msgspec

    try:
        found = msgspec.convert(values, Options)
    except msgspec.ValidationError as error:
        raise InvalidSpec(f"options: {error}") from None
    for name in found.on:
        parse_node(name)
    return found


def shown(values: Mapping[str, Any]) -> dict[str, Any]:
    """Options as ``Options.shown`` returns them; only the names if this version knows not all."""
    try:
        return of(values).shown
    except InvalidSpec:
        return dict.fromkeys(values, "unknown to this version of lab")


def described(shown: Mapping[str, Any]) -> str:
    """What ``shown`` says, in a line, such as ``semi-sync, delay 1h on n3``; empty for none."""
    found: list[str] = []
    for name, value in shown.items():
        word = name.replace("_", "-")
        if name == "on":
            found[-1:] = [f"{' '.join(found[-1:])} on {','.join(value)}".strip()]
        elif name == "delay":
            found.append(f"delay {format_duration(value)}")
        elif name in ("set", "node") and not isinstance(value, str):
            found += [f"{name} {one}" for one in value]
        elif name == "my_cnf" and not isinstance(value, str):
            found += [f"my-cnf {one['role'] or 'of all'} ({one['text']})" for one in value]
        elif name == "user" and not isinstance(value, str):
            found += [f"user {account}" for account in value]
        elif value is True:
            found.append(word)
        else:
            found.append(f"{word} {value}")
    return ", ".join(found)


def _digest(content: str) -> str:
    import hashlib

    digest = hashlib.sha256(content.encode()).hexdigest()[:12]
    return f"{len(content.encode())} bytes, SHA-256 {digest}"
