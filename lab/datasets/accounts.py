"""Accounts of MySQL's servers, as statements of the server that is to have them.

A script, such as MySQL Shell's ``@.users.sql``, has what SHOW CREATE USER and SHOW GRANTS have
said. MariaDB has another syntax, other plugins and privileges, and roles that are no accounts: what
it has as well is translated, the rest is left out, and said. An account whose password cannot be
verified is locked, never without a password. Each statement stays in its line, and keeps its
number.
"""

from __future__ import annotations

import re
from collections.abc import Callable, Iterable, Mapping
from dataclasses import field

from lab.config.enginefile import DialectName, numbers
from lab.datasets.dump import Statement, statements
from lab.datasets.source import OWN
from lab.values import dataclass

_NOTHING = b"DO 0"
"""In the place of what is left out."""
_LISTED = 10
_LIMIT = 16 << 10
"""Bytes of a statement, at most."""
_TEXT = rb"'(?:[^'\\]|\\.|'')*'(?!')"
_WORD = rb"(?:%s|`(?:[^`]|``)*`(?!`))" % _TEXT
_ACCOUNT = rb"%s@%s" % (_WORD, _WORD)
_CREATE = re.compile(
    rb"CREATE (?:USER|ROLE) (?:IF NOT EXISTS )?(%s)"
    rb"(?: IDENTIFIED WITH '(\w*)'(?: AS (%s|0x[0-9A-F]*))?)?(.*)" % (_ACCOUNT, _TEXT),
    re.IGNORECASE | re.DOTALL,
)
_GRANT = re.compile(
    rb"GRANT ([^']+?) ON ((?:(?:PROCEDURE|FUNCTION) )?(%s|\*)\.(?:%s|\*)) TO (%s)"
    rb"( WITH GRANT OPTION)?\s*" % (_WORD, _WORD, _ACCOUNT),
    re.IGNORECASE | re.DOTALL,
)
_ROLES = re.compile(
    rb"GRANT ((?:%s,? ?)+) TO (%s)( WITH ADMIN OPTION)?\s*" % (_ACCOUNT, _ACCOUNT),
    re.IGNORECASE | re.DOTALL,
)
_DEFAULT = re.compile(
    rb"SET DEFAULT ROLE ((?:%s,? ?)+) TO (%s)\s*" % (_ACCOUNT, _ACCOUNT), re.IGNORECASE | re.DOTALL
)
_REVOKE = re.compile(rb"REVOKE .+ FROM (%s)\s*" % _ACCOUNT, re.IGNORECASE | re.DOTALL)
_PROXY = re.compile(rb"GRANT PROXY ON .+ TO (%s)" % _ACCOUNT, re.IGNORECASE | re.DOTALL)
_NAMED = re.compile(
    rb"(?:CREATE (?:USER|ROLE) (?:IF NOT EXISTS )?|.*? (?:TO|FROM) )(%s)" % _ACCOUNT,
    re.IGNORECASE | re.DOTALL,
)
_REQUIRE = re.compile(
    rb" REQUIRE (?:NONE|SSL|X509|(?:(?:SUBJECT|ISSUER|CIPHER) %s ?)+)" % _TEXT, re.IGNORECASE
)
_LIMITS = re.compile(rb" WITH(?: MAX_[A-Z_]+ \d+)+", re.IGNORECASE)
_EXPIRE = re.compile(rb" PASSWORD EXPIRE(?: NEVER| INTERVAL \d+ DAY| DEFAULT)?", re.IGNORECASE)
_LOCKED = re.compile(rb" ACCOUNT LOCK\b", re.IGNORECASE)
_HASH = re.compile(rb"\*[0-9A-F]{40}", re.IGNORECASE)
_PRIVILEGE = re.compile(rb"\s*([A-Za-z_ ]+?)\s*(\((?:`(?:[^`]|``)*`|[^`)])*\))?\s*(?:,|\Z)")
_LOCK = re.compile(rb" ACCOUNT (?:UN)?LOCK\b", re.IGNORECASE)
_PASSWORD = re.compile(
    rb" PASSWORD (?:HISTORY|REUSE|REQUIRE)| FAILED_LOGIN| ATTRIBUTE| COMMENT", re.I
)
_NATIVE = b"mysql_native_password"
_WITHOUT_NATIVE = (8, 4)
"""The first series of MySQL that does not have it, unless an option says so; 9.0 has removed it."""
_PLUGINS = {_NATIVE: _NATIVE, b"auth_socket": b"unix_socket"}
_PRIVILEGES = frozenset(
    b"ALL PRIVILEGES,ALTER,ALTER ROUTINE,CREATE,CREATE ROUTINE,CREATE TABLESPACE,"
    b"CREATE TEMPORARY TABLES,CREATE USER,CREATE VIEW,DELETE,DROP,EVENT,EXECUTE,FILE,INDEX,INSERT,"
    b"LOCK TABLES,PROCESS,REFERENCES,RELOAD,REPLICATION CLIENT,REPLICATION SLAVE,SELECT,"
    b"SHOW DATABASES,SHOW VIEW,SHUTDOWN,SUPER,TRIGGER,UPDATE,USAGE".split(b",")
)
"""Those that MySQL and MariaDB have in common; CREATE USER includes CREATE ROLE and DROP ROLE."""
_INCLUDED = frozenset([b"CREATE ROLE", b"DROP ROLE"])
_VERIFIED = frozenset([b"caching_sha2_password", b"sha256_password", b"auth_socket"])
"""Plugins that MySQL's images have; others are Enterprise's, or must be loaded first."""
_FACTOR, _AFTER = b" AND IDENTIFIED ", b" REQUIRE "
"""Where further factors of an account begin, and what follows the last one."""
_DYNAMIC: Mapping[bytes, tuple[int, ...]] = {
    **dict.fromkeys(
        b"APPLICATION_PASSWORD_ADMIN,AUDIT_ADMIN,BACKUP_ADMIN,BINLOG_ADMIN,BINLOG_ENCRYPTION_ADMIN,"
        b"CLONE_ADMIN,CONNECTION_ADMIN,ENCRYPTION_KEY_ADMIN,FLUSH_OPTIMIZER_COSTS,FLUSH_STATUS,"
        b"FLUSH_TABLES,FLUSH_USER_RESOURCES,GROUP_REPLICATION_ADMIN,INNODB_REDO_LOG_ARCHIVE,"
        b"INNODB_REDO_LOG_ENABLE,PERSIST_RO_VARIABLES_ADMIN,REPLICATION_APPLIER,"
        b"REPLICATION_SLAVE_ADMIN,RESOURCE_GROUP_ADMIN,RESOURCE_GROUP_USER,ROLE_ADMIN,"
        b"SERVICE_CONNECTION_ADMIN,SET_USER_ID,SESSION_VARIABLES_ADMIN,SHOW_ROUTINE,SYSTEM_USER,"
        b"SYSTEM_VARIABLES_ADMIN,TABLE_ENCRYPTION_ADMIN,XA_RECOVER_ADMIN".split(b","),
        (8, 0),
    ),
    b"AUTHENTICATION_POLICY_ADMIN": (8, 0, 27),
    b"FIREWALL_EXEMPT": (8, 0, 27),
    b"GROUP_REPLICATION_STREAM": (8, 0, 27),
    b"PASSWORDLESS_USER_ADMIN": (8, 0, 27),
    b"AUDIT_ABORT_EXEMPT": (8, 0, 28),
    b"SENSITIVE_VARIABLES_OBSERVER": (8, 0, 29),
    b"TELEMETRY_LOG_ADMIN": (8, 0, 33),
    b"ALLOW_NONEXISTENT_DEFINER": (8, 2),
    b"SET_ANY_DEFINER": (8, 2),
    b"TRANSACTION_GTID_TAG": (8, 3),
    b"FLUSH_PRIVILEGES": (8, 4),
    b"OPTIMIZE_LOCAL_TABLE": (8, 4),
    b"CREATE_SPATIAL_REFERENCE_SYSTEM": (9, 7),
    b"MANAGE_DATA_MASKING_POLICY": (9, 7),
}
"""Privileges with names of one word that MySQL's images have, and since when: SHOW PRIVILEGES of
9.7, and the manual, "Dynamic Privilege Descriptions". Others are of plugins that no image has."""
_RENAMED = {b"SET_USER_ID": (b"SET_ANY_DEFINER", b"ALLOW_NONEXISTENT_DEFINER")}
"""What was removed in 8.4, and what has been in its place."""
_RENAMED_SINCE = _DYNAMIC[b"SET_ANY_DEFINER"]
_NEWEST, _NEVER = (999,), (1000,)


