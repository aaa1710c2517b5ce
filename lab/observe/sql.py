"""SQL from the host, through the published ports.

Whoever is root in a node may have put another program in the place of its server, and while a
node does not run, other users of the host can listen at its port. So an answer has a limit of
bytes and one of time for all of it, and a server is given a proof of the password, not the
password: by the plugin that the account has, and over TLS. Others give the server the password
itself, or so much of it that it can be found; a server could ask for these instead. MySQL has only
``caching_sha2_password``, by which a server that does not know the password's digest yet is sent
the password: one whose certificate says that it is the lab's.

On this host TLS is left out where the kernel says that the other end is the program that forwards a
guest's port (``Account.peer``): a login with TLS costs an emulated guest 0.05 s.
"""

from __future__ import annotations

import math
import re
import socket
import ssl
import threading
from collections.abc import Callable, Iterator, Sequence
from contextlib import closing, suppress
from dataclasses import replace
from functools import lru_cache
from pathlib import Path
from typing import Any, TypeVar

import pymysql
from pymysql.connections import Connection
from pymysql.constants import CLIENT, CR
from pymysql.protocol import MysqlPacket

from lab.errors import NotReady, StatementRefused
from lab.observe.account import Account
from lab.observe.dial import finish
from lab.observe.peer import owner_of
from lab.observe.ways import Rows
from lab.passwords import NATIVE
from lab.wait import Deadline

T = TypeVar("T")
R = TypeVar("R")

_MOST = 1 << 20
"""Bytes of all that a server sends, unless the user asked: the answers to our questions are less
than a hundredth of that."""
_OF_DATABASES = (1044, 1049)
"""Errors at a login because of the default database: not allowed, not there."""
_SQLSTATE = re.compile(r"[0-9A-Z]{5}")
_REASON = 1024
"""Characters of a reason that are kept."""
_REMEDY = "; `lab stop` and `lab start` give nodes new certificates"
_SHORTEST = 0.001
_LAST = 0.1
"""Seconds that the last message of a connection may take."""
_PIECE = 1 << 14
"""Bytes that are read at once. A packet of a few bytes for each row, read alone, is half of the
time of a large answer."""
_LONGEST = 1 << 20
"""Bytes for which memory is taken at once, whatever length a server names."""
_READ = 64
"""Bytes that each part of a packet counts as, beside its own: what keeping it takes."""


def ask(
    account: Account, port: int, statement: str, *, timeout: float, whole: bool = False
) -> Rows:
    """Run one statement; see ``ask_all``."""
    return ask_all(account, port, [statement], timeout=timeout, whole=whole)[0]


def ask_all(
    account: Account,
    port: int,
    statements: Sequence[str],
    *,
    timeout: float,
    whole: bool = False,
    begun: socket.socket | None = None,
) -> list[Rows]:
    """Run statements on one connection, one after the other; the answers in order.

    ``timeout``: seconds for all of it, from connecting to the last row. ``whole``: the answers may
    have any size. ``begun``: a connection to that port, see ``dial``; it is closed. Raises NotReady
    if no server answers in time, or not as one, CommandFailed if it refuses a statement.
    """
    with closing(_Line(account, port, begun)) as line:
        return line.ask(statements, timeout, whole=whole)


class KeptConnections:
    """``ask_all`` on connections that are kept, one for each port and account.

    One that broke since it was used, as its server was restarted, rolled back or ended it, is made
    again. Safe for several threads; the questions of a connection come one after the other. After
    ``close`` each question has a connection of its own: a look that is under way continues.
    """

    def __init__(self) -> None:
        self._guard = threading.Lock()
        self._lines: dict[tuple[Account, int], _Line] = {}
        self._closed = False

    def __call__(
        self,
        account: Account,
        port: int,
        statements: Sequence[str],
        *,
        timeout: float,
        whole: bool = False,
    ) -> list[Rows]:
        """See ``ask_all``."""
        with self._guard:
            line = _Line(account, port)
            if not self._closed:
                line = self._lines.setdefault((account, port), line)
        deadline = Deadline.after(timeout)
        if not line.busy.acquire(timeout=timeout):
            text = f"no answer within {round(timeout, 3):g} s"
            raise NotReady(f"no SQL at {account.host}:{port}", details=[text])
        try:
            return line.ask(statements, max(deadline.left, 0.001), whole=whole)
        finally:
            # Before another question gets it: a line is closed by who uses it.
            with self._guard:
                if line not in self._lines.values():
                    line.close()
                line.busy.release()

    def close(self) -> None:
        """Close all connections, those in use once they are answered, and keep none any more."""
        with self._guard:
            self._closed = True
            lines, self._lines = self._lines, {}
        for line in lines.values():
            if line.busy.acquire(blocking=False):
                line.close()
                line.busy.release()


