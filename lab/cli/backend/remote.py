"""The session with a service elsewhere: the same verbs, asked for over HTTP.

What is not overridden here is what the service does not offer: it asks for the context, which
there is none of, and so says that it needs the host itself.
"""

from __future__ import annotations

import secrets
from collections.abc import Callable, Iterator, Sequence
from contextlib import AbstractContextManager, contextmanager
from dataclasses import replace
from pathlib import Path
from typing import TYPE_CHECKING, Any, NoReturn
from urllib.parse import urlsplit

from lab.cli.backend.remote_up import Making
from lab.cli.backend.session import Session
from lab.client import Client
from lab.errors import InvalidSpec, NotReady
from lab.progress import Event

if TYPE_CHECKING:
    from lab.cli.backend.programs import Program
    from lab.client.client import Action
    from lab.exchange.header import Kind
    from lab.lifecycle.core.context import Context
    from lab.lifecycle.core.sql import Account
    from lab.lifecycle.core.views import (
        ExportView,
        GcReport,
        ImageView,
        ImportView,
        LabStatus,
        LabView,
        Preview,
        Rows,
        SnapshotView,
        TemplateView,
    )
    from lab.lifecycle.query import Client as SqlProgram
    from lab.progress import Listener
    from lab.spec import LabSpec

_LOOPBACK = ("127.0.0.1", "::1", "localhost")
_LONGEST_EXEC = 600.0
_QUERY_SECONDS = 600.0

Ask = Callable[..., "Rows"]
"""As ``lab.lifecycle.core.sql.ask``."""


@contextmanager
def open_client(url: str, listener: Listener) -> Iterator[Client]:
    """A client of the service at ``url``, with the token that is found here."""
    with Client(url) as client:
        parts = urlsplit(client.url)
        if parts.scheme == "http" and parts.hostname not in _LOOPBACK:
            listener(Event("remote", "note", f"token and passwords go unencrypted: {client.url}"))
        yield client


@contextmanager
def open_remote(url: str, listener: Listener) -> Iterator[Session]:
    """A session with the service at ``url``."""
    with open_client(url, listener) as client:
        yield RemoteSession(client, listener)


