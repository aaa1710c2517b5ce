"""Problems that the service reports (RFC 9457), as the program's own errors."""

from __future__ import annotations

import re
from collections.abc import Iterator, Mapping
from typing import Any

from lab import errors
from lab.errors import (
    CommandFailed,
    Conflict,
    InvalidSpec,
    LabError,
    NotReady,
    StatementRefused,
)

MEDIA_TYPE = "application/problem+json"
_URN = "urn:lab:error:"


def error_of(
    problem: Mapping[str, Any], *, status: int = 0, retry_after: float | None = None
) -> LabError:
    """The error for a problem; the class is that of its type, else that of its status.

    ``status``: HTTP's, where the problem does not say it; ``retry_after``: seconds.
    """
    status = _int(problem.get("status"), status)
    kind = _KINDS.get(_text(problem, "type").removeprefix(_URN)) or _by_status(status)
    what = _text(problem, "detail") or _text(problem, "title") or f"the service answered {status}"
    hint = _text(problem, "hint")
    found = problem.get("details")
    details = [str(line) for line in found] if isinstance(found, list) else []
    if issubclass(kind, CommandFailed):
        return _command_failed(kind, problem, what, hint, details)
    if status >= 500 and (request := _text(problem, "request_id")):
        details.append(f"request {request} in the service's log")
    return kind(what, hint=hint, details=details, retry_after=retry_after)


def refusal(found: object, *, status: int, reason: str = "", retry_after: str = "") -> LabError:
    """The error for an answer of HTTP's ``status`` and ``reason``, and its header Retry-After.

    ``found``: the problem in its body; anything else than an object is not of `lab serve`.
    """
    seconds = float(retry_after) if retry_after.isdecimal() and len(retry_after) < 10 else None
    if not isinstance(found, dict):
        answer = f"HTTP {status} {reason}".strip()
        found = {"detail": f"{answer}, not an answer of lab serve"}
    return error_of(found, status=status, retry_after=seconds)


def _command_failed(
    kind: type[LabError], problem: Mapping[str, Any], what: str, hint: str, details: list[str]
) -> CommandFailed:
    status = _int(problem.get("exit_status"), 1)
    error: CommandFailed
    if issubclass(kind, StatementRefused):
        error = StatementRefused(status, "\n".join([what, *details]))
    else:
        program = _text(problem, "program") or what.split(" ", maxsplit=1)[0]
        error = CommandFailed([program], status, stderr="\n".join(details), hint=hint)
    error.what = what  # it names the guest, too, or the statement's state
    error.args = (what,)
    return error


def _tree(root: type[LabError]) -> Iterator[type[LabError]]:
    yield root
    for kind in root.__subclasses__():
        if kind.__module__ == errors.__name__:
            yield from _tree(kind)


def _name(kind: type[LabError]) -> str:
    return re.sub(r"(?<!^)(?=[A-Z])", "-", kind.__name__).lower()


_KINDS = {_name(kind): kind for kind in _tree(LabError)}
# A class before its subclasses, so that a status alone means the general one.
_STATUS = {kind.http_status: kind for kind in reversed([*_tree(LabError)])}
_STATUS |= {500: LabError, 400: InvalidSpec, 408: NotReady, 412: Conflict, 413: InvalidSpec}


def _by_status(status: int) -> type[LabError]:
    return _STATUS.get(status, LabError)


def _text(problem: Mapping[str, Any], key: str) -> str:
    found = problem.get(key)
    return found if isinstance(found, str) else ""


def _int(found: object, otherwise: int) -> int:
    return found if isinstance(found, int) else otherwise
