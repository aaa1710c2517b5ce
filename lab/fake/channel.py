"""The way into a guest of the fake hypervisor: what the lifecycle runs there, nothing else."""

from __future__ import annotations

import hashlib
import time
from collections.abc import Callable, Iterable, Sequence
from functools import partial

from lab.config.enginefile import clients, families
from lab.errors import CommandFailed, NotReady, StatementRefused
from lab.fake import load as guest_load
from lab.fake.inside import READ_LOCK, Inside
from lab.fake.rejoin import identify, rest, service
from lab.fake.servers import FakeServers
from lab.hypervisor import TooLong
from lab.names import GuestName
from lab.progress import never_halt
from lab.units import format_size
from lab.wait import Deadline, attempts


class FakeChannel:
    """A ``GuestChannel``; waits for nothing but ``SLEEP``: a fake guest that is silent stays so."""

    def __init__(
        self,
        servers: FakeServers,
        guest: GuestName,
        before: Callable[[str], None],
        own_seconds: float,
    ) -> None:
        self._servers = servers
        self._guest = guest
        self._before = before
        self._own_seconds = own_seconds

    def ping(self, timeout: float) -> bool:  # noqa: ARG002  part of the protocol
        """See GuestChannel."""
        self._before("ping")
        return self._servers.awake(self._guest)

    def run(
        self,
        argv: Sequence[str],
        *,
        stdin: bytes = b"",
        timeout: float,
        halt: Callable[[], None] = never_halt,
        most: int = 0,
    ) -> bytes:
        """See GuestChannel."""
        halt()
        output = self._run(argv, stdin)
        if argv[0] != "/usr/lib/lab/load" or argv[1] == "warm":  # others are in the background
            self._until_awake(argv[0], timeout, halt)
        if most and len(output) > most:
            raise TooLong(f"{argv[0]} in {self._guest} wrote more than {format_size(most)}")
        return output

    def _until_awake(self, program: str, timeout: float, halt: Callable[[], None]) -> None:
        for _ in attempts(Deadline.after(timeout), most=0.05):
            halt()
            if not self._servers.asleep(self._guest):
                return
        raise NotReady(f"{program} in {self._guest} did not end within {timeout:g} s")

    def _run(self, argv: Sequence[str], stdin: bytes) -> bytes:
        self._before("run")
        if not self._servers.awake(self._guest):
            raise NotReady(f"the guest agent of {self._guest} does not answer")
        if argv[0] in _SAID:
            return _SAID[argv[0]]
        if argv[0] == "/usr/lib/lab/carry":
            return self._servers.carry(self._guest)
        if argv[0] == "/usr/lib/lab/sql" and self._servers.has_no_server(self._guest):
            raise CommandFailed(argv, 2, stderr="No such file or directory", where=self._guest)
        if argv[0] == "/usr/lib/lab/sql" or list(argv) == ["/usr/lib/lab/source", "follow"]:
            return self._statements(argv, stdin.decode().splitlines()).encode()
        if argv[0] == "/bin/sh":
            return _answers(stdin.decode(), self._guest).encode()
        if argv[0] in clients():
            return self._statements(argv, map(str.strip, stdin.decode().split(";"))).encode()
        return self._program(argv, stdin).encode()

    def _program(self, argv: Sequence[str], stdin: bytes) -> str:
        """What a program of ours in the guest does, or of its system."""
        output: list[str] = []
        match argv[0]:
            case "/usr/bin/journalctl" | "journalctl":
                return self._servers.log(self._guest)
            case "/usr/lib/lab/proxied":
                return self._servers.proxied(self._guest)
            case "/usr/lib/lab/load":
                return self._load(argv[1:], stdin)
            case "/usr/lib/lab/rejoin" | "/usr/lib/lab/regroup" | "/usr/lib/lab/source":
                return self._servers.recover(self._guest, argv, stdin)
            case "/usr/lib/lab/rest":
                self._servers.alter(self._guest, lambda on: output.append(rest(on, argv[1:])))
            case "/usr/lib/lab/bench":
                output.append(self._servers.bench(self._guest, argv[1:]))
        if output:
            return output[0]
        if (change := _PROGRAMS.get(argv[0])) is None:
            raise CommandFailed(argv, 127, stderr=f"{argv[0]}: not found", where=self._guest)
        self._servers.alter(self._guest, lambda inside: change(inside, argv[1:]))
        return ""

    def _statements(self, argv: Sequence[str], statements: Iterable[str]) -> str:
        try:
            return "".join(map(self._rows, statements))
        except CommandFailed as failed:
            # What the server refuses ends the program: a Perl script that dies exits with 255.
            status = 255 if argv[0] == "/usr/lib/lab/sql" else 1
            raise CommandFailed(argv, status, stderr=failed.stderr, where=self._guest) from None

    def _load(self, words: Sequence[str], stdin: bytes) -> str:
        if words[0] != "warm":
            return self._servers.load(self._guest, words)
        guest_load.read(stdin, partial(self._servers.execute, self._guest))
        return ""

    def clock(self, *, timeout: float) -> float:  # noqa: ARG002  part of the protocol
        """See GuestChannel."""
        self._before("clock")
        return self._servers.clock(self._guest)

    def personalise(
        self, message: bytes, *, timeout: float, halt: Callable[[], None] = never_halt
    ) -> int:
        """See GuestChannel."""
        halt()
        self._before("personalise")
        if not self._servers.awake(self._guest) or timeout < self._own_seconds:
            raise NotReady(f"{self._guest} does not answer at its port")
        for line in message.decode().splitlines():
            word, *values = line.split()
            try:
                self._item(word, [bytes.fromhex(value) for value in values])
            except CommandFailed as failed:
                text = f"{word}: {failed.stderr}"
                raise CommandFailed(["personalise"], 1, stderr=text, where=self._guest) from None
        counted: list[int] = []
        if self._servers.inside(self._guest).ended:
            self._servers.alter(self._guest, lambda inside: counted.append(_report(inside)))
        return sum(counted)

    def write(self, path: str, content: bytes, *, mode: int = 0o600) -> None:
        """See GuestChannel."""
        self._before("write")
        self._servers.alter(self._guest, lambda inside: inside.put(path, content, f"{mode:o}"))

    def _rows(self, statement: str) -> str:
        rows = self._servers.execute(self._guest, statement).rows if statement else ()
        return "".join("\t".join(map(_text, row)) + "\n" for row in rows)

    def _item(self, word: str, values: list[bytes]) -> None:
        if word == "sql":
            if READ_LOCK in self._servers.inside(self._guest).sessions:
                # A real server would wait, for a day or a year.
                raise StatementRefused(1205, "Lock wait timeout exceeded")
            self._servers.execute(self._guest, values[0].decode())
        elif word in CHANGES:
            if word in ("clock", "reseed"):
                self._servers.put_clock(self._guest, float(values[0]) - time.time())
            self._servers.alter(self._guest, partial(CHANGES[word], values))
        else:
            raise CommandFailed(["personalise"], 1, stderr="unknown item")


