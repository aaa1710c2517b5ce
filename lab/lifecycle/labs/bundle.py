"""``lab bundle``: what a lab is, and was, as one file that can be sent to others."""

from __future__ import annotations

import os
import secrets
import time
from collections.abc import Callable, Mapping
from contextlib import ExitStack
from dataclasses import field, replace
from functools import partial
from pathlib import Path
from typing import IO

import msgspec

from lab import host
from lab.bundle import page, questions
from lab.bundle.packing import Packing, Parts, packing
from lab.bundle.redact import Redactor
from lab.bundle.unpacking import LAB
from lab.distribution import version
from lab.drafts import replaced
from lab.errors import Interrupted, LabError, NotReady
from lab.hypervisor import GuestChannel
from lab.lifecycle.captures.capture import Capture
from lab.lifecycle.core.context import Context
from lab.lifecycle.core.parallel import each
from lab.lifecycle.images.ready import engine_units
from lab.lifecycle.labs.node_access import MOST_OUT
from lab.lifecycle.nodes import inspect
from lab.lifecycle.snapshots import snapshot
from lab.names import GuestName
from lab.state.records import LabWithNodes, NodeRecord
from lab.units import format_size
from lab.values import dataclass
from lab.views.bundles import BundleView
from lab.views.labs import LabView
from lab.wait import Deadline

SECONDS = 120.0
"""For all that is asked of a lab's nodes; what has not answered by then is said to be missing."""
_SOON = 45.0
"""As that, for a lab that failed: its user waits for the error."""
KEPT = 30
"""Bundles of labs that failed."""
_CALL = 60.0
"""Seconds of one call: a round of an emulated guest takes 5 to 15."""
_PING = 5.0
_CONSOLE = 1 << 20
"""Bytes of a console, and of what the hypervisor keeps of a guest, the last ones."""
_JOBS = 20

AddLab = Callable[[str, Parts], object]
"""Writes the archive of a snapshot, by its label, to a stream."""


@dataclass
class _Found:
    """What was collected of a node: texts by the names of their files, and what was not."""

    files: dict[str, str] = field(default_factory=dict)
    missing: list[tuple[str, str]] = field(default_factory=list)


def bundle(
    ctx: Context,
    name: str,
    to: IO[bytes],
    *,
    why: str = "",
    rounds: int = questions.ROUNDS,
    seconds: float = SECONDS,
    add_lab: AddLab | None = None,
    notes: bool = True,
) -> BundleView:
    """Write what can be collected of a lab; ``why``: what failed, empty if nothing did.

    A node that does not run, or does not answer, is no error: what is missing is listed. A lab that
    is asleep stays so, and its nodes are not asked.

    ``add_lab``: exports a snapshot that is taken first, RAM included where it can be, for which a
    lab that is asleep is woken. ``notes``: whether what is missing is also noted. Raises
    NotFound, HostUnfit.
    """
    began = time.time()
    with ExitStack() as snapshots:
        taken, missing = _captured(ctx, name, snapshots) if add_lab else (None, [])
        with ctx.progress.step("bundle", f"collecting what is known of {name}"):
            view = inspect.lab(ctx, name)
            found = ctx.store.lab_with_nodes(name)
            redactor = Redactor(_secrets(found))
            deadline = Deadline.after(seconds)
            nodes = each(lambda node: _node(ctx, view, node, rounds, deadline), found.nodes)
        stamp = time.strftime("%Y%m%dT%H%M%SZ", time.gmtime(began))
        with packing(to, f"{name}-{stamp}") as out:
            _write(ctx, out, redactor, view, found, nodes, why, began, missing)
            if taken and add_lab:
                with out.parts(LAB) as parts:
                    add_lab(taken.label, parts)
    for one in missing if notes else ():
        ctx.progress.note("bundle", f"not collected: {one['what']}: {one['why']}")
    return BundleView(
        name,
        view.state,
        sum(one["size"] for one in out.files.values()),
        len(out.files),
        time.time() - began,
        lacks_lab=missing[0]["why"] if add_lab and not taken else "",
    )


