"""Views as text: the tables and lines that several verbs print."""

from __future__ import annotations

import sys
import time
from collections.abc import Sequence
from typing import TYPE_CHECKING

from lab.cli.terminal.table import cross, facts, table, tick
from lab.options import described
from lab.units import format_duration, format_size
from lab.views.labs import FIRST_USE, Lab

if TYPE_CHECKING:
    from lab.observe.states import Requirement
    from lab.views.labs import LabStatus, LabView, NodeView, Preview, Unmet

_OLD = 5.0
"""Seconds after which the age of an observation is shown."""


def lab_text(view: LabView, now: float) -> str:
    """A lab: a table of its nodes, then its engine, account and lease."""
    heads: tuple[str, ...] = ("NODE", "ROLE", "STATE", "SQL", "SSH")
    rows: list[tuple[str, ...]] = [
        (node.name, node.shown_role, node.state, node.address or "-", str(node.ssh_port or "-"))
        for node in view.nodes
    ]
    if len(view.engines) > 1:
        heads = (*heads, "ENGINE")
        own = (f"{node.engine} {node.engine_version}".strip() or "-" for node in view.nodes)
        rows = [(*row, engine) for row, engine in zip(rows, own, strict=True)]
    nodes = table(heads, rows)
    # An endpoint of SQL is in the table.
    sql = {node.address for node in view.nodes}
    more = [name for name, places in view.addresses.items() if not sql.issuperset(places)]
    lines = facts(
        [
            ("lab", f"{view.name} ({view.blueprint}, {_state(view, now)})"),
            ("host", _host(view)),
            ("interrupted", view.interrupted),
            ("parent", view.parent),
            *(("halted", _halted(view, node)) for node in view.nodes if node.why),
            ("engine", _requested(view, ", ".join(view.engines))),
            ("unencrypted", view.unencrypted),
            ("options", described(view.options)),
            ("profile", view.profile),
            *(("risk", risk) for risk in view.risks),
            ("snapshots", view.snapshots),
            ("standby", f"made for {view.standby}" if view.standby else ""),
            ("user", view.user),
            ("password", view.password),
            ("dsn", view.dsn),
            ("ca", view.ssl_ca),
            *((name, ", ".join(view.addresses[name])) for name in view.addresses if name in more),
            ("expires", expiry(view.expires_at, now)),
            ("started", how_started(view)),
        ]
    )
    return f"{nodes}\n{lines}"


def _halted(view: LabView, node: NodeView) -> str:
    return f"{node.name}: {node.why}; free some (`lab doctor`), then `lab start {view.name}`"


def _memory(found: Preview) -> str:
    sizes = {node.memory for node in found.each} or {found.memory}
    if len(sizes) == 1:
        return f"{format_size(*sizes)} of memory each"
    each = (f"{node.name} {format_size(node.memory)}" for node in found.each)
    return f"memory: {', '.join(each)}"


_LIMIT = "the limit is the setting max_templates"


def preview_text(found: Preview) -> str:
    """The result of `lab up --dry-run`, a line a fact."""
    absent = "" if found.template is None else "none yet: it would be formed and captured first"
    cold = f" ({found.why_cold})" if found.why_cold else ""
    images = [
        found.image,
        *(f"{node.name}: {node.image}" for node in found.each if node.image != found.image),
    ]
    return facts(
        [
            ("lab", f"{found.name} ({found.blueprint})"),
            ("nodes", f"{found.nodes}, {_memory(found)}"),
            ("engine", found.engine),
            ("profile", found.profile),
            (
                "image",
                ", ".join(images) + ("" if found.image_exists else ", would be built first"),
            ),
            ("template", found.template or absent),
            *(("removes", f"the template {key}, unused: {_LIMIT}") for key in found.displaces),
            ("start", found.start + cold),
        ]
    )


def labs_text(views: Sequence[LabView], now: float) -> str:
    """One line a lab; with its host where the service belongs to a fleet."""
    fleet = any(map(_host, views))
    return table(
        ("NAME", *(["HOST"] if fleet else []), "BLUEPRINT", "ENGINE", "NODES", "STATE", "SQL",
         "AGE", "EXPIRES"),
        [
            (
                view.name,
                *([_host(view) or "-"] if fleet else []),
                view.blueprint or "-",
                _requested(view, ", ".join(view.engines)) or "-",
                _requested(view, str(len(view.nodes) or view.requested_nodes)),
                _state(view, now),
                (view.entry and view.entry.address) or "-",
                age(view.created_at, now),
                left(view.expires_at, now),
            )
            for view in views
        ],
        right={3 + fleet},
    )  # fmt: skip


