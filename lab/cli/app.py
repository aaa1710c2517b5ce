"""What every verb is given: the global flags, its session, and output for the user."""

from __future__ import annotations

import sys
import time
from collections.abc import Callable, Iterator, Sequence
from contextlib import AbstractContextManager, contextmanager
from dataclasses import field
from typing import TYPE_CHECKING, Any

from lab.cli.terminal.signals import Interrupts, write_stderr
from lab.distribution import extra
from lab.values import dataclass

if TYPE_CHECKING:
    from lab.cli.backend.benches import Benches
    from lab.cli.backend.hosts import Hosts
    from lab.cli.backend.local import Lifecycle
    from lab.cli.backend.session import Session
    from lab.cli.backend.tokens import Tokens
    from lab.config.settings import Settings
    from lab.progress import Listener
    from lab.requests.labs import CreateLab
    from lab.views.labs import LabView

REMOVING = "removing the lab"
"""The clean-up after an interrupt of a verb that creates things."""

NOT_REMOTE = "benchmarks are run, and their results are kept, on the host of the labs"
NOT_REMOTE_HINT = "run `lab bench` there, without LAB_URL and --remote"

_CLIENT = ("client", "a service elsewhere")
"""The extra whose packages talk to one, and what they are needed for."""


@dataclass
class App:
    """One run of the program. ``after_dashes``: the command given after ``--``, if any."""

    lifecycle: Lifecycle
    interrupts: Interrupts = field(default_factory=Interrupts)
    home: str | None = None
    remote: str | None = None
    debug: bool = False
    quiet: bool = False
    after_dashes: tuple[str, ...] | None = None
    now: Callable[[], float] = time.time

    def settings(self) -> Settings:
        """The settings for the global flags, the environment and the config files."""
        return self.lifecycle.settings({"home": self.home, "url": self.remote})

    def here(self, why: str = "", hint: str = "") -> Lifecycle:
        """The lifecycle of this host; raises InvalidSpec if a service elsewhere is meant.

        ``why``, ``hint``: of the error, if only this use of the verb needs the host.
        """
        from lab.errors import InvalidSpec

        if url := self.settings().url:
            raise InvalidSpec(
                why or f"this command is about the host it runs on, and {url} is a service",
                hint=hint or "run it on the host of the labs, without LAB_URL and --remote",
            )
        return self.lifecycle

    @contextmanager
    def open(self, *, doing: str = "") -> Iterator[Session]:
        """A session here or with a service, with progress shown.

        ``doing``: the clean-up that follows an interrupt, such as ``removing the lab``.
        """
        with self._heard(doing) as hear, self._opened(hear) as session:
            yield session

    @contextmanager
    def open_here(self, why: str, hint: str = "", *, doing: str = "") -> Iterator[Session]:
        """A session on this host; raises as ``here`` does, before anything is opened."""
        lifecycle = self.here(why, hint)
        with self._heard(doing) as hear, lifecycle.open(self.settings(), hear) as session:
            yield session

    @contextmanager
    def tokens(self) -> Iterator[Tokens]:
        """The tokens of this host's service, or of one elsewhere."""
        from lab.cli.terminal.progress import listener

        settings = self.settings()
        with listener(quiet=self.quiet) as hear:
            if not settings.url:
                with self.lifecycle.tokens(settings) as kept:
                    yield kept
                return
            with extra(*_CLIENT):
                from lab.cli.backend.remote import open_client
            with open_client(settings.url, hear) as client:
                yield client.tokens

    def benches(self) -> AbstractContextManager[Benches]:
        """The results of benchmarks that this host keeps; raises InvalidSpec as ``here`` does."""
        return self.here(NOT_REMOTE, NOT_REMOTE_HINT).benches(self.settings())

    @contextmanager
    def hosts(self) -> Iterator[Hosts]:
        """The hosts of the fleet of a service, or of this host."""
        from lab.progress import ignore

        settings = self.settings()
        if settings.url:
            with extra(*_CLIENT):
                from lab.cli.backend.remote import open_client
            with open_client(settings.url, ignore) as client:
                yield client.hosts
            return
        with extra("serve", "a fleet"):
            from lab.cli.backend.hosts import recorded
        with recorded(settings) as found:
            yield found

    def _opened(self, hear: Listener) -> AbstractContextManager[Session]:
        settings = self.settings()
        if not settings.url:
            return self.lifecycle.open(settings, hear)
        with extra(*_CLIENT):
            from lab.cli.backend.remote import open_remote
        return open_remote(settings.url, hear)

    @contextmanager
    def _heard(self, doing: str) -> Iterator[Listener]:
        """Progress on stderr, until a first interrupt."""
        from lab.cli.terminal.progress import CLEAR, listener

        with listener(quiet=self.quiet) as hear:

            def interrupted() -> None:
                hear.silence()
                if not self.quiet and sys.stderr.isatty():
                    write_stderr(CLEAR)

            self.interrupts.on_first = interrupted
            self.interrupts.doing = doing
            yield hear

    def if_interrupted(self, left: str) -> None:
        """Say ``left`` if the verb is interrupted from now on: what remains, and the remedy."""
        self.interrupts.left = left

    def say_asleep(self, views: Sequence[LabView]) -> None:
        """Say of labs of this host that are asleep if only commands wake them: no service runs."""
        names = [view.name for view in views if view.asleep_at is not None]
        settings = self.settings() if names else None
        if settings is None or settings.url:
            return
        from lab.locks.named import held

        if not held(settings.home, "state", "serve"):
            self.say(
                f"asleep: {', '.join(names)}; connections wake no lab while no service runs here,"
                " `lab wake` and commands that need the nodes do"
            )

    def say(self, text: str) -> None:
        """Print a message on stderr, unless ``quiet``."""
        if not self.quiet:
            sys.stdout.flush()  # so that the two streams keep their order on a terminal
            sys.stderr.write(f"{text}\n")

    def command(self, example: str) -> tuple[str, ...]:
        """The words after ``--``; raises InvalidSpec if there are none."""
        from lab.errors import InvalidSpec

        if not self.after_dashes:
            raise InvalidSpec("no command is given", hint=f"put it after two dashes: `{example}`")
        return self.after_dashes


