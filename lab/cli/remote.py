"""The session with a service elsewhere: the same verbs, asked for over HTTP.

What is not overridden here is what the service does not offer: it asks for the context, which
there is none of, and so says that it needs the host itself.
"""

from __future__ import annotations

import re
import secrets
from collections.abc import Callable, Iterator, Sequence
from contextlib import AbstractContextManager, contextmanager
from dataclasses import dataclass, replace
from pathlib import Path
from typing import TYPE_CHECKING, NoReturn
from urllib.parse import urlsplit

from lab.cli.heard import Heard
from lab.cli.session import Session
from lab.client import Client
from lab.errors import Conflict, InvalidSpec, NotReady
from lab.lifecycle.views import FIRST_USE
from lab.progress import Event

if TYPE_CHECKING:
    from lab.cli.into import Program
    from lab.client import Lab
    from lab.client.client import Action
    from lab.exchange.header import Kind
    from lab.lifecycle.context import Context
    from lab.lifecycle.query import Client as SqlProgram
    from lab.lifecycle.sql import Account
    from lab.lifecycle.views import (
        ImageView,
        ImportView,
        LabStatus,
        LabView,
        Preview,
        Rows,
        SnapshotView,
        TemplateView,
    )
    from lab.progress import Listener
    from lab.spec import LabSpec

_LOOPBACK = ("127.0.0.1", "::1", "localhost")
_LONGEST_EXEC = 600.0
_QUERY_SECONDS = 600.0
_READY_SECONDS = 600.0

Ask = Callable[..., "Rows"]
"""As ``lab.lifecycle.sql.ask``."""


@contextmanager
def open_remote(url: str, listener: Listener) -> Iterator[Session]:
    """A session with the service at ``url``, with the token that is found here."""
    with Client(url) as client:
        parts = urlsplit(client.url)
        if parts.scheme == "http" and parts.hostname not in _LOOPBACK:
            listener(Event("remote", "note", f"token and passwords go unencrypted: {client.url}"))
        yield RemoteSession(client, listener)


@dataclass(frozen=True)
class _How:
    """How a lab is to be made; see ``Client.create``."""

    cold: bool
    keep_failed: bool
    timeout: float | None


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
        how = _How(cold, keep_failed, timeout)
        return self._here(self._up(spec, how) if exist_ok else self._make(spec, how))

    def _up(self, spec: LabSpec, how: _How) -> LabView:
        """As ``up``, if such a lab of ours is there already that one."""
        try:
            named = replace(spec, name=spec.name or spec.blueprint)
            return self._same(spec, how.timeout) or self._make(named, how)
        except Conflict:
            # Somebody was faster; or the name is another project's.
            found = self._same(spec, how.timeout)
            if found is None and spec.name:
                raise
            return found or self._make(spec, how)

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
        from lab.lifecycle.views import LabStatus

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
        from lab.cli.into import ssh_through

        return ssh_through(self._client.url, self._client.ssh_login(name, node), name, node)

    def console(self, name: str, node: str) -> Program:
        """What connects to a node's console, through the service."""
        from lab.cli.into import console_through

        self._client.get(name).node(node)
        return console_through(self._client.url, name, node)

    def logs(self, name: str, node: str, source: str, *, follow: bool, lines: int) -> Iterator[str]:
        """The last lines of a node's log, and with ``follow`` what comes after."""
        if follow:
            return self._client.follow(name, node, source, lines=lines)
        return iter(self._client.logs(name, node, source, lines=lines) if lines else ())

    def ca(self) -> Path:
        """A copy of the certificate that servers there are checked with."""
        from lab.client.trust import keep

        return keep(self._client.ca())

    def query(self, name: str, node: str | None, statement: str) -> Rows:
        """Run one statement, at the port that the lab's DSN names."""
        from lab.lifecycle.sql import ask

        account, port = self._login(name, node)
        try:
            return (self._ask or ask)(account, port, statement, timeout=_QUERY_SECONDS)
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

    def import_(
        self, kind: Kind, where: str, *, resume: bool, warm_only: bool, talk: bool
    ) -> ImportView:
        """Refused before anything is read."""
        del kind, where, resume, warm_only, talk
        _only_there("a service does not import archives")

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

    def _make(self, spec: LabSpec, how: _How) -> LabView:
        heard = Heard(self._hear)
        made = self._client.create(spec, **vars(how), listener=heard)
        first_use = sum(step.seconds for step in heard.steps if step.step in FIRST_USE)
        return replace(made, first_use_seconds=first_use, steps=tuple(heard.steps))

    def _same(self, spec: LabSpec, timeout: float | None) -> LabView | None:
        """The lab of ours that is there already, ready; None if there is none. Raises Conflict."""
        timeout = timeout or _READY_SECONDS
        name = spec.name or spec.blueprint
        labs = {lab.name: lab for lab in self._client.labs()}
        found = labs.get(name)
        if found is None and not spec.name:  # the service gave it a number, or one of a pool
            numbered = re.compile(rf"{re.escape(name)}-(\d+|[0-9a-f]{{6}})")
            found = next((lab for n, lab in labs.items() if numbered.fullmatch(n)), None)
        if found is None:
            return None
        if found.state == "creating":
            found = self._client.wait(found.name, timeout=timeout)
        if not _fits(found, spec):
            raise Conflict(
                f"the lab {found.name} exists and is not what was asked for",
                hint=f"`lab status {found.name}` shows it; `lab down {found.name}` removes it",
            )
        if found.state in ("stopped", "failed"):
            return self._power("start", found.name, None, timeout)
        return self._client.wait(found.name, timeout=timeout)

    def _login(self, name: str, node: str | None) -> tuple[Account, int]:
        """Who logs in where; raises NotReady if the lab has no account yet."""
        from lab.lifecycle.sql import Account

        lab = self._client.get(name)
        ca = str(self.ca()) if lab.ssl_ca else ""
        if not lab.user or not lab.nodes:
            raise NotReady(f"the lab {name} is {lab.state}: it has no account for us (yet)")
        chosen = lab.node(node) if node else lab.nodes[0]
        return Account(lab.user, lab.password, chosen.host, ca), chosen.sql_port


def _fits(lab: Lab, spec: LabSpec) -> bool:
    """Whether ``lab`` is such as ``spec`` asks for; what that leaves open is fine."""
    from lab.lifecycle.engine import recipe_of

    size = spec.size
    asked = (spec.blueprint, spec.nodes, size.memory, size.cpus)
    there = (lab.blueprint, len(lab.nodes), lab.memory, lab.cpus)
    return (
        asked == there
        and (not spec.engine or lab.image.startswith(f"{recipe_of(spec.engine)}-"))
        and spec.image in ("", lab.image)
        and spec.profile in ("", lab.profile)
        and size.disk in (0, lab.disk)
    )


def _only_there(why: str) -> NoReturn:
    raise InvalidSpec(why, hint="it needs the host of the labs: run it there, without LAB_URL")