class _Line:
    """A connection to a port that is made when it is first used, and again after it broke."""

    def __init__(self, account: Account, port: int, begun: socket.socket | None = None) -> None:
        self.busy = threading.Lock()
        self._begun = begun
        self._account = account
        self._port = port
        self._connection: _Bounded | None = None

    def ask(self, statements: Sequence[str], timeout: float, *, whole: bool) -> list[Rows]:
        """See ``ask_all``."""
        deadline = Deadline.after(timeout)
        if self._connection is not None:
            try:
                return self._ask(statements, timeout, deadline, whole=whole)
            except (NotReady, StatementRefused):
                # A server that ended the session says so, in one of several ways, or nothing.
                self.close()
                if deadline.passed:
                    raise
        return self._ask(statements, timeout, deadline, whole=whole)

    def _ask(
        self, statements: Sequence[str], timeout: float, deadline: Deadline, *, whole: bool
    ) -> list[Rows]:
        connected = False
        try:
            connection = self._connection or _connection(self._account)
            connection.left, connection.end = math.inf if whole else _MOST, deadline
            connection.heard = False
            if self._connection is None:
                self._connection = connection
                begun, self._begun = self._begun, None
                _connect(connection, self._account, self._port, deadline, begun)
            connected = True
            return [next(_run(connection, statement)) for statement in statements]
        except Exception as error:  # noqa: BLE001  what comes need not be what a server sends
            if not connected and self._account.peer is not None and _code(error):
                # It, or the account, was set to take TLS alone since.
                self.close()
                self._account = replace(self._account, peer=None)
                return self._ask(statements, timeout, deadline, whole=whole)
            raised = _raised(error, self._connection, self._account, self._port, timeout, deadline,
                             connected=connected)  # fmt: skip
            if isinstance(raised, NotReady):
                self.close()
            raise raised from None

    def close(self) -> None:
        """Close the connection, if there is one."""
        if self._begun is not None:
            self._begun.close()
        connection, self._connection = self._connection, None
        if connection is not None and connection.open:
            connection.end = Deadline.after(_LAST)
            with suppress(pymysql.err.MySQLError, OSError):
                connection.close()


def ask_text(
    account: Account, port: int, text: str, *, timeout: float, database: str = ""
) -> Iterator[Rows]:
    """Run the statements of ``text``, one after the other; each of their results as it comes.

    ``database``: the default one. A CALL has as many results as its routine selects. Raises as
    ``ask_all`` does, after the results of the statements before.
    """
    deadline = Deadline.after(timeout)
    connection, connected = None, False
    try:
        connection = _connection(account, database, CLIENT.MULTI_STATEMENTS)
        connection.left, connection.end = math.inf, deadline
        _connect(connection, account, port, deadline)
        connected = True
        yield from _run(connection, text)
    except Exception as error:  # noqa: BLE001  what comes need not be what a server sends
        raise _raised(
            error, connection, account, port, timeout, deadline, connected=connected
        ) from None
    finally:
        if connection is not None and connection.open:
            connection.end = Deadline.after(_LAST)
            with suppress(pymysql.err.MySQLError, OSError):
                connection.close()


def _raised(
    error: Exception,
    connection: _Bounded | None,
    account: Account,
    port: int,
    timeout: float,
    deadline: Deadline,
    *,
    connected: bool,
) -> StatementRefused | NotReady:
    """What a server said, or why none answered."""
    code = _code(error)
    if code and (connected or code in _OF_DATABASES):
        return StatementRefused(code, _text(error), _state(error))
    what = "no answer to a statement" if connected else "no SQL"
    late = deadline.passed
    text = f"no answer within {round(timeout, 3):g} s" if late else _text(error)
    heard = connection is not None and connection.heard
    return NotReady(f"{what} at {account.host}:{port}", details=[text], begun=late and heard)


def _run(connection: Connection[Any], text: str) -> Iterator[Rows]:
    """Each result of ``text``; the next one is read when it is asked for."""
    with connection.cursor(pymysql.cursors.Cursor) as cursor:
        affected = cursor.execute(text)
        while True:
            columns = tuple(column[0] for column in cursor.description or ())
            yield Rows(columns, tuple(cursor.fetchall()), affected)
            if not cursor.nextset():
                return
            affected = cursor.rowcount


class _Refused(Exception):
    """The server sends too much, or requests another authentication."""


class _Packet(MysqlPacket):
    """One whose error has its SQLSTATE."""

    def raise_for_error(self) -> None:
        try:
            super().raise_for_error()
        except pymysql.err.MySQLError as error:
            data: bytes = self.get_all_data()  # type: ignore[no-untyped-call]  # not in its types
            if data[3:4] == b"#":
                error.sqlstate = data[4:9].decode("ascii", "replace")  # type: ignore[attr-defined]
            raise