def _captured(
    ctx: Context, name: str, snapshots: ExitStack
) -> tuple[Capture | None, list[dict[str, str]]]:
    """A snapshot that is kept in the block of ``snapshots``; or None, and why there is none."""
    try:
        kept = snapshot.kept_or_taken(ctx, name, "", "bundle", failed=True)
        return snapshots.enter_context(kept), []
    except Interrupted:
        raise
    except (LabError, OSError) as error:
        return None, [{"what": "the lab", "why": str(error)}]


def _write(
    ctx: Context,
    out: Packing,
    redactor: Redactor,
    view: LabView,
    found: LabWithNodes,
    nodes: list[_Found],
    why: str,
    began: float,
    missing: list[dict[str, str]],
) -> None:
    timeline = _ours(ctx, view.name, redactor)
    for node, seen in zip(found.nodes, nodes, strict=True):
        for path, text in sorted(seen.files.items()):
            out.add(f"nodes/{node.name}/{path}", _clean(redactor, path, text))
        missing += [{"what": f"{node.name}: {what}", "why": w} for what, w in seen.missing]
        log = redactor.log(seen.files.get("error.log", ""))
        timeline += page.moments(node.name, log)
    _facts(ctx, out, redactor, view, why, began, missing, page.merged(timeline))


def of_job(ctx: Context, job: str) -> Path:
    """Where the bundle of the lab is that a job could not make, if it is there."""
    return ctx.home.bundles / f"job-{job}.tar.zst"


def keep(ctx: Context, name: str, why: str) -> Path | None:
    """Write the bundle of a lab that failed and is about to be removed; None if that fails.

    The latest ``KEPT`` stay in the home.
    """
    if ctx.home.full:
        return None
    directory = ctx.home.bundles
    stamp = time.strftime("%Y%m%dT%H%M%SZ", time.gmtime())
    job = ctx.origin.job
    path = of_job(ctx, job) if job else directory / f"{name}-{stamp}.tar.zst"
    try:
        directory.mkdir(mode=0o700, exist_ok=True)
        with replaced(path) as draft, draft.open("wb") as file:
            # Without notes: the first that its user reads is the error.
            bundle(ctx, name, file, why=why, rounds=1, seconds=_SOON, notes=False)
        older = sorted(directory.glob("*.tar.zst"), key=lambda one: one.stat().st_mtime)
        for one in older[:-KEPT]:
            one.unlink(missing_ok=True)
    except Exception as error:  # noqa: BLE001  whatever it is: the failure itself is to be seen
        ctx.progress.note("bundle", f"no bundle was kept: {error}")
        return None
    return path


def _secrets(found: LabWithNodes) -> list[str]:
    return [found.lab.password]


def _clean(redactor: Redactor, path: str, text: str) -> str:
    name = path.rpartition("-")[2]
    if name in questions.STATEMENTS:
        return redactor.statement(text)
    if name in questions.STATUS:
        return redactor.status(text)
    return redactor.log(text) if name in questions.LOGS else redactor.text(text)


def _node(ctx: Context, view: LabView, node: NodeRecord, rounds: int, deadline: Deadline) -> _Found:
    seen = _Found()
    guest = GuestName(node.guest)

    def part(what: str, work: Callable[[], object]) -> None:
        try:
            work()
        except Interrupted:
            raise
        except (LabError, OSError) as error:
            seen.missing.append((what, str(error)))

    def kept() -> None:
        found = ctx.hypervisor.evidence(guest)
        seen.files.update({name: text[-_CONSOLE:] for name, text in found.items()})

    part("hypervisor", kept)
    part("console", lambda: seen.files.update({"console.log": _console(ctx, node)}))
    state = next((one.state for one in view.nodes if one.name == node.name), "unknown")
    if view.asleep_at is not None or state in ("stopped", "paused"):
        seen.missing.append(("guest", "it is asleep" if view.asleep_at else f"it is {state}"))
        return seen
    try:
        channel = ctx.hypervisor.channel(guest)
        if not channel.ping(_PING):
            seen.missing.append(("guest", "its agent does not answer"))
            return seen
    except LabError as error:
        seen.missing.append(("guest", str(error)))
        return seen
    part("logs", lambda: _logs(ctx, channel, node, seen, deadline))
    for number in range(rounds):
        if number:
            _pause(ctx, deadline)
        part(f"round {number + 1}", partial(_round, channel, node, seen, number, deadline))
    return seen