def _host(view: LabView) -> str:
    """The host of a fleet that a lab is on; empty without one."""
    return view.host_name if isinstance(view, Lab) else ""


def _state(view: LabView, now: float) -> str:
    """The state of a lab, with the age of what was seen where that is old; how long it sleeps."""
    if view.asleep_at is not None:
        return f"{view.state} for {format_duration(max(0, int(now - view.asleep_at)))}"
    if view.observed_at is None or now - view.observed_at < _OLD:
        return view.state
    return f"{view.state} ({format_duration(now - view.observed_at)} ago)"


def _requested(view: LabView, text: str) -> str:
    """``text`` of a lab, marked while it was only requested."""
    return f"{text} requested" if text and view.state == "creating" and not view.image else text


def status_text(status: LabStatus, now: float) -> str:
    """A lab, and a table of its nodes' requirements; those not met, or not known, follow in full.

    Of a node that does not answer only that follows, as nothing else of it is known.
    """
    text = lab_text(status.lab, now)
    unmet: list[tuple[str, Requirement | Unmet]]
    unmet = [(one.node, one) for one in status.requirements if not one.met and one.found]
    if not status.requirements:  # of a service, which reports these alone
        unmet = [(node.name, one) for node in status.lab.nodes for one in node.unmet]
    if unmet or status.requirements:
        text += "\n"
    if status.requirements:
        text += _requirements(status) + ("\n" if unmet else "")
    return text + "".join(
        f"{node}: required: {one.what}; found: {one.found}\n" for node, one in unmet
    )


def _requirements(status: LabStatus) -> str:
    marks: dict[bool | None, str] = {True: tick(sys.stdout), False: cross(sys.stdout), None: "?"}
    names = list(dict.fromkeys(one.name for one in status.requirements))
    met = {(one.node, one.name): marks[one.met] for one in status.requirements}
    rows = [
        (node.name, *(met.get((node.name, name), "-") for name in names))
        for node in status.lab.nodes
    ]
    return table(("NODE", *(name.upper() for name in names)), rows)


def how_started(view: LabView) -> str:
    """``ready in 1.9 s (warm)``, the reason for a cold start, and the time of a first use."""
    if not view.started:  # also of a lab that is stopped
        return ""
    why = f": {view.why_cold}" if view.started == "cold" and view.why_cold else ""
    how = f"{view.started}{why}"
    if not view.seconds:
        return how
    first = " and ".join(step.step for step in view.steps if step.step in FIRST_USE)
    took = view.first_use_seconds
    before = f", after {took:.0f} s for {first}, made on first use" if took >= 0.5 else ""
    return f"ready in {view.seconds:.1f} s ({how}){before}"


def age(since: float, now: float) -> str:
    """How long ago."""
    return format_duration(max(0.0, now - since)) if since else "-"


def left(until: float | None, now: float) -> str:
    """How long to go; from an hour on in minutes, so that 2h is 2h for a while."""
    if until is None:
        return "never"
    if until <= now:
        return "expired"
    unit = 60 if until - now >= 3600 else 1
    return format_duration(max(1, round((until - now) / unit)) * unit)


def expiry(until: float | None, now: float) -> str:
    """How long to go, and when that is; empty if there is no end."""
    if until is None:
        return ""
    return f"{left(until, now)} ({moment(until)})" if until > now else f"expired {moment(until)}"


def moment(at: float) -> str:
    """A time, in UTC."""
    return time.strftime("%Y-%m-%d %H:%M UTC", time.gmtime(at))


def size_or_dash(size: int | None) -> str:
    """A size, ``-`` for one that is not known."""
    return format_size(size) if size else "-"


def seconds_or_dash(seconds: float) -> str:
    """A duration to the tenth, ``-`` for one that is not known."""
    return f"{seconds:.1f} s" if seconds else "-"
