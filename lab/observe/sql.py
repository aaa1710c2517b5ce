"""SQL from the host, through the published ports.

Whoever is root in a node may have put another program in the place of its server, and while a
node does not run, other users of the host can listen at its port. So an answer has a limit of
bytes and one of time for all of it, and a server is given a proof of the password, not the
password: by the plugin that the account has, and over TLS. Others give the server the password
itself, or so much of it that it can be found; a server could ask for these instead. MySQL has only
``caching_sha2_password``, by which a server that does not know the password's digest yet is sent
the password: one whose certificate says that it is the lab's.
"""

from __future__ import annotations

import math
import socket
import ssl
import threading
from collections.abc import Iterator, Sequence
from contextlib import contextmanager, suppress
from functools import lru_cache
from pathlib import Path
from typing import Any

import pymysql
from pymysql.connections import Connection
from pymysql.constants import CLIENT

from lab.errors import CommandFailed, NotReady
from lab.observe.account import Account
from lab.observe.ways import Rows
from lab.passwords import NATIVE
from lab.wait import Deadline

_MOST = 1 << 20
"""Bytes of all that a server sends, unless the user asked: the answers to our questions are less
than a hundredth of that."""
_REASON = 1024
"""Characters of a reason that are kept."""
_REMEDY = "; `lab stop` and `lab start` give nodes new certificates"
_READ = 64
"""Bytes that each part of a packet counts as, beside its own: what keeping it takes."""


def ask(
    account: Account, port: int, statement: str, *, timeout: float, whole: bool = False
) -> Rows:
    """Run one statement; see ``ask_all``."""
    return ask_all(account, port, [statement], timeout=timeout, whole=whole)[0]


def ask_all(
    account: Account, port: int, statements: Sequence[str], *, timeout: float, whole: bool = False
) -> list[Rows]:
    """Run statements on one connection, one after the other; the answers in order.

    ``timeout``: seconds for all of it, from connecting to the last row. ``whole``: the answers may
    have any size. Raises NotReady if no server answers in time, or not as one, CommandFailed if it
    refuses a statement.
    """
    deadline = Deadline.after(timeout)
    connected = heard = False
    try:
        connection = _connection(account, math.inf if whole else _MOST)
        try:
            with _connected(connection, account, port, deadline):
                connected = True
                return [_run(connection, statement) for statement in statements]
        finally:
            heard = connection.heard
    except Exception as error:  # noqa: BLE001  what comes need not be what a server sends
        if connected and (code := _code(error)):
            raise CommandFailed(["SQL"], code, stderr=_text(error)) from None
        what = "no answer to a statement" if connected else "no SQL"
        late = deadline.passed
        text = f"no answer within {round(timeout, 3):g} s" if late else _text(error)
        where = f"{account.host}:{port}"
        raise NotReady(f"{what} at {where}", details=[text], begun=late and heard) from None


def _run(connection: Connection[Any], statement: str) -> Rows:
    with connection.cursor(pymysql.cursors.Cursor) as cursor:
        affected = cursor.execute(statement)
        columns = tuple(column[0] for column in cursor.description or ())
        return Rows(columns, tuple(cursor.fetchall()), affected)


class _Refused(Exception):
    """The server sends too much, or requests another authentication."""


class _Bounded(Connection):
    """A connection that reads so many bytes, and authenticates as the account does only."""

    left: float = _MOST
    plugin: str = NATIVE
    heard: bool = False
    """Whether the server has sent anything."""

    def _read_bytes(self, num_bytes: int) -> bytes:
        self.left -= num_bytes + _READ
        if self.left < 0:
            raise _Refused(f"the answer is longer than {_MOST} bytes")
        data: bytes = super()._read_bytes(num_bytes)  # type: ignore[misc]  # not in its types
        self.heard = True
        return data

    def _request_authentication(self) -> None:
        if self.ssl and not self.server_capabilities & CLIENT.SSL:  # type: ignore[attr-defined]
            raise _Refused("the server offers no TLS")
        # Not what the greeting names: it may be one to which the password is sent at once.
        self._auth_plugin_name = self.plugin
        super()._request_authentication()  # type: ignore[misc]

    def _process_auth(self, plugin_name: bytes, auth_packet: Any, *more: Any) -> Any:
        if plugin_name != self.plugin.encode():
            raise _Refused(
                f"the server requires authentication by {plugin_name!r}, not {self.plugin}"
            )
        return super()._process_auth(plugin_name, auth_packet, *more)  # type: ignore[misc]


def _connection(account: Account, most: float) -> _Bounded:
    """One that is not connected yet, for answers of ``most`` bytes."""
    if not account.usable:
        raise _Refused(f"{account.plugin} takes TLS with a certificate that is checked")
    connection = _Bounded(
        user=account.user,
        password=account.password,
        host=account.host,
        autocommit=True,
        ssl=_tls(account) if account.ca else None,
        ssl_disabled=not account.ca,
        defer_connect=True,
    )
    connection.left, connection.plugin = most, account.plugin
    return connection


@contextmanager
def _connected(
    connection: _Bounded, account: Account, port: int, deadline: Deadline
) -> Iterator[None]:
    """Connected for the block, which ends at ``deadline`` whatever is being read then."""
    with socket.create_connection((account.host, port), max(deadline.left, 0.001)) as plain:
        plain.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
        with plain.dup() as same:  # TLS takes the first
            # A timeout of the socket would be for each of its parts.
            end = threading.Timer(deadline.left, _shut, [same])
            end.daemon = True
            end.start()
            try:
                connection.connect(plain)
                yield
            finally:
                with suppress(pymysql.err.MySQLError, OSError):
                    connection.close()
                end.cancel()
                end.join()


def _shut(connected: socket.socket) -> None:
    with suppress(OSError):  # the server did
        connected.shutdown(socket.SHUT_RDWR)


def _tls(account: Account) -> ssl.SSLContext:
    """What checks the server; raises OSError if its authority is to be checked, and not there."""
    if not account.verify:
        return _unchecked()
    return _context(account.ca, Path(account.ca).stat().st_mtime_ns)


@lru_cache(maxsize=8)
def _context(ca: str, changed: int) -> ssl.SSLContext:
    """The context for a certificate that was written then: reading it takes a millisecond."""
    del changed
    return ssl.create_default_context(cafile=ca)


@lru_cache(maxsize=1)
def _unchecked() -> ssl.SSLContext:
    """TLS with whatever certificate the server has."""
    context = ssl.SSLContext(ssl.PROTOCOL_TLS_CLIENT)
    context.check_hostname = False
    context.verify_mode = ssl.CERT_NONE
    return context


def _text(error: Exception) -> str:
    if "CERTIFICATE_VERIFY_FAILED" in str(error):
        return f"{error}"[:_REASON] + _REMEDY
    if isinstance(error, FileNotFoundError):  # nothing else is opened
        return f"there is no certificate of an authority at {error.filename}{_REMEDY}"
    coded = isinstance(error, pymysql.err.MySQLError) and len(error.args) > 1
    return str(error.args[1] if coded else error)[:_REASON]


def _code(error: Exception) -> int:
    """The error of a server that refuses a statement; 0 for what the client found."""
    code = error.args[0] if isinstance(error, pymysql.err.MySQLError) and error.args else 0
    return code if isinstance(code, int) and not 2000 <= code < 3000 else 0