def app_of(context: Any) -> App:
    """The run that a verb's context belongs to."""
    app = context.find_root().obj
    assert isinstance(app, App)  # noqa: S101  # set by main, and for the type checker
    return app


def create(
    app: App, session: Session, asked: CreateLab, timeout: float | None, *, protect: str = ""
) -> LabView:
    """A new lab, or one that was made ahead.

    ``protect``: no signal raises from then on (``Interrupts.protect``), so that the caller can
    remove it. One that was taken has a name that the caller does not know before, so no interrupt
    takes effect until it does; without ``protect`` the lab is removed then, unless the request
    says that it may have existed before.
    """
    from lab.requests.labs import DeleteLab, EnsureLab

    with app.interrupts.shield("taking a lab that was made ahead"):
        view = session.take(asked)
        if view is not None and protect:
            app.interrupts.protect(protect)
    if view is None:
        if app.interrupts.came:
            raise KeyboardInterrupt
        view = session.run(asked, timeout=timeout)
        if protect:
            app.interrupts.protect(protect)
    with app.interrupts.shield("starting the making of the next one"):
        session.make_ahead(asked)
    if app.interrupts.came and not protect and not isinstance(asked, EnsureLab):
        with app.interrupts.shield(REMOVING):
            session.run(DeleteLab(lab=view.name))
        raise KeyboardInterrupt
    return view


def pick(session: Session, name: str) -> str:
    """The name of the lab: as given, as in ``./lab.toml``, or that of the only lab.

    Raises InvalidSpec (not a name, several labs), NotFound (no lab).
    """
    from lab.config import labfile
    from lab.errors import InvalidSpec, NotFound
    from lab.names import check_lab_name

    if name:
        return check_lab_name(name)
    if named := labfile.name_in(labfile.here()):
        return named
    names = session.names()
    if not names:
        raise NotFound("there is no lab", hint="`lab up pxc` creates one")
    if len(names) > 1:
        raise InvalidSpec("which lab?", hint=f"name one of {_listed(names)}")
    return names[0]


def _listed(names: Sequence[str]) -> str:
    some = ", ".join(names[:8])
    return f"{some}, ..." if len(names) > 8 else some
