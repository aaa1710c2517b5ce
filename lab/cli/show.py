"""Views as text: the tables and lines that several verbs print."""

from __future__ import annotations

import time
from collections.abc import Sequence
from typing import TYPE_CHECKING

from lab.cli.table import facts, table
from lab.spec import format_duration, format_size

if TYPE_CHECKING:
    from lab.lifecycle.views import LabStatus, LabView


def lab_text(view: LabView, now: float) -> str:
    """A lab: a table of its nodes, then what one needs to use it."""
    nodes = table(
        ("NODE", "ROLE", "STATE", "SQL", "SSH"),
        [
            (node.name, node.role, node.state, node.address, str(node.ssh_port or "-"))
            for node in view.nodes
        ],
    )
    lines = facts(
        [
            ("lab", f"{view.name} ({view.blueprint}, {view.state})"),
            ("engine", f"{view.engine} {view.engine_version}".strip()),
            ("profile", view.profile),
            *(("risk", risk) for risk in view.risks),
            ("user", view.user),
            ("password", view.password),
            ("dsn", view.dsn),
            ("expires", expiry(view.expires_at, now)),
            ("started", how_started(view)),
        ]
    )
    return f"{nodes}\n{lines}"


def labs_text(views: Sequence[LabView], now: float) -> str:
    """One line a lab."""
    return table(
        ("NAME", "BLUEPRINT", "ENGINE", "NODES", "STATE", "SQL", "AGE", "EXPIRES"),
        [
            (
                view.name,
                view.blueprint or "-",
                f"{view.engine} {view.engine_version}".strip() or "-",
                str(len(view.nodes)),
                view.state,
                view.nodes[0].address if view.nodes else "-",
                age(view.created_at, now),
                left(view.expires_at, now),
            )
            for view in views
        ],
        right={3},
    )


def status_text(status: LabStatus, now: float) -> str:
    """A lab, and below it what must hold for it to be ready."""
    text = lab_text(status.lab, now)
    if not status.requirements:
        return text
    rows = [
        (one.node, one.what, "yes" if one.met else "NO", one.found) for one in status.requirements
    ]
    return f"{text}\n{table(('NODE', 'REQUIREMENT', 'MET', 'FOUND'), rows)}"


def how_started(view: LabView) -> str:
    """``warm, in 1.9 s``, or why not warm."""
    if not view.started:
        return ""
    why = f" ({view.why_cold})" if view.started == "cold" and view.why_cold else ""
    return f"{view.started}{why}, in {view.seconds:.1f} s" if view.seconds else view.started + why


def age(since: float, now: float) -> str:
    """How long ago."""
    return format_duration(max(0.0, now - since)) if since else "-"


def left(until: float | None, now: float) -> str:
    """How long to go."""
    if until is None:
        return "never"
    return format_duration(until - now) if until > now else "expired"


def expiry(until: float | None, now: float) -> str:
    """How long to go, and when that is; empty if there is no end."""
    if until is None:
        return ""
    return f"{left(until, now)} ({moment(until)})" if until > now else f"expired {moment(until)}"


def moment(at: float) -> str:
    """A time, in UTC."""
    return time.strftime("%Y-%m-%d %H:%M UTC", time.gmtime(at))


def size_or_dash(size: int) -> str:
    """A size, ``-`` for one that is not known."""
    return format_size(size) if size else "-"


def seconds_or_dash(seconds: float) -> str:
    """A duration to the tenth, ``-`` for one that is not known."""
    return f"{seconds:.1f} s" if seconds else "-"
