"""Whether a node's guest runs: a program, a session or a copy would hang in one that does not."""

from __future__ import annotations

from collections.abc import Mapping

from lab.errors import NotReady
from lab.hypervisor import Guest
from lab.names import GuestName


def require_running(
    guests: Mapping[GuestName, Guest], lab: str, node: str, guest: GuestName
) -> None:
    """Raise NotReady, with the remedy, if a node's guest does not run now."""
    found = guests.get(guest)
    require_state(lab, node, found.state if found else "stopped", found.why if found else "")


def require_state(lab: str, node: str, state: str, why: str = "") -> None:
    """Raise NotReady, with the remedy, if a node is stopped or paused; ``why``: see ``Guest``."""
    if state == "stopped":
        raise NotReady(
            f"{node} of {lab} does not run", hint=f"`lab start {lab} --node {node}` starts it"
        )
    if why:
        raise NotReady(
            f"{node} of {lab} is halted: {why}",
            hint=f"free some (`lab doctor`), then `lab start {lab}`",
        )
    if state == "paused":
        raise NotReady(f"{node} of {lab} is paused", hint=f"`lab start {lab}` resumes it")