class _Bounded(Connection):
    """A connection that reads so many bytes, and authenticates as the account does only."""

    left: float = _MOST
    plugin: str = NATIVE
    peer: int | None = None
    names: bool = True
    """Whether SET NAMES is sent in any case: it sets the collation of literals as well, which
    decides what statements of users find and which plans they have."""
    heard: bool = False
    """Whether the server has sent anything."""
    end: Deadline
    """When what is being read or written has to be complete, whatever trickles in until then."""
    _sock: socket.socket | None

    def __init__(self, **options: Any) -> None:
        super().__init__(**options)
        # Not the base's buffered file: it reads until it has all, however long each part takes.
        self._ahead = bytearray()

    def _read_packet(self, packet_type: type[MysqlPacket] = MysqlPacket) -> MysqlPacket:
        kind = _Packet if packet_type is MysqlPacket else packet_type
        packet: MysqlPacket = super()._read_packet(kind)  # type: ignore[no-untyped-call]
        return packet

    def _read_bytes(self, num_bytes: int) -> bytes:
        self.left -= num_bytes + _READ
        if self.left < 0:
            raise _Refused(f"the answer is longer than {_MOST} bytes")
        ahead = self._ahead
        while len(ahead) < num_bytes:
            lacking = num_bytes - len(ahead)
            part = self._in_time(self._socket.recv, min(max(lacking, _PIECE), _LONGEST))
            if not part:
                raise self._lost("it was closed")
            ahead += part
            self.heard = True
        found = bytes(ahead[:num_bytes])
        del ahead[:num_bytes]
        return found

    def _write_bytes(self, data: bytes) -> None:
        self._in_time(self._socket.sendall, data)

    def _in_time(self, do: Callable[[T], R], what: T) -> R:
        # Not the timeouts of the base, which are for each of the socket's parts.
        try:
            if self.end.passed:
                raise TimeoutError("timed out")
            self._socket.settimeout(max(self.end.left, _SHORTEST))
            return do(what)
        except OSError as error:
            raise self._lost(str(error)) from None

    def _lost(self, why: str) -> pymysql.err.OperationalError:
        self._force_close()  # type: ignore[attr-defined]  # not in its types
        return pymysql.err.OperationalError(CR.CR_SERVER_LOST, f"Lost connection to server ({why})")

    @property
    def _socket(self) -> socket.socket:
        if self._sock is None:
            raise self._lost("it is closed")
        return self._sock

    def _request_authentication(self) -> None:
        if self.ssl and not self.server_capabilities & CLIENT.SSL:  # type: ignore[attr-defined]
            raise _Refused("the server offers no TLS")
        if self._ahead:  # else it would be read as if it had come by TLS
            raise _Refused("the server sends more than its greeting")
        # The greeting has come, so that there is somebody: see ``owner_of``.
        if self.peer is not None and owner_of(self._socket) != self.peer:
            raise _Refused("another program than the guest's listens there")
        # Not what the greeting names: it may be one to which the password is sent at once.
        self._auth_plugin_name = self.plugin
        super()._request_authentication()  # type: ignore[misc]

    def set_character_set(self, charset: str, collation: str | None = None) -> None:
        """Send SET NAMES, but not one that would cost a round trip and change nothing.

        A server whose default is ``charset`` uses it whether or not it heeds the client's choice
        (``skip-character-set-client-handshake``).
        """
        if self.names or getattr(self, "server_charset", None) != charset:
            super().set_character_set(charset, collation)

    def _process_auth(self, plugin_name: bytes, auth_packet: Any, *more: Any) -> Any:
        if plugin_name != self.plugin.encode():
            raise _Refused(
                f"the server requires authentication by {plugin_name!r}, not {self.plugin}"
            )
        return super()._process_auth(plugin_name, auth_packet, *more)  # type: ignore[misc]


def _connection(account: Account, database: str = "", flags: int = 0) -> _Bounded:
    """One that is not connected yet; ``flags``: the protocol's."""
    if not account.usable:
        raise _Refused(f"{account.plugin} takes TLS with a certificate that is checked")
    connection = _Bounded(
        user=account.user,
        password=account.password,
        host=account.host,
        autocommit=True,
        database=database or None,
        client_flag=flags,
        ssl=_tls(account) if account.tls else None,
        ssl_disabled=not account.tls,
        defer_connect=True,
    )
    connection.plugin, connection.peer = account.plugin, account.peer
    connection.names = account.peer is None  # else it is a look of ours
    return connection


def _connect(
    connection: _Bounded,
    account: Account,
    port: int,
    deadline: Deadline,
    begun: socket.socket | None = None,
) -> None:
    plain = begun or socket.create_connection((account.host, port), max(deadline.left, _SHORTEST))
    try:
        if begun is not None:
            finish(begun, deadline)
        plain.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
        connection.connect(plain)
    except BaseException:
        plain.close()  # unless TLS took it, which closes it
        raise


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


def _state(error: Exception) -> str:
    """The SQLSTATE of a server's error."""
    found = getattr(error, "sqlstate", "")
    return found if _SQLSTATE.fullmatch(found) else "HY000"


def _code(error: Exception) -> int:
    """The error of a server that refuses a statement; 0 for what the client found."""
    code = error.args[0] if isinstance(error, pymysql.err.MySQLError) and error.args else 0
    return code if isinstance(code, int) and not 2000 <= code < 3000 else 0
