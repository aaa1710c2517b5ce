"""What every verb is given: flags, the way to the lifecycle, and the way to the user."""

from __future__ import annotations

import sys
import time
from collections.abc import Callable, Iterator, Sequence
from contextlib import AbstractContextManager, contextmanager
from dataclasses import dataclass, field
from pathlib import Path
from types import ModuleType
from typing import TYPE_CHECKING, Any

from lab.cli.terminal.signals import Interrupts, write_stderr

if TYPE_CHECKING:
    from lab.cli.backend.session import Lifecycle, Session
    from lab.cli.backend.tokens import Tokens
    from lab.config.settings import Settings
    from lab.progress import Listener

REMOVING = "removing what was made"
"""What an interrupt leads to where a verb makes things."""


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
        """The settings that hold here."""
        return self.lifecycle.settings({"home": self.home, "url": self.remote})

    def here(self) -> Lifecycle:
        """The lifecycle of this host; raises InvalidSpec if a service elsewhere is meant."""
        from lab.errors import InvalidSpec

        if url := self.settings().url:
            raise InvalidSpec(
                f"this verb is about the host it runs on, and {url} is another",
                hint="run it on that host, or here without LAB_URL and --remote",
            )
        return self.lifecycle

    @contextmanager
    def open(self, *, doing: str = "") -> Iterator[Session]:
        """The lifecycle, with progress shown; ``doing``: what an interrupt leads to."""
        from lab.cli.terminal.progress import CLEAR, listener

        settings = self.settings()
        with listener(quiet=self.quiet) as hear:

            def interrupted() -> None:
                hear.silence()
                if not self.quiet and sys.stderr.isatty():
                    write_stderr(CLEAR)

            self.interrupts.on_first = interrupted
            self.interrupts.doing = doing
            with self._opened(settings, hear) as session:
                yield session

    @contextmanager
    def tokens(self) -> Iterator[Tokens]:
        """The tokens of this host's service, or of one elsewhere."""
        from lab.cli.terminal.progress import listener

        settings = self.settings()
        with listener(quiet=self.quiet) as hear:
            if settings.url:
                with _remote().open_client(settings.url, hear) as client:
                    yield client.tokens
            else:
                with self.lifecycle.tokens(settings) as kept:
                    yield kept

    def _opened(self, settings: Settings, hear: Listener) -> AbstractContextManager[Session]:
        if not settings.url:
            return self.lifecycle.open(settings, hear)
        opened: AbstractContextManager[Session] = _remote().open_remote(settings.url, hear)
        return opened

    def say(self, text: str) -> None:
        """Talk: one line on stderr, unless it is not wanted."""
        if not self.quiet:
            sys.stdout.flush()  # so that the two streams keep their order on a terminal
            sys.stderr.write(f"{text}\n")

    def command(self, example: str) -> tuple[str, ...]:
        """What was given after ``--``; raises InvalidSpec if that is nothing."""
        from lab.errors import InvalidSpec

        if not self.after_dashes:
            raise InvalidSpec("no command is given", hint=f"after two dashes: `{example}`")
        return self.after_dashes


def app_of(context: Any) -> App:
    """The run that a verb's context belongs to."""
    app = context.find_root().obj
    assert isinstance(app, App)  # noqa: S101  # set by main, and for the type checker
    return app


def pick(session: Session, name: str) -> str:
    """The lab meant: the one named, the one ``lab.toml`` here names, or the only one.

    Raises InvalidSpec (not a name, several labs), NotFound (no lab).
    """
    from lab.config import labfile
    from lab.errors import InvalidSpec, NotFound
    from lab.names import check_lab_name

    if name:
        return check_lab_name(name)
    named = labfile.read(Path.cwd()).get("name")
    if named:
        return named
    names = session.names()
    if not names:
        raise NotFound("there is no lab", hint="`lab up pxc` makes one")
    if len(names) > 1:
        raise InvalidSpec("which lab?", hint=f"name one of {_listed(names)}")
    return names[0]


def _remote() -> ModuleType:
    """What talks to a service; raises HostUnfit where its packages are missing."""
    from lab.errors import HostUnfit

    try:
        from lab.cli.backend import remote
    except ModuleNotFoundError as error:
        raise HostUnfit(
            "what talks to a service is not installed", hint="run `scripts/venv client`"
        ) from error
    return remote


def _listed(names: Sequence[str]) -> str:
    some = ", ".join(names[:8])
    return f"{some}, ..." if len(names) > 8 else some
