"""The QEMU guest agent and the personalising program of a guest, over any kind of ports.

Protocol: the QEMU Guest Agent Protocol Reference (guest-ping, guest-exec, guest-exec-status).
bhyve's guests run the same agent.
"""

from __future__ import annotations

import base64
import json
import re
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from typing import Any, Protocol, TypeVar

from lab.errors import CommandFailed, LabError, NotReady
from lab.hypervisor import TooLong
from lab.names import GuestName
from lab.progress import never_halt
from lab.units import format_size
from lab.wait import Deadline, attempts

T = TypeVar("T")

GUEST_AGENT = "org.qemu.guest_agent.0"
PERSONALISE = "org.lab.personalise.0"
"""The virtio ports of a guest: of QEMU's agent, and of the personalising program."""

_PERSONALISED = re.compile(r"ok(?: (?P<ended>[0-9]{1,9}))?|error (?P<reason>(?:[0-9a-f]{2})+)")
"""The program's answer: the number of sessions it ended, or an error as UTF-8 in hex."""

_BOUNDED = """\
n=$1 d=$(mktemp -d /run/lab-run.XXXXXX) || exit
shift
mkfifo "$d/out" "$d/err"
head -c "$n" <"$d/out" & head -c "$n" <"$d/err" >&2 &
"$@" >"$d/out" 2>"$d/err"
s=$?
wait
rm -rf "$d"
exit "$s"
"""
"""A shell's script: a program of which so many bytes of each stream are read; more end it."""

_VALUES = 1000
"""The maximum number of JSON values in an answer; long ones are one string, a program's output."""


def loaded(answer: bytes) -> Any:
    """Parse the JSON of an answer; raises ValueError, RecursionError.

    A list of empty objects takes 25 times the memory of its text, so values are counted first.
    """
    if answer.count(b",") > _VALUES:
        raise ValueError(f"an answer of more than {_VALUES} values")
    return json.loads(answer)


class Ports(Protocol):
    """The two ports of one guest."""

    def ask(self, request: dict[str, Any], timeout: float) -> Any:
        """The agent's return value; raises NotReady without an answer in ``timeout`` seconds."""

    def personalise(
        self, message: bytes, deadline: Deadline, halt: Callable[[], None] = never_halt
    ) -> str:
        """The answer to ``message``, a line; raises NotReady, and the errors of ``halt``."""


class AgentChannel:
    """A ``GuestChannel`` over the QEMU guest agent."""

    def __init__(self, ports: Ports, guest: GuestName) -> None:
        self._ports = ports
        self._guest = guest

    def ping(self, timeout: float) -> bool:
        """See GuestChannel."""
        try:
            with self._checked("guest-ping"):
                self._ask("guest-ping", timeout=timeout)
        except NotReady:
            return False
        return True

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
        deadline = Deadline.after(timeout)
        words = ["/bin/sh", "-c", _BOUNDED, "sh", str(most + 1), *argv] if most else argv
        arguments: dict[str, Any] = {
            "path": words[0],
            "arg": list(words[1:]),
            "capture-output": True,
        }
        if stdin:
            arguments["input-data"] = base64.b64encode(stdin).decode()
        with self._checked("guest-exec"):
            answer = self._ask("guest-exec", arguments, timeout=deadline.left)
            pid = _of(int, answer["pid"])
        for _ in attempts(deadline, first=0.01, most=0.25):
            halt()
            with self._checked("guest-exec-status"):
                status = {"pid": pid}
                left = max(deadline.left, 5.0)
                answer = self._ask("guest-exec-status", status, timeout=left)
                if _of(bool, answer["exited"]):
                    return self._output(argv, answer, most)
        raise NotReady(f"{argv[0]} in {self._guest} did not end within {timeout:g} s")

    def clock(self, *, timeout: float) -> float:
        """See GuestChannel."""
        with self._checked("guest-get-time"):
            return _of(int, self._ask("guest-get-time", timeout=timeout)) / 1e9

    def personalise(
        self, message: bytes, *, timeout: float, halt: Callable[[], None] = never_halt
    ) -> int:
        """See GuestChannel."""
        framed = b"begin\n" + message + b"end\n"
        answer = self._ports.personalise(framed, Deadline.after(timeout), halt)
        with self._checked("personalise"):
            found = _PERSONALISED.fullmatch(answer)
            if found is None:
                raise ValueError(f"neither ok nor an error: {answer[:100]!r}")
        if found["reason"] is None:
            return int(found["ended"] or 0)
        text = bytes.fromhex(found["reason"]).decode(errors="replace")
        raise CommandFailed(["personalise"], 1, stderr=text, where=str(self._guest))

    def write(self, path: str, content: bytes, *, mode: int = 0o600) -> None:
        """See GuestChannel."""
        # A file is created with its final mode, so that a secret is never readable by others.
        script = 'umask 077; cat >"$1.new" && chmod "$2" "$1.new" && mv -f "$1.new" "$1"'
        argv = ["/bin/sh", "-c", script, "sh", path, f"{mode:o}"]
        self.run(argv, stdin=content, timeout=30.0)

    def _output(self, argv: Sequence[str], answer: dict[str, Any], most: int) -> bytes:
        stdout = _decoded(answer, "out-data")
        if most and max(len(stdout), len(_decoded(answer, "err-data"))) > most:
            raise TooLong(f"{argv[0]} in {self._guest} wrote more than {format_size(most)}")
        signal, code = (_of(int, answer.get(key, 0)) for key in ("signal", "exitcode"))
        if signal or code:
            text = (_decoded(answer, "err-data") or stdout).decode(errors="replace")
            status = -signal if signal else code
            raise CommandFailed(argv, status, stderr=text, where=str(self._guest))
        return stdout

    @contextmanager
    def _checked(self, request: str) -> Iterator[None]:
        """Raise NotReady for an answer that does not conform to the protocol."""
        try:
            yield
        except LabError:
            raise
        except Exception as error:  # noqa: BLE001  whoever is root in the guest decides what comes
            raise NotReady(
                f"{self._guest} sent an invalid answer to {request}",
                details=[f"{type(error).__name__}: {error}"[:200]],
            ) from None

    def _ask(self, command: str, arguments: dict[str, Any] | None = None, *, timeout: float) -> Any:
        request: dict[str, Any] = {"execute": command}
        if arguments:
            request["arguments"] = arguments
        return self._ports.ask(request, timeout)


def _of(kind: type[T], value: object) -> T:
    """``value`` if its type is exactly ``kind``; raises TypeError."""
    if type(value) is not kind:
        raise TypeError(f"{kind.__name__} expected, not {type(value).__name__}")
    return value


def _decoded(answer: dict[str, Any], key: str) -> bytes:
    return base64.b64decode(_of(str, answer.get(key, "")), validate=True)
