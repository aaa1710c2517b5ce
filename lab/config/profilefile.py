"""Profiles as users write them in a config file: a base, and what differs from it.

Example::

    [profiles.fast]
    base = "disposable"
    engine = { flush_log = 2, buffer_pool = 50 }
    data = { compression = "off" }
"""

from __future__ import annotations

import re
from collections.abc import Mapping
from dataclasses import replace
from typing import Any

from lab.config import tomlfile
from lab.config.profile import DEFAULT, KIB, PROFILES, Profile
from lab.config.tomlfile import Key, Keys, WrongType
from lab.errors import InvalidSpec
from lab.suggest import did_you_mean

_NAME = re.compile(r"[a-z][a-z0-9-]{0,31}")
_LARGEST_BLOCK = 128 * KIB
_SMALLEST_BLOCK = 4 * KIB


def parse(value: object) -> Mapping[str, Profile]:
    """The profiles in the table ``[profiles]``; raises WrongType or InvalidSpec."""
    if not isinstance(value, dict):
        raise WrongType
    return {name: _profile(name, table) for name, table in value.items()}


def _profile(name: str, table: object) -> Profile:
    place = f"[profiles.{name}]"
    if not _NAME.fullmatch(name):
        raise InvalidSpec(
            f"{name!r} is not a name for a profile", hint="small letters, digits and hyphens"
        )
    if name in PROFILES:
        raise InvalidSpec(f"{name} is a profile that is always there", hint="take another name")
    if not isinstance(table, dict):
        raise InvalidSpec(f"{place} is not a table")
    said = {key: tomlfile.parse(_PROFILE, key, each, place) for key, each in table.items()}
    base: Profile = said.pop("base", DEFAULT)
    parts = {key: replace(getattr(base, key), **values) for key, values in said.items()}
    return replace(base, name=name, **parts)


def _base(value: object) -> Profile:
    if not isinstance(value, str):
        raise WrongType
    if value not in PROFILES:
        raise InvalidSpec(
            f"there is no profile {value!r}", hint=did_you_mean(value, list(PROFILES))
        )
    return PROFILES[value]


def _table(keys: Keys) -> Key:
    def read(value: object) -> dict[str, Any]:
        if not isinstance(value, dict):
            raise WrongType
        return {key: tomlfile.parse(keys, key, each, "here") for key, each in value.items()}

    return Key(f"a table of {', '.join(keys)}", read)


def _block_size(value: object) -> int:
    size = tomlfile.size(value)
    if not _SMALLEST_BLOCK <= size <= _LARGEST_BLOCK or size & (size - 1):
        raise WrongType
    return size


def _compression(value: object) -> str:
    if not re.fullmatch(r"on|off|lz4|lzjb|zle|gzip(-[1-9])?|zstd(-fast)?(-\d{1,4})?", str(value)):
        raise WrongType
    return str(value)


def _yes(value: object) -> bool:
    if not isinstance(value, bool):
        raise WrongType
    return value


def _within(low: int, high: int) -> Key:
    def read(value: object) -> int:
        number = tomlfile.whole(value)
        if not low <= number <= high:
            raise WrongType
        return number

    return Key(f"a whole number from {low} to {high}", read)


_VOLUME: Keys = {
    "block_size": Key("a power of two from 4K to 128K", _block_size),
    "compression": Key("on, off, lz4, zstd, gzip-1 or the like", _compression),
    "sync": tomlfile.one_of("standard", "always", "disabled"),
    "logbias": tomlfile.one_of("latency", "throughput"),
    "primarycache": tomlfile.one_of("all", "metadata", "none"),
}
_ENGINE: Keys = {
    "doublewrite": Key("true or false", _yes),
    "flush_method": tomlfile.one_of("O_DIRECT", "O_DIRECT_NO_FSYNC", "fsync"),
    "flush_log": _within(0, 2),
    "io_capacity": _within(100, 1_000_000),
    "buffer_pool": _within(5, 75),
}
_PROFILE: Keys = {
    "base": Key("one of " + ", ".join(PROFILES), _base),
    "os": _table(_VOLUME),
    "data": _table(_VOLUME),
    "log": _table(_VOLUME),
    "engine": _table(_ENGINE),
}
