"""The verbs against a service elsewhere, over HTTP."""

from __future__ import annotations

import secrets
from collections.abc import Callable, Iterator, Sequence
from contextlib import AbstractContextManager, contextmanager
from dataclasses import replace
from pathlib import Path
from typing import IO, TYPE_CHECKING, Any
from urllib.parse import urlsplit

from lab.blueprints import Release
from lab.blueprints.dialects import dialect_of, plugin_of
from lab.cli.backend.remote_up import LabCreation
from lab.client import Client
from lab.errors import InvalidSpec, LabError, NotFound, NotReady
from lab.lifecycle.nodes.running import require_state
from lab.observe.account import Account
from lab.progress import Event
from lab.requests.datasets import CreateDataset
from lab.requests.labs import PROGRAM_LIMIT, BranchLab, CreateLab
from lab.requests.snapshots import PruneSnapshots
from lab.spec import LabSpec
from lab.views.labs import LabView

if TYPE_CHECKING:
    from lab.cli.backend.programs import Program, SqlClient
    from lab.cli.backend.session import Session
    from lab.observe.ways import NodeResults, Rows
    from lab.progress import Listener
    from lab.request import Request
    from lab.requests.datasets import CreateDataset
    from lab.views.catalog import EngineView, ImageView, TemplateView
    from lab.views.datasets import DatasetView, PersonalColumn
    from lab.views.labs import LabStatus, LabView, Preview
    from lab.views.snapshots import SnapshotView

_LOOPBACK = ("127.0.0.1", "::1", "localhost")
_QUERY_SECONDS = 600.0

Ask = Callable[..., "Rows"]
"""Runs statements; see ``lab.observe.sql.ask``."""


@contextmanager
def open_client(url: str, listener: Listener) -> Iterator[Client]:
    """A client of the service at ``url``, with the token of LAB_TOKEN or of the token file."""
    with Client(url) as client:
        parts = urlsplit(client.url)
        if parts.scheme == "http" and parts.hostname not in _LOOPBACK:
            listener(
                Event(
                    "remote",
                    "note",
                    f"{client.url} is not encrypted: token and passwords are sent in clear text",
                )
            )
        yield client


@contextmanager
def open_remote(url: str, listener: Listener) -> Iterator[Session]:
    """A session with the service at ``url``."""
    with open_client(url, listener) as client:
        yield RemoteSession(client, listener)


