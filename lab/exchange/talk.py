"""What two hosts say to each other while an archive goes from one to the other.

The importing side runs as ``lab image import - --talk`` at the other end of SSH, or is a host of
the same fleet at the other end of a WebSocket. It says lines of JSON, one word and what goes with
it each; the archive comes the other way, in between::

    importing                                exporting
    {"hello": {"archive": 1, "storage"}}
                                             the header
    {"wanted": {part: first chunk}}          or {"done": ...}, if it is there already
                                             the parts that are wanted
    {"done": {"key", "outcome"}}             of a snapshot with "lab", which was made of it

``{"doing": text}`` and ``{"note": text}`` may come at any time. Errors are printed on stderr and by
the exit code, as ever.
"""

from __future__ import annotations

import json
import re
from collections.abc import Callable, Sequence
from contextlib import AbstractContextManager, ExitStack
from typing import Any, Protocol

from lab import run
from lab.errors import (
    CommandFailed,
    Conflict,
    Forbidden,
    HostUnfit,
    InvalidSpec,
    LabError,
    NotFound,
    NotReady,
    Unauthorized,
)
from lab.exchange.header import Header
from lab.progress import Event, Progress
from lab.values import dataclass

PROTOCOL = 1

_AGAIN = "run the same command again: it resumes where it ended"
_SAME_VERSION = "install the same version of lab on both hosts, or export to a file"
_LINE = 1 << 16
_BANNERS = 200
_STALL = 3600.0
_HOST = re.compile(
    r"(?:[A-Za-z_][A-Za-z0-9._-]{0,31}@)?"
    r"(?:[A-Za-z0-9](?:[A-Za-z0-9._-]{0,252}[A-Za-z0-9])?|[0-9A-Fa-f:]*:[0-9A-Fa-f:.]+)"
)
_LAB = re.compile(r"[a-z][a-z0-9-]{0,23}")
_WORDS = re.compile(r"[A-Za-z0-9_./~=+:@, -]{1,500}")
_KINDS: dict[int, type[LabError]] = {
    kind.exit_code: kind
    for kind in (InvalidSpec, NotFound, Conflict, HostUnfit, NotReady, Unauthorized, Forbidden)
}


@dataclass(frozen=True)
class Done:
    """What the other side did with an archive."""

    outcome: str
    """``imported``, or ``exists``: it had it already."""
    lab: str = ""
    """Of a snapshot: the lab that it made."""


class Voice(Protocol):
    """Where the importing side's lines go."""

    def write(self, data: bytes, /) -> object:
        """Take all of ``data``."""

    def flush(self) -> None:
        """Hold nothing back."""


class Talk(Voice, Protocol):
    """The importing side at the other end, as ``lab.run.Conversation``: it takes the archive."""

    def close(self) -> None:
        """The archive is at its end."""

    def line(self, limit: int) -> bytes:
        """The next line that it says, of at most ``limit`` bytes; raises CommandFailed."""


class Speaker:
    """The importing side's voice, on ``to``."""

    def __init__(self, to: Voice) -> None:
        self._to = to

    def say(self, word: str, what: object) -> None:
        """One line."""
        self._to.write(json.dumps({word: what}).encode() + b"\n")
        self._to.flush()

    def retell(self, hear: Callable[[Event], None]) -> Callable[[Event], None]:
        """A listener that passes on to ``hear``, and sends them to the other side."""

        def listener(event: Event) -> None:
            hear(event)
            if event.state in ("begin", "note") and event.text:
                self.say("note" if event.state == "note" else "doing", event.text)

        return listener


def check_host(host: str) -> str:
    """``host`` if it can be one for ssh, as [USER@]HOST; raises InvalidSpec."""
    if len(host) > 300 or not _HOST.fullmatch(host):
        raise InvalidSpec(
            f"{host!r} is not a host name",
            hint="give [USER@]HOST; set a port and other options in ~/.ssh/config",
        )
    return host