_SAID = {
    "/bin/sync": b"",  # what a fake guest writes is on its disk at once
    **{family.upgrade[0]: b"" for family in families() if family.upgrade},
}
_PROGRAMS: dict[str, Callable[[Inside, Sequence[str]], None]] = {
    "systemctl": service,
    "/usr/lib/lab/identity": identify,
}


def _entropy(values: list[bytes], inside: Inside) -> None:
    inside.entropy = hashlib.sha256(inside.entropy.encode() + values[0]).hexdigest()


def _clock(values: list[bytes], inside: Inside) -> None:
    inside.clock = float(values[0])


def _reseed(values: list[bytes], inside: Inside) -> None:
    inside.clock = float(values[0])
    inside.seeds = inside.entropy


def _sessions(_values: list[bytes], inside: Inside) -> None:
    inside.ended += len(inside.sessions)
    inside.sessions.clear()


def _report(inside: Inside) -> int:
    """The ended sessions that no successful message has reported yet."""
    ended, inside.ended = inside.ended, 0
    return ended


def _file(values: list[bytes], inside: Inside) -> None:
    path, mode, _user, content = values
    inside.put(path.decode(), content, mode.decode())


CHANGES: dict[str, Callable[[list[bytes], Inside], None]] = {
    "entropy": _entropy,
    "clock": _clock,
    "reseed": _reseed,
    "sessions": _sessions,
    "file": _file,
}
"""What items do to a guest. Programs of earlier versions know fewer of them."""


def _text(value: object) -> str:
    return "NULL" if value is None else str(value)


def _answers(script: str, guest: str) -> str:
    """What the script of a bundle prints: a mark and a name before each answer."""
    names = [line.split()[-2:] for line in script.splitlines() if line.startswith("printf ")]
    return "".join(f"\n{mark} {name}\n{name} of {guest}\n" for mark, name in names)
