"""The error tree.

Every failure that a user can meet is one of these. The class decides the exit
code of the CLI and the status of the HTTP API::

    LabError            1 / 500
    ├── InvalidSpec     2 / 422   bad name, unknown blueprint, unknown key in lab.toml
    ├── NotFound        3 / 404
    ├── Conflict        4 / 409   exists, busy (Busy), protected, has clones
    ├── HostUnfit       5 / 503   missing tool, no permission, no memory, no space
    │                             (PortTaken, RestoreFailed, RecipeFailed, OutOfReach)
    ├── CommandFailed   6 / 500   argv, exit status, last lines of stderr (StatementRefused)
    ├── NotReady        7 / 504   requirement, node, last log line
    ├── Unauthorized    8 / 401
    ├── Forbidden       9 / 403
    ├── LimitReached   10 / 429   a quota, a rate, the queue for room
    ├── NoProgram     127 / 500   a program to be run for the user is not installed
    └── Interrupted   130 / 499   Ctrl-C or SIGTERM
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import ClassVar

ROOM_RETRY = 30.0
"""Seconds after which what the host had no room for is worth another try."""
_LINE = 2048
"""Characters that are kept of each detail, which may be what a guest sent."""


class LabError(Exception):
    """What happened, in one line, and what to do about it, in another.

    ``details`` are further lines (log lines, figures) shown below the first. ``retry_after``:
    seconds after which the same may succeed; None: only if something is changed.
    """

    exit_code: ClassVar[int] = 1
    http_status: ClassVar[int] = 500

    def __init__(
        self,
        what: str,
        *,
        hint: str = "",
        details: Sequence[str] = (),
        retry_after: float | None = None,
    ) -> None:
        super().__init__(what)
        self.what = what
        self.hint = hint
        self.details = tuple(line[:_LINE] for line in details)
        self.retry_after = retry_after


class InvalidSpec(LabError):
    """The request is invalid, on any host."""

    exit_code = 2
    http_status = 422


class NotFound(LabError):
    """The thing named does not exist."""

    exit_code = 3
    http_status = 404


class Conflict(LabError):
    """The thing exists already, is busy, is protected, or others depend on it."""

    exit_code = 4
    http_status = 409


class Busy(Conflict):
    """Another process is working on it; it may be free in a moment."""


class HostUnfit(LabError):
    """The host cannot do it: a tool, a permission, memory or space is missing."""

    exit_code = 5
    http_status = 503


class PortTaken(HostUnfit):
    """A port of this host that was free a moment ago is used by another program now."""


class RestoreFailed(HostUnfit):
    """The hypervisor refused a capture's RAM or device state, or failed while it loaded them.

    The files of the capture are intact as far as can be checked; its disks still boot.
    """


class RecipeFailed(HostUnfit):
    """An image cannot be built because of its recipe, such as its package repository.

    Another recipe may still be built.
    """


class OutOfReach(RecipeFailed):
    """Nobody answers at the recipe's repository; that may be the fault of this host's network."""


class CommandFailed(LabError):
    """A command, here or in a guest, failed.

    ``details`` holds the last lines of what it wrote to stderr. Some programs tell why at stdout.
    """

    exit_code = 6
    http_status = 500

    def __init__(
        self,
        argv: Sequence[str],
        status: int,
        *,
        stderr: str = "",
        stdout: str = "",
        where: str = "",
        hint: str = "",
    ) -> None:
        ended = f"was ended by signal {-status}" if status < 0 else f"failed with status {status}"
        place = f" in {where}" if where else ""
        super().__init__(
            f"{argv[0]}{place} {ended}", hint=hint, details=stderr.strip().splitlines()[-10:]
        )
        self.argv = tuple(argv)
        self.status = status
        self.stderr = stderr
        self.stdout = stdout


class StatementRefused(CommandFailed):
    """A server refused a statement: its error, as clients print it.

    ``status`` is the server's error code, ``stderr`` its text.
    """

    def __init__(self, code: int, text: str, state: str = "HY000") -> None:
        super().__init__(["SQL"], code, stderr=text)
        first, *rest = text.strip().splitlines() or ["no text"]
        LabError.__init__(self, f"ERROR {code} ({state}): {first}"[:_LINE], details=rest[:9])


class NoProgram(LabError):
    """A program is not installed; the exit code is that of shells."""

    exit_code = 127


class NotReady(LabError):
    """Something did not come up in time: the node, the unmet requirement, the log line.

    ``begun``: it had begun to answer when its time was over; with more it may complete that.
    """

    exit_code = 7
    http_status = 504

    def __init__(
        self,
        what: str,
        *,
        hint: str = "",
        details: Sequence[str] = (),
        retry_after: float | None = None,
        begun: bool = False,
    ) -> None:
        super().__init__(what, hint=hint, details=details, retry_after=retry_after)
        self.begun = begun


class Unauthorized(LabError):
    """No valid credentials."""

    exit_code = 8
    http_status = 401


class Forbidden(LabError):
    """Valid credentials that do not allow this."""

    exit_code = 9
    http_status = 403


class LimitReached(LabError):
    """A quota, a rate or a queue leaves no room now."""

    exit_code = 10
    http_status = 429


class Interrupted(LabError):
    """The user stopped it."""

    exit_code = 130
    http_status = 499