def ssh_argv(host: str, verb: Sequence[str], *, command: str) -> list[str]:
    """What runs the importing side on ``host``; ``command`` is how lab is called there.

    Raises InvalidSpec for a host or a command that a shell could take for something else.
    """
    if not _WORDS.fullmatch(command) or command.startswith("-"):
        raise InvalidSpec(f"{command!r} is not a command", hint="such as /opt/lab/.venv/bin/lab")
    options = ["-T", "-o", "BatchMode=yes", "-o", "ServerAliveInterval=15"]
    return ["ssh", *options, "--", check_host(host), *command.split(), *verb]


class Remote:
    """The importing side, as the exporting one sees it."""

    def __init__(self, talk: Talk, host: str, progress: Progress) -> None:
        self.to = talk
        self.begun = False
        self._host = host
        self._progress = progress

    def hear(self, *words: str, banners: int = 0) -> tuple[str, Any]:
        """The next of ``words`` that is said, and what goes with it; raises InvalidSpec.

        ``banners``: lines that are not ours and may come first, as some shells print.
        """
        with ExitStack() as doing:
            while True:
                line = self.to.line(_LINE)
                try:
                    ((word, what),) = json.loads(line).items()
                except (ValueError, AttributeError, RecursionError):
                    word, what = "", None
                if word in words:
                    return word, what
                if word == "note":
                    self._progress.note("remote", self._quote(what))
                elif word == "doing":
                    doing.close()
                    doing.enter_context(self._progress.step("remote", self._quote(what)))
                elif banners:
                    banners -= 1
                else:
                    text = line.decode(errors="replace").strip()[:100]
                    raise InvalidSpec(
                        f"{self._host} sent an unexpected line: {text!r}",
                        hint=_SAME_VERSION,
                    )

    def greet(self) -> dict[str, Any]:
        """What the other side says first; raises InvalidSpec for another protocol."""
        _, hello = self.hear("hello", banners=_BANNERS)
        self.begun = True
        if not isinstance(hello, dict) or hello.get("archive") != PROTOCOL:
            raise InvalidSpec(
                f"{self._host} has another version of lab with an incompatible archive protocol",
                hint=_SAME_VERSION,
            )
        return hello

    def wanted(self, what: object, header: Header) -> dict[str, int]:
        """The parts of ``header`` that the other side wants; raises InvalidSpec for any other."""
        names = {part.name for part in header.parts}
        if isinstance(what, dict) and names.issuperset(what):
            found = {str(name): first for name, first in what.items()}
            if all(type(first) is int and first >= 0 for first in found.values()):
                return found
        raise InvalidSpec(f"{self._host} requested parts that do not exist", hint=_SAME_VERSION)

    def done(self, what: object) -> Done:
        """What the other side says that it did with the archive."""
        fields = what if isinstance(what, dict) else {}
        outcome, lab = fields.get("outcome"), fields.get("lab")
        known = outcome if outcome in ("imported", "exists") else "imported"
        return Done(known, lab if isinstance(lab, str) and _LAB.fullmatch(lab) else "")

    def _quote(self, text: object) -> str:
        """What the other side says, fit for a terminal."""
        return f"{self._host}: " + "".join(c if c.isprintable() else " " for c in str(text)[:500])


def failure(host: str, error: CommandFailed, *, begun: bool = False) -> LabError:
    """What the other side's failure is here: its own words and its exit code.

    ``begun``: the two had been talking already.
    """
    found = re.search(r"^lab: error: (.+)$", error.stderr, re.M)
    hint = re.search(r"^hint: (.+)$", error.stderr, re.M)
    kind = _KINDS.get(error.status)
    if found and kind:
        details = [line for line in error.stderr.splitlines() if line.startswith("  ")]
        return kind(f"{host}: {found[1]}", hint=hint[1] if hint else "", details=details[:10])
    known = {
        255: f"`ssh {host} true` must work without a prompt: it needs a key and a known host",
        127: "lab is not in the PATH there: give its path with --remote-lab",
    }
    remedy = _AGAIN if begun else known.get(error.status, "")
    return CommandFailed([f"ssh {host}"], error.status, stderr=error.stderr, hint=remedy)


def conversation(argv: Sequence[str]) -> AbstractContextManager[run.Conversation]:
    """``lab.run.conversation`` with the patience that a transfer needs."""
    return run.conversation(argv, stall=_STALL)
