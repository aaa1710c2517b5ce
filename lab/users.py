"""Accounts that whoever creates a lab gives to its servers: what is known of them is no password.

A line ``NAME:PASSWORD@SCOPE`` becomes what servers keep of the password, where it is read: neither
a service nor a record has the password itself.
"""

from __future__ import annotations

import re
from collections.abc import Sequence
from dataclasses import field

from lab.errors import InvalidSpec
from lab.values import dataclass

ALL = "*"
"""The scope of all databases."""
LIMIT = 16
"""How many a lab has at most."""
_NAME = re.compile(r"[A-Za-z_][A-Za-z0-9_]{0,31}")
_RESERVED = ("lab", "root", "replication", "mysql", "mariadb", "PUBLIC")
_SCOPE = re.compile(r"\*|[A-Za-z0-9_$-]{1,64}")
_NATIVE = re.compile(r"\*[0-9A-F]{40}")
_CACHING_SHA2 = re.compile(r"\$A\$005\$[./0-9A-Za-z]{63}")
_PASSWORD_LIMIT = 200  # bytes; MySQL takes 256
_FORM = "a line is NAME:PASSWORD@SCOPE, and SCOPE a database or * for all"


@dataclass(frozen=True)
class User:
    """An account."""

    name: str
    scope: str
    """The database in which it may do everything; ``*``: all of them."""
    native: str = field(repr=False)
    """What the plugin mysql_native_password keeps of its password."""
    caching_sha2: str = field(repr=False)
    """What the plugin caching_sha2_password keeps of its password."""

    def __post_init__(self) -> None:
        _check(self.name, self.scope)
        if not _NATIVE.fullmatch(self.native) or not _CACHING_SHA2.fullmatch(self.caching_sha2):
            raise InvalidSpec(f"the password of {self.name} is not as servers keep it")


def parse(text: str, place: str) -> tuple[User, ...]:
    """The accounts that the lines of ``text`` describe; raises InvalidSpec, without a password.

    ``place``: where it was read. Empty lines and those that begin with ``#`` say nothing.
    """
    from lab.passwords import caching_sha2, native

    found: list[User] = []
    for number, line in enumerate(text.splitlines(), 1):
        if not line.strip() or line.startswith("#"):
            continue
        if len(found) == LIMIT:  # each takes milliseconds
            raise InvalidSpec(f"{place} has more than {LIMIT} accounts")
        name, first, rest = line.strip().partition(":")
        password, last, scope = rest.rpartition("@")
        try:
            if not first or not last or not password:
                raise InvalidSpec("it has no name, password or scope", hint=_FORM)
            _check(name, scope)
            if not password.isprintable() or len(password.encode()) > _PASSWORD_LIMIT:
                raise InvalidSpec(f"a password has {_PASSWORD_LIMIT} printable bytes at most")
        except InvalidSpec as error:
            raise InvalidSpec(f"{place}, line {number}: {error.what}", hint=error.hint) from None
        found.append(User(name, scope, native(password), caching_sha2(password)))
    if not found:
        raise InvalidSpec(f"{place} describes no account", hint=_FORM)
    return tuple(found)


def check(users: Sequence[User]) -> None:
    """Raise InvalidSpec for too many, or two of one name."""
    if len(users) > LIMIT:
        raise InvalidSpec(f"{len(users)} accounts were given, {LIMIT} can be")
    names = [user.name for user in users]
    for name in names:
        if names.count(name) > 1:
            raise InvalidSpec(f"the account {name} was given twice")


def _check(name: str, scope: str) -> None:
    # Neither is repeated in messages as a whole: a line of another form may hold a password there.
    if not _NAME.fullmatch(name):
        raise InvalidSpec("its name is invalid", hint="32 letters, digits and _ at most")
    if name in _RESERVED or name.startswith("lab_"):
        raise InvalidSpec(f"the account {name} is reserved", hint="choose another name")
    if not _SCOPE.fullmatch(scope):
        raise InvalidSpec("its scope is not a database", hint=_FORM)