class RemoteSession(Session):
    """The verbs that a service offers. ``ask``: what runs a statement at a published port."""

    def __init__(self, client: Client, listener: Listener, ask: Ask | None = None) -> None:
        self._client = client
        self._hear = listener
        self._ask = ask

    @property
    def _context(self) -> Context:
        _only_there(f"the service at {self._client.url} does not offer this")

    def up(
        self,
        spec: LabSpec,
        *,
        cold: bool,
        keep_failed: bool,
        exist_ok: bool,
        timeout: float | None,
    ) -> LabView:
        """Make a lab; ``timeout``: seconds for all of it, a template's making included."""
        making = Making(self._client, self._hear, cold, keep_failed, timeout)
        return self._here(making.up(spec) if exist_ok else making.make(spec))

    def preview(self, spec: LabSpec, *, cold: bool) -> Preview:
        """What ``up`` would make there now."""
        return self._client.preview(spec, cold=cold)

    def down(self, name: str, *, force: bool = False) -> None:
        """Remove a lab."""
        self._client.delete(name, force=force, listener=self._hear)

    def names(self) -> list[str]:
        """The names of our project's labs."""
        return [lab.name for lab in self._client.labs()]

    def labs(self) -> list[LabView]:
        """Our project's labs."""
        return list(self._client.labs())

    def lab(self, name: str) -> LabView:
        """One lab."""
        return self._here(self._client.get(name))

    def status(self, name: str) -> LabStatus:
        """One lab, as the service sees it: what each node lacks is not told."""
        from lab.lifecycle.core.views import LabStatus

        return LabStatus(self.lab(name), ())

    def wait(self, name: str, *, timeout: float) -> LabView:
        """Wait until a lab is ready."""
        return self._here(self._client.wait(name, timeout=timeout))

    def start(self, name: str, node: str | None, *, timeout: float) -> LabView:
        """Start a lab, or one node of it."""
        return self._power("start", name, node, timeout)

    def stop(self, name: str, *, node: str | None, force: bool) -> LabView:
        """Stop a lab, or one node of it."""
        return self._power("kill" if force else "stop", name, node, None)

    def extend(self, name: str, ttl: float | None) -> LabView:
        """Give a lab a new lease from now on; raises InvalidSpec for one without end."""
        if ttl is None:
            raise InvalidSpec("every lab of a service has a lease", hint="give a time, such as 8h")
        return self._here(self._client.extend(name, ttl))

    def take_snapshot(self, name: str, what: str) -> SnapshotView:
        """Snapshot a lab."""
        return self._client.snapshots.take(name, what, listener=self._hear)

    def snapshots(self, name: str) -> list[SnapshotView]:
        """The snapshots of a lab."""
        return self._client.snapshots.all(name)

    def remove_snapshots(self, name: str, labels: Sequence[str]) -> None:
        """Remove snapshots of a lab, one after the other."""
        for label in labels:
            self._client.snapshots.remove(name, label, listener=self._hear)

    def prune_snapshots(self, name: str) -> list[str]:
        """Remove what is more than the schedule keeps."""
        removed = self._client.snapshots.prune(name, listener=self._hear)
        return [f"removed {name}@{label}" for label in removed]

    def rollback(self, name: str, to: str, *, node: str | None, timeout: float) -> LabView:
        """Put a lab, or a node, back to a snapshot."""
        hear = self._hear
        found = self._client.rollback(name, to, node or "", timeout=timeout, listener=hear)
        return self._here(found)

    def gc(self, *, dry_run: bool, orphans: bool, unused: bool, age: float) -> GcReport:
        """Clear that host up, for its administrators."""
        return self._client.gc(dry_run=dry_run, orphans=orphans, unused=unused, age=age)

    def execute(
        self, name: str, node: str, argv: Sequence[str], *, stdin: bytes, timeout: float
    ) -> bytes:
        """Run a program in a node, as root; ten minutes at most, and what it prints is text."""
        try:
            text = stdin.decode()
        except UnicodeDecodeError:
            raise InvalidSpec(
                "what is sent through a service must be text", hint="base64 makes it text"
            ) from None
        limit = min(timeout, _LONGEST_EXEC)
        return self._client.execute(name, node, argv, stdin=text, timeout=limit).encode()

    def ssh(self, name: str, node: str) -> AbstractContextManager[Program]:
        """What opens a shell in a node, through the service."""
        from lab.cli.backend.programs import ssh_through

        return ssh_through(self._client.url, self._client.ssh_login(name, node), name, node)

    def console(self, name: str, node: str) -> Program:
        """What connects to a node's console, through the service."""
        from lab.cli.backend.programs import console_through

        self._client.get(name).node(node)
        return console_through(self._client.url, name, node)

    def logs(self, name: str, node: str, source: str, *, follow: bool, lines: int) -> Iterator[str]:
        """The last lines of a node's log, and with ``follow`` what comes after."""
        if follow:
            return self._client.follow(name, node, source, lines=lines)
        return iter(self._client.logs(name, node, source, lines=lines) if lines else ())

    def ca(self) -> Path:
        """A copy of the certificate that servers there are checked with."""
        from lab.client.ca import keep

        return keep(self._client.ca())

    def query(self, name: str, node: str | None, statement: str) -> Rows:
        """Run one statement, at the port that the lab's DSN names."""
        from lab.lifecycle.core.sql import ask

        account, port = self._login(name, node)
        try:
            return (self._ask or ask)(account, port, statement, timeout=_QUERY_SECONDS, whole=True)
        except NotReady as error:
            if not error.hint and account.host in _LOOPBACK:
                error.hint = (
                    "ports of labs are on the loopback of the service's host: forward them, or"
                    " run this there"
                )
            raise

    def client(self, name: str, node: str | None) -> SqlProgram:
        """The client program for a lab, at the port that its DSN names."""
        import tempfile

        from lab.lifecycle.query import program

        options = Path(tempfile.gettempdir()) / f"lab-client-{secrets.token_hex(16)}.cnf"
        return program(*self._login(name, node), options)

    def export(self, kind: Kind, which: str, **options: Any) -> ExportView:
        """Write an archive of the service's to a file or a pipe."""
        from lab.exchange.files import target

        if options.pop("host"):
            _only_there("hosts send each other archives over SSH")
        del options["command"]
        where, resume = options.pop("where"), options.pop("resume")
        to = target(where, resume=resume)
        done = self._client.archives.fetch(kind, which, to, listener=self._hear, **options)
        return replace(done, to=where)

    def import_(
        self, kind: Kind, where: str, *, resume: bool, warm_only: bool, talk: bool
    ) -> ImportView:
        """Have the service import a file, or what comes from a pipe."""
        from lab.exchange.files import source

        if talk:
            _only_there("hosts send each other archives over SSH")
        with source(where) as stream:
            return self._client.archives.send(
                kind, stream, resume=resume, warm_only=warm_only, listener=self._hear
            )

    def images(self) -> list[ImageView]:
        """All images of the host."""
        return self._client.images()

    def image(self, which: str) -> ImageView:
        """One image, by key or recipe."""
        return self._client.image(which)

    def build_image(self, recipe: str, *, rebuild: bool) -> ImageView:
        """Build an image unless it is there."""
        return self._client.build_image(recipe, rebuild=rebuild, listener=self._hear)

    def remove_image(self, which: str) -> None:
        """Remove an image."""
        self._client.remove_image(which, listener=self._hear)

    def templates(self) -> list[TemplateView]:
        """All templates of the host."""
        return self._client.templates()

    def build_template(self, spec: LabSpec) -> TemplateView:
        """Form a cluster and capture it, unless that template is there."""
        return self._client.build_template(spec, listener=self._hear)

    def remove_template(self, key: str) -> None:
        """Remove a template."""
        self._client.remove_template(key, listener=self._hear)

    def _power(self, action: Action, name: str, node: str | None, timeout: float | None) -> LabView:
        hear = self._hear
        return self._here(
            self._client.power(action, name, node or "", timeout=timeout, listener=hear)
        )

    def _here(self, view: LabView) -> LabView:
        """The same, with the certificate in a file of this machine."""
        return replace(view, ssl_ca=str(self.ca())) if view.ssl_ca else view

    def _login(self, name: str, node: str | None) -> tuple[Account, int]:
        """Who logs in where; raises NotReady if the lab has no account yet."""
        from lab.lifecycle.core.sql import Account

        lab = self._client.get(name)
        if not lab.user or lab.entry is None:
            raise NotReady(f"the lab {name} is {lab.state}: it has no account for us (yet)")
        chosen = lab.node(node) if node else lab.entry
        return Account(lab.user, lab.password, chosen.host, str(self.ca())), chosen.sql_port


def _only_there(why: str) -> NoReturn:
    raise InvalidSpec(why, hint="it needs the host of the labs: run it there, without LAB_URL")
