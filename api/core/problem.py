"""Errors as problems (RFC 9457), made from the error tree: for answers and for the jobs' record."""

from __future__ import annotations

import re
from typing import Any

from lab.errors import CommandFailed, LabError

_MOST = 4096
"""Characters of the detail, which may repeat what was sent: it is kept with its job."""
_LINES = 100


def problem(error: LabError) -> dict[str, Any]:
    """The members of the problem that ``error`` is reported as."""
    words = re.sub(r"(?<!^)(?=[A-Z])", " ", type(error).__name__).lower()
    ran: dict[str, Any] = {}
    if isinstance(error, CommandFailed):
        ran = {"program": error.argv[0], "exit_status": error.status}
    return {
        "type": f"urn:lab:error:{words.replace(' ', '-')}",
        "title": words.capitalize(),
        "status": error.http_status,
        "detail": error.what[:_MOST],
        "hint": error.hint,
        "details": list(error.details[:_LINES]),
        **ran,
    }


def internal() -> dict[str, Any]:
    """The problem for a defect of the service; its cause is written to the log only."""
    return problem(LabError("internal error", hint="see the log of the service"))