@dataclass
class _Lost:
    """What does not become what it was in a server of ``version``."""

    version: str = ""
    locked: dict[str, None] = field(default_factory=dict)
    revoked: dict[str, None] = field(default_factory=dict)
    privileges: dict[str, None] = field(default_factory=dict)
    statements: int = 0


@dataclass(frozen=True)
class Script:
    """Statements, and notes about what they are not."""

    text: bytes
    notes: tuple[str, ...]


def translated(script: bytes, name: str, dialect: DialectName, version: str = "") -> Script:
    """``script`` for a server of ``dialect`` and ``version``, without accounts of images.

    ``name``: of the file. Raises InvalidSpec as ``statements``.
    """
    found, lost = list(statements([script], name, limit=_LIMIT)), _Lost(version)
    roles = {
        _key(role)
        for one in found
        if (match := _ROLES.fullmatch(one.text))
        for role in _accounts(match[1])
    }
    change = _CHANGES[dialect]
    made = ((one, _NOTHING if _is_ours(one) else change(one.text, roles, lost)) for one in found)
    return Script(_placed(script, made), tuple(_notes(lost)))


def _placed(script: bytes, made: Iterable[tuple[Statement, bytes]]) -> bytes:
    """Statements in the lines in which others began."""
    out, at, line, written = bytearray(), 0, 0, 0
    for statement, text in made:
        line += script.count(b"\n", at, statement.offset)
        at = statement.offset
        new = b"\n" * (line - written) + text + b"; "
        written += new.count(b"\n")
        out += new
    return bytes(out) + b"\n"