class RemoteSession:
    """The verbs that a service offers; a ``Session``.

    ``ask``: runs a statement at a published port; default: ``lab.observe.sql.ask``.
    """

    def __init__(self, client: Client, listener: Listener, ask: Ask | None = None) -> None:
        self._client = client
        self._hear = listener
        self._ask = ask

    def run(self, request: Request, *, timeout: float | None = None) -> Any:
        """See Session; ``timeout`` is for all of it."""
        from lab.requests.archives import ExportArchive, ImportArchive

        if isinstance(request, CreateLab):
            return self._here(LabCreation(self._client, self._hear, timeout).up(request))
        if isinstance(request, ExportArchive):
            return self._client.archives.fetch(request, listener=self._hear)
        if isinstance(request, ImportArchive):
            return self._client.archives.send(request, listener=self._hear)
        if isinstance(request, CreateDataset):
            from lab.cli.backend import remote_data

            request = remote_data.sent(self._client, request, self._hear)
        found = self._client.run(request, timeout=timeout, listener=self._hear)
        if isinstance(request, PruneSnapshots):
            return [f"removed {request.lab}@{label}" for label in found]
        if isinstance(request, BranchLab):
            return [self._here(lab) for lab in found]
        return self._here(found) if isinstance(found, LabView) else found

    def preview(self, request: CreateLab) -> Preview:
        """See Session."""
        return self._client.preview(LabSpec.of(request), cold=request.cold)

    def take(self, request: CreateLab) -> LabView | None:
        """See Session; the service has pools for that."""
        del request
        return None

    def make_ahead(self, request: CreateLab) -> None:
        """See Session; the service fills its pools."""

    def names(self, *, waiting: bool = False) -> list[str]:
        """See Session; a service lists no labs of its pools."""
        del waiting
        return [lab.name for lab in self._client.labs()]

    def labs(self) -> list[LabView]:
        """See Session."""
        return list(self._client.labs())

    def lab(self, name: str) -> LabView:
        """See Session."""
        return self._here(self._client.get(name))

    def status(self, name: str) -> LabStatus:
        """See Session; a service reports those that are not met, with each node."""
        from lab.views.labs import LabStatus

        return LabStatus(self.lab(name), ())

    def wait(self, name: str, *, timeout: float) -> LabView:
        """See Session."""
        return self._here(self._client.wait(name, timeout=timeout))

    def snapshots(self, name: str) -> list[SnapshotView]:
        """See Session."""
        return self._client.snapshots.all(name)

    def execute(
        self, name: str, node: str, argv: Sequence[str], *, stdin: bytes, timeout: float
    ) -> bytes:
        """See Session; at most ten minutes, and text only: raises InvalidSpec for other stdin."""
        try:
            text = stdin.decode()
        except UnicodeDecodeError:
            raise InvalidSpec(
                "stdin must be text for a service", hint="encode it, for example with base64"
            ) from None
        limit = min(timeout, PROGRAM_LIMIT)
        return self._client.execute(name, node, argv, stdin=text, timeout=limit).encode()

    def ssh(self, name: str, node: str) -> AbstractContextManager[Program]:
        """See Session."""
        from lab.cli.backend.programs import ssh_through

        return ssh_through(self._client.url, self._client.ssh_login(name, node), name, node)

    def console(self, name: str, node: str) -> Program:
        """See Session."""
        from lab.cli.backend.programs import console_through

        self._client.get(name).node(node)
        return console_through(self._client.url, name, node)

    def bundle(self, name: str, to: IO[bytes], *, with_lab: bool = False, why: str = "") -> str:
        """See Session."""
        del why  # it is in what the caller prints
        if with_lab:
            raise InvalidSpec(
                "a bundle with the lab in it is written by the host of the lab",
                hint="run `lab bundle --with-lab` there",
            )
        to.write(self._client.bundle(name))
        return ""

    def logs(self, name: str, node: str, source: str, *, follow: bool, lines: int) -> Iterator[str]:
        """See Session."""
        if follow:
            return self._client.follow(name, node, source, lines=lines)
        return iter(self._client.logs(name, node, source, lines=lines) if lines else ())

    def ca(self) -> Path:
        """See Session; the file is a copy on this machine."""
        from lab.client.ca import keep

        return keep(self._client.ca())

    def query(
        self, name: str, node: str | None, statement: str, seconds: float | None = None
    ) -> Rows:
        """See Session."""
        from lab.observe.sql import ask

        account, port = self._login(name, node)
        with _reached(account):
            return (self._ask or ask)(
                account, port, statement, timeout=seconds or _QUERY_SECONDS, whole=seconds is None
            )

    def results(self, name: str, node: str | None, text: str, *, database: str) -> Iterator[Rows]:
        """See Session."""
        from lab.observe.sql import ask_text

        account, port = self._login(name, node)
        with _reached(account):
            yield from ask_text(account, port, text, timeout=_QUERY_SECONDS, database=database)

    def everywhere(self, name: str, text: str, *, database: str) -> list[NodeResults]:
        """See Session."""
        from functools import partial

        from lab.blueprints import has_server
        from lab.lifecycle.labs.query import at_all
        from lab.observe.sql import ask_text

        lab = self._client.get(name)
        nodes = [node.name for node in lab.nodes if node.sql_port and has_server(node.services)]
        ask = partial(ask_text, text=text, timeout=_QUERY_SECONDS, database=database)
        return at_all(
            {node: self._login_or_error(name, node) for node in nodes},
            ask,
        )

    def client(self, name: str, node: str | None, *, database: str) -> SqlClient:
        """See Session."""
        import tempfile

        from lab.lifecycle.labs.query import program

        options = Path(tempfile.gettempdir()) / f"lab-client-{secrets.token_hex(16)}.cnf"
        return program(*self._login(name, node), options, database=database)

    def engines(self) -> list[EngineView]:
        """See Session."""
        return self._client.engines()

    def images(self) -> list[ImageView]:
        """See Session."""
        return self._client.images()

    def image(self, which: str) -> ImageView:
        """See Session."""
        return self._client.image(which)

    def templates(self) -> list[TemplateView]:
        """See Session."""
        return self._client.templates()

    def datasets(self) -> list[DatasetView]:
        """See Session."""
        return self._client.datasets.all()

    def dataset(self, which: str) -> DatasetView:
        """See Session."""
        return self._client.datasets.get(which)

    def scan_dataset(self, which: str) -> list[PersonalColumn]:
        """See Session."""
        return self._client.datasets.scan(which)

    def _here(self, view: LabView) -> LabView:
        """``view`` with the path of a copy of the certificate on this machine."""
        return replace(view, ssl_ca=str(self.ca())) if view.ssl_ca else view

    def _login_or_error(self, name: str, node: str) -> tuple[Account, int] | LabError:
        try:
            return self._login(name, node)
        except LabError as error:
            return error

    def _login(self, name: str, node: str | None) -> tuple[Account, int]:
        """The account and the port of a lab.

        Raises NotReady if there is no account, or the node does not run.
        """
        lab = self._client.get(name)
        if not lab.user or lab.entry is None:
            raise NotReady(f"lab {name} is {lab.state}: its account does not exist yet")
        chosen = lab.node(node) if node else lab.entry
        if not chosen.sql_port:
            raise NotFound(
                f"{chosen.name} of {name} has no service sql",
                hint=f"`lab status {name}` shows which have",
            )
        if (lab.state, chosen.state) != ("asleep", "paused"):  # the connection wakes it
            require_state(name, chosen.name, chosen.state, chosen.why)
        release = Release(lab.engine, lab.engine_version)
        ca = str(self.ca()) if dialect_of(release).tls else ""
        account = Account(lab.user, lab.password, chosen.host, ca, plugin=plugin_of(release))
        return account, chosen.sql_port


@contextmanager
def _reached(account: Account) -> Iterator[None]:
    """Add to an error of the block how ports of labs are reached from elsewhere."""
    try:
        yield
    except NotReady as error:
        if not error.hint and account.host in _LOOPBACK:
            error.hint = (
                "ports of labs are on the loopback of the service's host: forward them, or"
                " run this command there"
            )
        raise
