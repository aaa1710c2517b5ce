"""A hostile guest: ``guest.pl`` at sockets of this host, and in place of a fake lab's guests."""

from __future__ import annotations

import json
import os
import signal
import socket
import ssl
import subprocess
import threading
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager, suppress
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any, cast

from lab.errors import NotReady
from lab.guest import authority
from lab.hypervisor import GuestChannel, Hypervisor
from lab.hypervisor.agent import AgentChannel
from lab.hypervisor.lines import exchange, next_line
from lab.lifecycle.core.context import Context
from lab.names import LOOPBACK, GuestName
from lab.observe.account import Account
from lab.observe.sql import ask_all
from lab.observe.ways import Rows, SqlAll
from lab.progress import never_halt
from lab.wait import Deadline

PROGRAM = Path(__file__).with_name("guest.pl")

SQL = ("sql-rows", "sql-large", "sql-drip", "sql-file", "sql-columns", "sql-nonsense")
"""Servers that let anybody in, and answer no question."""
THIEVES = ("sql-clear", "sql-old", "sql-dialog", "sql-sha2", "sql-sha256")
"""Servers that ask for the password by plugins that give it away."""


@contextmanager
def behaving(
    behaviour: str, place: str, leak: Path | None = None, prefix: Sequence[str] = ()
) -> Iterator[int]:
    """The program at ``place`` for the block; its port, if it has one. ``leak``: what it got.

    ``prefix``: argv of what runs it, such as ``setpriv``.
    """
    with (
        PROGRAM.open() as program,
        subprocess.Popen(
            [*prefix, "perl", "-", behaviour, place],
            stdin=program,  # who runs it need not be able to open it
            stdout=subprocess.PIPE,
            text=True,
            env={"LEAK": str(leak or "/dev/null")},
            start_new_session=True,  # it forks for each connection
        ) as process,
    ):
        try:
            assert process.stdout is not None
            word, _, port = process.stdout.readline().strip().partition(" ")
            assert word == "ready", behaviour
            yield int(port or 0)
        finally:
            os.killpg(process.pid, signal.SIGKILL)


@dataclass(frozen=True)
class Ports:
    """The ports of a guest, both at one socket of this host.

    ``there``: whether the guest exists; a wait ends when the guest does, as QEMU closes
    its sockets.
    """

    path: Path
    guest: GuestName
    there: Callable[[], bool] = lambda: True

    def personalise(
        self, message: bytes, deadline: Deadline, halt: Callable[[], None] = never_halt
    ) -> str:
        def look() -> None:
            halt()
            self._look()

        return exchange(str(self.path), message, deadline, self.guest, look)

    def ask(self, request: dict[str, Any], timeout: float) -> Any:
        with socket.socket(socket.AF_UNIX) as port:
            try:
                port.connect(str(self.path))
                port.sendall(json.dumps(request).encode() + b"\n")
                line = next_line(port, Deadline.after(timeout), halt=self._look)
            except OSError as error:
                raise NotReady(f"{self.guest} does not answer", details=[str(error)]) from None
        return json.loads(line)["return"]

    def _look(self) -> None:
        if not self.there():
            raise ConnectionResetError("the guest has ended")


def channel(path: Path) -> AgentChannel:
    """The way into a guest that answers at a socket."""
    guest = GuestName("lab-evil-n1")
    return AgentChannel(Ports(path, guest), guest)


EVIL = "evil"
"""The lab whose guests are hostile."""


class _Hypervisor:
    """``ours``, but that the ports of the lab's guests are at a socket of this host."""

    def __init__(self, ours: Hypervisor, path: Path, turned: threading.Event) -> None:
        self._ours, self._path, self._turned = ours, path, turned

    def __getattr__(self, name: str) -> Any:
        return getattr(self._ours, name)

    def channel(self, guest: GuestName) -> GuestChannel:
        found = self._ours.channel(guest)  # raises where there is no such guest
        if not self._turned.is_set() or not guest.startswith(f"lab-{EVIL}-"):
            return found
        ports = Ports(self._path, guest, lambda: guest in self._ours.guests())
        return AgentChannel(ports, guest)


def infested(ctx: Context, path: Path, port: int, turned: threading.Event | None = None) -> Context:
    """``ctx`` where the guests of ``EVIL`` are hostile (once ``turned`` is set).

    ``path``: the socket that answers as their ports do; ``port``: as their servers.
    """
    if turned is None:
        turned = threading.Event()
        turned.set()
    bad = cast("Hypervisor", _Hypervisor(ctx.hypervisor, path, turned))
    return replace(ctx, hypervisor=bad, sql_all=_asking(ctx, port, turned))


def _asking(ctx: Context, real: int, turned: threading.Event) -> SqlAll:

    def sql(
        account: Account,
        port: int,
        statements: Sequence[str],
        *,
        timeout: float,
        whole: bool = False,
    ) -> list[Rows]:
        ports = [node.sql_port for node in ctx.store.nodes.of(EVIL)]
        if turned.is_set() and port in ports:
            plain = Account(account.user, account.password)
            return ask_all(plain, real, statements, timeout=timeout, whole=whole)
        return ctx.sql_all(account, port, statements, timeout=timeout, whole=whole)

    return sql


@dataclass(frozen=True)
class Signed:
    """An authority's certificate, and a server's certificate and key that it signed."""

    ca: Path
    chain: Path


def signed(directory: Path, name: str = LOOPBACK) -> Signed:
    """A new authority, and what it signed for ``name``."""
    made = authority.make("lab")
    own = authority.issue(authority.read(made.private, made.certificate), "n1", [name])
    found = Signed(directory / "ca.pem", directory / "chain.pem")
    found.ca.write_bytes(made.certificate)
    found.chain.write_bytes(own.certificate + own.private)
    return found


@contextmanager
def over_tls(port: int, chain: Path) -> Iterator[int]:
    """The server at ``port`` with TLS as MySQL has it, at the port that is given."""
    context = ssl.SSLContext(ssl.PROTOCOL_TLS_SERVER)
    context.load_cert_chain(chain)

    def serve(client: socket.socket) -> None:
        with client, socket.create_connection((LOOPBACK, port)) as server:
            client.sendall(server.recv(65536))  # the greeting
            client.recv(36, socket.MSG_WAITALL)  # that TLS is wanted; what follows is TLS
            with context.wrap_socket(client, server_side=True) as inner:
                back = threading.Thread(target=pump, args=[server, inner], daemon=True)
                back.start()
                pump(inner, server)

    def meet(client: socket.socket) -> None:
        with suppress(OSError):
            serve(client)

    with socket.create_server((LOOPBACK, 0)) as door:

        def take() -> None:
            with suppress(OSError):
                while True:
                    threading.Thread(target=meet, args=[door.accept()[0]], daemon=True).start()

        threading.Thread(target=take, daemon=True).start()
        try:
            yield int(door.getsockname()[1])
        finally:
            door.shutdown(socket.SHUT_RDWR)


def pump(source: socket.socket, to: socket.socket) -> None:
    """Pass on what comes."""
    with suppress(OSError, ValueError):
        while data := source.recv(65536):
            to.sendall(data)
    with suppress(OSError):
        to.shutdown(socket.SHUT_WR)
