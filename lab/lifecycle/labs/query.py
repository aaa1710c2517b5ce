"""SQL on the labs that are recorded: statements, or a session in the client program."""

from __future__ import annotations

import os
import secrets
from collections.abc import Callable, Iterator, Mapping, Sequence
from concurrent.futures import ThreadPoolExecutor
from dataclasses import field
from pathlib import Path

from lab.blueprints import has_server
from lab.config.enginefile import Family, clients
from lab.errors import LabError, NoProgram, NotFound, NotReady
from lab.lifecycle.core.context import Context
from lab.lifecycle.nodes.asleep import awake
from lab.lifecycle.nodes.connection import account_of, elects, entry_of
from lab.lifecycle.nodes.inspect import known_guests, lab, record_of
from lab.lifecycle.nodes.running import require_running
from lab.names import GuestName, Owner
from lab.observe.account import Account
from lab.observe.ask import account_at
from lab.observe.ways import NodeResults, Rows
from lab.paths import writing
from lab.run import environment, find
from lab.values import dataclass

_QUERY_SECONDS = 600.0


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


def results(
    ctx: Context, name: str, node: str | None, text: str, *, database: str = ""
) -> Iterator[Rows]:
    """Run the statements of ``text`` as ``query`` runs one; each result as it comes.

    ``database``: the default one. The context is not used once this returned.
    """
    account, port = _login(ctx, name, node)
    return ctx.sql_text(account, port, text, timeout=_QUERY_SECONDS, database=database)


def everywhere(ctx: Context, name: str, text: str, *, database: str = "") -> list[NodeResults]:
    """The results of ``text`` on each node with a server, at the same time.

    Raises NotFound, NotReady; what a node answers is in its results.
    """
    record_of(ctx, name)
    nodes = [
        node.name
        for node in ctx.store.nodes.of(name)
        if node.sql_port and has_server(node.services)
    ]

    def login(node: str) -> tuple[Account, int] | LabError:
        try:
            return _login(ctx, name, node)
        except LabError as error:
            return error

    return at_all(
        {node: login(node) for node in nodes},
        lambda account, port: ctx.sql_text(
            account, port, text, timeout=_QUERY_SECONDS, database=database
        ),
    )


def at_all(
    logins: Mapping[str, tuple[Account, int] | LabError],
    ask: Callable[[Account, int], Iterator[Rows]],
) -> list[NodeResults]:
    """What ``ask`` gets at each of ``logins``, all at the same time, in their order."""

    def results_of(login: tuple[str, tuple[Account, int] | LabError]) -> NodeResults:
        node, place = login
        found: list[Rows] = []
        try:
            if isinstance(place, LabError):
                raise place
            found.extend(ask(*place))
        except LabError as error:
            reasons = "; ".join([error.what, *error.details])
            return NodeResults(node, tuple(found), reasons, error.exit_code)
        return NodeResults(node, tuple(found))

    with ThreadPoolExecutor(max(1, len(logins))) as pool:
        return list(pool.map(results_of, logins.items()))


@dataclass(frozen=True)
class Client:
    """The client program for one node; ``argv`` works within the ``with`` block only.

    The password is in a file that only the user can read, never in ``argv``. ``env``: its
    environment, without what would change the session.
    """

    argv: list[str]
    options: Path
    content: str = field(repr=False)
    env: Mapping[str, str] = field(default_factory=dict, repr=False)

    def __enter__(self) -> Client:
        with writing(self.options):
            fd = os.open(self.options, os.O_WRONLY | os.O_CREAT | os.O_EXCL, 0o600)
            with os.fdopen(fd, "w", encoding="utf-8") as file:
                file.write(self.content)
        return self

    def __exit__(self, *_: object) -> None:
        self.options.unlink(missing_ok=True)


def client(ctx: Context, name: str, node: str | None, *, database: str = "") -> Client:
    """The client program that opens a session on a node; ``database``: the default one.

    Raises as ``query`` does, and NoProgram if there is no such program.
    """
    account, port = _login(ctx, name, node)
    if not ctx.home.ca.exists():
        raise NotReady(
            f"there is no certificate of an authority at {ctx.home.ca}",
            hint=f"`lab stop {name}` and `lab start {name}` give nodes new certificates",
        )
    options = ctx.home.private(Owner("lab", name)) / f"client-{secrets.token_hex(6)}.cnf"
    return program(account, port, options, database=database)


_OF_CLIENTS = ("MYSQL_", "MARIADB_", "LIBMYSQL_")
"""What the variables begin with that clients read: an address, a password, options, files."""


def program(account: Account, port: int, options: Path, *, database: str = "") -> Client:
    """The client program for a port, with ``options`` to hold the password; raises NoProgram.

    It reads no other options, and its character set is not that of the caller's locale: what it
    sends and prints is UTF-8.
    """
    known = clients()
    found = next((path for p in known if (path := find(p))), None)
    if found is None:
        raise NoProgram(
            f"no {' or '.join(known)} client is installed",
            hint=f"install {' or '.join(f'{one}-client' for one in known)},"
            " or give the statement with -e",
        )
    content = (
        f"[client]\nhost={account.host}\nport={port}\nprotocol=tcp\n"
        f"user={account.user}\npassword={account.password}\n"
        "default-character-set=utf8mb4\n"
        # MariaDB's client leaves comments out of the bodies of routines, unless it is asked not to.
        "loose-comments\n"
        # A server that is asked to LOAD DATA LOCAL may ask for any other file of ours.
        f"local-infile=0\n"
        f"{_tls_of(known[Path(found).name], account)}\n"
    )
    argv = [found, f"--defaults-file={options}"]
    if database:
        argv.append(f"--database={database}")
    kept = {n: v for n, v in environment().items() if not n.startswith(_OF_CLIENTS)}
    # MySQL's client reads ~/.mylogin.cnf besides any file, unless another one is named.
    env = kept | {"MYSQL_TEST_LOGIN_FILE": os.devnull}
    return Client(argv, options, content, env)


def _tls_of(family: Family, account: Account) -> str:
    """The options by which a client verifies the server, or uses no TLS where that has none."""
    return f"ssl-ca={account.ca}\n{family.tls_option}" if account.ca else family.plain_option


def _primary(ctx: Context, name: str, writers: Sequence[str]) -> str:
    """The node that takes writes, by its role, in a lab whose nodes elect it; raises NotReady."""
    entry = lab(ctx, name).entry
    if entry is None or entry.role not in writers or entry.is_silent:
        raise NotReady(
            f"no node of {name} answers as its {' or '.join(writers)}",
            hint=f"`lab status {name}` shows the nodes, `--node` chooses one of them",
        )
    return entry.name


def _login(ctx: Context, name: str, node: str | None) -> tuple[Account, int]:
    awake(ctx, name)
    record = record_of(ctx, name)
    nodes = ctx.store.nodes.of(name)
    if not nodes or not record.user:
        raise NotReady(f"the lab {name} is {record.state}: it has no account yet")
    running = known_guests(ctx)
    entry = entry_of(record, nodes, running)
    if node is None and elects(record) and has_server(entry.services):
        node = _primary(ctx, name, tuple(record.plan.writers))
    chosen = entry if node is None else ctx.store.nodes.get(name, node)
    if not chosen.sql_port:
        raise NotFound(
            f"{chosen.name} of {name} has no service sql",
            hint=f"`lab status {name}` shows which have",
        )
    # Another program may listen at the port of one that does not run; one that is paused hangs.
    require_running(running, name, chosen.name, GuestName(chosen.guest))
    return account_at(account_of(ctx.home, record), chosen.guest_address), chosen.sql_port