def _is_ours(statement: Statement) -> bool:
    match = _NAMED.match(statement.text)
    if match is None:
        return False
    user, host = _key(match[1])
    reserved = user == "lab" or user.startswith(("mysql.", "mariadb.", "percona."))
    return reserved or (user, host) == ("root", "localhost")


def _for_mariadb(text: bytes, roles: set[tuple[str, str]], lost: _Lost) -> bytes:
    if match := _CREATE.fullmatch(text):
        return _created(match, roles, lost)
    if match := _GRANT.fullmatch(text):
        return _granted(match, roles, lost)
    if match := _REVOKE.fullmatch(text):
        # It would have more than it had.
        lost.revoked[_shown(match[1])] = None
        return b"ALTER USER %s ACCOUNT LOCK" % match[1]
    if _PROXY.match(text) or text.upper() == b"FLUSH PRIVILEGES":
        return text
    found = _of_roles(text, roles)
    lost.statements += found == _NOTHING
    return found


def _of_roles(text: bytes, roles: set[tuple[str, str]]) -> bytes:
    if match := _ROLES.fullmatch(text):
        granted = b",".join(_plain(role) for role in _accounts(match[1]))
        return b"GRANT %s TO %s%s" % (granted, _whom(match[2], roles), match[3] or b"")
    if match := _DEFAULT.fullmatch(text):
        # An account has one there.
        first = next(iter(_accounts(match[1])))
        return b"SET DEFAULT ROLE %s FOR %s" % (_plain(first), match[2])
    return _NOTHING


def _for_mysql(text: bytes, roles: set[tuple[str, str]], lost: _Lost) -> bytes:  # noqa: ARG001
    if match := _CREATE.fullmatch(text):
        return _created_for_mysql(match, lost) or text
    if match := _GRANT.fullmatch(text):
        return _granted_for_mysql(match, lost)
    return text


def _created_for_mysql(match: re.Match[bytes], lost: _Lost) -> bytes:
    """What creates an account that the server cannot verify; empty: it can."""
    plugin, kept = match[2] or b"", _LOCK.sub(b"", match[4])
    has_native = numbers(lost.version) < _WITHOUT_NATIVE
    is_known = not plugin or plugin in _VERIFIED or (plugin == _NATIVE and has_native)
    if kept.upper().startswith(_FACTOR):
        kept, is_known = b"".join(kept.partition(_AFTER)[1:]), False
    if is_known:
        return b""
    lost.locked[f"{_shown(match[1])} ({plugin.decode()})"] = None
    begin = _PASSWORD.search(kept)  # its clauses follow that of the lock
    at = begin.start() if begin else len(kept)
    return b"CREATE USER IF NOT EXISTS %s IDENTIFIED WITH caching_sha2_password BY %s%s%s%s" % (
        match[1], b"RANDOM PASSWORD", kept[:at], b" ACCOUNT LOCK", kept[at:],
    )  # fmt: skip


def _granted_for_mysql(match: re.Match[bytes], lost: _Lost) -> bytes:
    privileges, where, _, whom, option = match.groups()
    ours, found, at, changed = numbers(lost.version) or _NEWEST, dict[bytes, None](), 0, False
    while one := _PRIVILEGE.match(privileges, at):
        name, at = one[1].upper(), one.end()
        for new in _RENAMED.get(name, (name,)) if ours >= _RENAMED_SINCE else (name,):
            changed |= new != name
            if b"_" not in new or ours >= _DYNAMIC.get(new, _NEVER):
                found[new + (one[2] or b"")] = None
            else:
                changed, lost.privileges[name.decode()] = True, None
    if not changed or at < len(privileges):
        return match[0]
    if not found:
        return _NOTHING
    return b"GRANT %s ON %s TO %s%s" % (b", ".join(found), where, whom, option or b"")


