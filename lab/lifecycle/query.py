"""SQL on the labs that are recorded: one statement, or a session in the client program."""

from __future__ import annotations

import os
import secrets
import shutil
from collections.abc import Collection
from dataclasses import dataclass, field
from pathlib import Path

from lab.blueprints import has_server
from lab.errors import HostUnfit, NotFound, NotReady
from lab.lifecycle.core.context import Context
from lab.lifecycle.core.views import SILENT, SSL_MODE
from lab.lifecycle.nodes.connection import account_of, elects, entry_of
from lab.lifecycle.nodes.inspect import lab, record_of
from lab.names import GuestName, Owner
from lab.observe.account import Account
from lab.observe.ask import account_at
from lab.observe.ways import Rows
from lab.paths import writing

_QUERY_SECONDS = 600.0
_CHECKS = {"mariadb": "ssl-verify-server-cert", "mysql": f"ssl-mode={SSL_MODE}"}
"""The option with which each client program verifies the server."""


def query(
    ctx: Context, name: str, node: str | None, statement: str, seconds: float | None = None
) -> Rows:
    """Run one statement on a node of a lab (by default its entry point), as the lab's user.

    ``seconds``: it may take so long, and its answer have a mebibyte at most; None: ten minutes, and
    any size. Raises NotFound, NotReady or CommandFailed.
    """
    account, port = _login(ctx, name, node)
    whole, limit = seconds is None, seconds or _QUERY_SECONDS
    return ctx.sql(account, port, statement, timeout=limit, whole=whole)


@dataclass(frozen=True)
class Client:
    """The client program for one node; ``argv`` works within the ``with`` block only.

    The password is in a file that only the user can read, never in ``argv``.
    """

    argv: list[str]
    options: Path
    content: str = field(repr=False)

    def __enter__(self) -> Client:
        with writing(self.options):
            fd = os.open(self.options, os.O_WRONLY | os.O_CREAT | os.O_EXCL, 0o600)
            with os.fdopen(fd, "w", encoding="utf-8") as file:
                file.write(self.content)
        return self

    def __exit__(self, *_: object) -> None:
        self.options.unlink(missing_ok=True)


def client(ctx: Context, name: str, node: str | None) -> Client:
    """The client program that opens a session on a node.

    Raises as ``query`` does, and HostUnfit if there is no such program.
    """
    account, port = _login(ctx, name, node)
    if not ctx.home.ca.exists():
        raise NotReady(
            f"there is no certificate of an authority at {ctx.home.ca}",
            hint=f"`lab stop {name}` and `lab start {name}` give nodes new certificates",
        )
    options = ctx.home.private(Owner("lab", name)) / f"client-{secrets.token_hex(6)}.cnf"
    return program(account, port, options)


def program(account: Account, port: int, options: Path) -> Client:
    """The client program for a port, with ``options`` to hold the password; raises HostUnfit."""
    found = next((path for p in ("mariadb", "mysql") if (path := shutil.which(p))), None)
    if found is None:
        raise HostUnfit(
            "no mariadb or mysql client is installed",
            hint="install mariadb-client, or give the statement with -e",
        )
    content = (
        f"[client]\nhost={account.host}\nport={port}\nprotocol=tcp\n"
        f"user={account.user}\npassword={account.password}\n"
        # A server that is asked to LOAD DATA LOCAL may ask for any other file of ours.
        f"local-infile=0\n"
        f"ssl-ca={account.ca}\n{_CHECKS[Path(found).name]}\n"
    )
    return Client([found, f"--defaults-extra-file={options}"], options, content)


def _primary(ctx: Context, name: str, writers: Collection[str]) -> str:
    """The node that takes writes, by its role, in a lab whose nodes elect it; raises NotReady."""
    entry = lab(ctx, name).entry
    if entry is None or entry.role not in writers or entry.state in SILENT:
        raise NotReady(
            f"no node of {name} answers as its primary",
            hint=f"`lab status {name}` shows the nodes, `--node` chooses one of them",
        )
    return entry.name


def _login(ctx: Context, name: str, node: str | None) -> tuple[Account, int]:
    record = record_of(ctx, name)
    nodes = ctx.store.nodes.of(name)
    if not nodes or not record.user:
        raise NotReady(f"the lab {name} is {record.state}: it has no account yet")
    running = ctx.hypervisor.guests()
    entry = entry_of(record, nodes, running)
    if node is None and elects(record) and has_server(entry.services):
        node = _primary(ctx, name, record.plan.writers)
    chosen = entry if node is None else ctx.store.nodes.get(name, node)
    if not chosen.sql_port:
        raise NotFound(
            f"{chosen.name} of {name} has no service sql",
            hint=f"`lab status {name}` shows which have",
        )
    if GuestName(chosen.guest) not in running:  # another may listen at its port
        raise NotReady(
            f"{chosen.name} of {name} does not run",
            hint=f"`lab start {name} --node {chosen.name}` starts it",
        )
    return account_at(account_of(ctx.home, record), chosen.guest_address), chosen.sql_port