def _logs(
    ctx: Context, channel: GuestChannel, node: NodeRecord, seen: _Found, deadline: Deadline
) -> None:
    commands = questions.logs(engine_units(ctx, node.image))
    if not node.sql_port:
        del commands["error.log"]
    seen.files |= _asked(channel, commands, deadline)


def _round(
    channel: GuestChannel, node: NodeRecord, seen: _Found, number: int, deadline: Deadline
) -> None:
    stamp = time.strftime("%Y_%m_%d_%H_%M_%S", time.gmtime())
    answers = _asked(channel, questions.commands(number, server=bool(node.sql_port)), deadline)
    seen.files |= {f"{stamp}-{name}": text for name, text in answers.items()}


def _asked(
    channel: GuestChannel, commands: Mapping[str, str], deadline: Deadline
) -> dict[str, str]:
    if deadline.passed:
        raise NotReady("not asked: the time for all nodes was over")
    mark = secrets.token_hex(16)
    script = questions.script(commands, mark).encode()
    limit = min(_CALL, max(1.0, deadline.left))
    answer = channel.run(["/bin/sh", "-s"], stdin=script, timeout=limit, most=MOST_OUT)
    return questions.parts(answer.decode(errors="replace"), mark, commands)


def _pause(ctx: Context, deadline: Deadline) -> None:
    until = time.monotonic() + min(questions.APART, deadline.left)
    while time.monotonic() < until:
        ctx.progress.halt()
        time.sleep(0.1)


def _console(ctx: Context, node: NodeRecord) -> str:
    with ctx.home.console_log(node.guest).open("rb") as file:
        file.seek(max(0, file.seek(0, os.SEEK_END) - _CONSOLE))
        return file.read().decode(errors="replace")


def _ours(ctx: Context, name: str, redactor: Redactor) -> list[page.Moment]:
    """What jobs of a service did with the lab."""
    found = []
    for job in ctx.store.jobs.latest(lab=name, limit=_JOBS):
        for event in ctx.store.events.latest(f"job:{job.id}", limit=200):
            if event.state != "begin":
                text = f"{event.step} {event.state} {event.text}".strip()
                found.append(page.Moment(event.at, "lab", redactor.text(text)))
    return found


def _facts(
    ctx: Context,
    out: Packing,
    redactor: Redactor,
    view: LabView,
    why: str,
    at: float,
    missing: list[dict[str, str]],
    timeline: list[page.Moment],
) -> None:
    capabilities = ctx.hypervisor.capabilities()
    memory = host.memory()
    manifest = {
        "format": 1,
        "at": at,
        "why": redactor.log(why),
        "lab": {
            "name": view.name, "state": view.state, "blueprint": view.blueprint,
            "engine": f"{view.engine} {view.engine_version}".strip(), "image": view.image,
            "template": view.template, "started": view.started, "why_cold": view.why_cold,
            "profile": view.profile, "parent": view.parent, "interrupted": view.interrupted,
        },
        "nodes": [
            {"name": one.name, "role": one.role, "state": one.state, "why": one.why,
             "engine": f"{one.engine} {one.engine_version}".strip()}
            for one in view.nodes
        ],
        "versions": {
            "lab": version(), "hypervisor": capabilities.name,
            "accelerator": capabilities.accelerator, **capabilities.facts,
            "processors": str(host.processors()), "load": f"{os.getloadavg()[0]:.2f}",
            "memory": f"{format_size(memory.available)} of {format_size(memory.total)} available",
        },
        "missing": missing,
        "files": out.files,
    }  # fmt: skip
    plain = msgspec.to_builtins(replace(view, password="", dsn=""), enc_hook=str)
    out.add_json("lab.json", redactor.value(plain))
    out.add("timeline.txt", page.as_text(timeline))
    clean = redactor.value(manifest)
    out.add_json("manifest.json", clean)
    out.add("index.html", page.index(clean, timeline))