_CHANGES: Mapping[DialectName, Callable[[bytes, set[tuple[str, str]], _Lost], bytes]] = {
    "mariadb": _for_mariadb,
    "mysql": _for_mysql,
}
"""What a statement becomes, by the dialect of the server that is to have it."""


def _created(match: re.Match[bytes], roles: set[tuple[str, str]], lost: _Lost) -> bytes:
    account, plugin, password, rest = match[1], match[2], match[3] or b"", match[4]
    role = b""
    if _key(account) in roles:
        role = b"CREATE ROLE IF NOT EXISTS %s" % _plain(account)
        if _LOCKED.search(rest) or plugin is None:
            return role
        role += b"; "
    secret = password[1:-1]
    if password[:2].lower() == b"0x":
        secret = bytes.fromhex(password[2:].decode()) if len(password) % 2 == 0 else b"?"
    ours = _PLUGINS.get(plugin or b"")
    clauses = (_REQUIRE.search(rest), _LIMITS.search(rest), _EXPIRE.search(rest))
    kept = [one[0] for one in clauses if one]
    if _LOCKED.search(rest):
        kept.append(b" ACCOUNT LOCK")
    if ours is None or (secret and not _HASH.fullmatch(secret)):
        lost.locked[f"{_shown(account)} ({(plugin or b'no plugin').decode()})"] = None
        ours, secret = _PLUGINS[b"mysql_native_password"], b"invalid"
        kept = [*(one for one in kept if one != b" ACCOUNT LOCK"), b" ACCOUNT LOCK"]
    using = b" USING '%s'" % secret if secret else b""
    return b"%sCREATE USER IF NOT EXISTS %s IDENTIFIED VIA %s%s%s" % (
        role, account, ours, using, b"".join(kept),
    )  # fmt: skip


def _granted(match: re.Match[bytes], roles: set[tuple[str, str]], lost: _Lost) -> bytes:
    privileges, where, database, whom, option = match.groups()
    found, at = [], 0
    while one := _PRIVILEGE.match(privileges, at):
        name, at = one[1].upper(), one.end()
        if name in _PRIVILEGES:
            found.append(name + (one[2] or b""))
        elif name not in _INCLUDED:
            lost.privileges[name.decode()] = None
    is_other = at < len(privileges) or _unquoted(database) in OWN
    if not found or is_other:
        lost.statements += is_other
        return _NOTHING
    return b"GRANT %s ON %s TO %s%s" % (
        b", ".join(found), where, _whom(whom, roles), option or b"",
    )  # fmt: skip


def _notes(lost: _Lost) -> Iterable[str]:
    if lost.locked:
        yield (
            "accounts are locked, since the server cannot verify their passwords:"
            f" {_listed(lost.locked)}; a file of --sql with ALTER USER ... IDENTIFIED BY ..."
            " ACCOUNT UNLOCK gives them others"
        )
    if lost.revoked:
        yield (
            "accounts are locked, since MariaDB knows no partial revokes:"
            f" {_listed(lost.revoked)}; grant what they need, and unlock them, in a file of --sql"
        )
    if lost.privileges:
        names = _listed(lost.privileges)
        yield f"privileges that the server does not have are not granted: {names}"
    if lost.statements:
        yield (
            f"{lost.statements} statements about accounts are left out: grants on databases of the"
            " server itself, or what MariaDB has not"
        )


def _listed(names: dict[str, None]) -> str:
    more = len(names) - _LISTED
    return ", ".join(list(names)[:_LISTED]) + (f" and {more} more" if more > 0 else "")


def _accounts(text: bytes) -> Iterable[bytes]:
    return (match[0] for match in re.finditer(_ACCOUNT, text, re.DOTALL))


def _key(account: bytes) -> tuple[str, str]:
    """User and host."""
    user, host = (match[0] for match in re.finditer(_WORD, account, re.DOTALL))
    return _unquoted(user), _unquoted(host).lower()


def _unquoted(word: bytes) -> str:
    sign = word[:1]
    if sign not in (b"`", b"'"):
        return word.decode(errors="replace")
    text = word[1:-1].replace(sign * 2, sign)
    return (re.sub(rb"\\(.)", rb"\1", text) if sign == b"'" else text).decode(errors="replace")


def _plain(account: bytes) -> bytes:
    """A role's name, which has no host in MariaDB."""
    return b"`%s`" % _key(account)[0].replace("`", "``").encode()


def _whom(account: bytes, roles: set[tuple[str, str]]) -> bytes:
    return _plain(account) if _key(account) in roles else account


def _shown(account: bytes) -> str:
    text = "@".join(_key(account))
    return text if text.isprintable() else repr(text)
