"""``lab bundle``: what a lab is, and was, as one file that can be sent to others."""

from __future__ import annotations

import time
from collections.abc import Callable
from contextlib import ExitStack
from dataclasses import replace
from typing import IO

import msgspec

from lab.bundle import page, questions
from lab.bundle.packing import Parts, packing
from lab.bundle.redact import Redactor
from lab.bundle.unpacking import LAB, THE_LAB
from lab.errors import CommandFailed, Interrupted, LabError
from lab.lifecycle.captures.capture import Capture
from lab.lifecycle.core.context import Context
from lab.lifecycle.nodes import evidence, inspect
from lab.lifecycle.nodes.evidence import SOON, Subject, Witness
from lab.lifecycle.snapshots import snapshot
from lab.names import GuestName
from lab.state.records import LabWithNodes
from lab.views.bundles import BundleView
from lab.views.labs import LabView

SECONDS = 120.0
"""For all that is asked of a lab's nodes; what has not answered by then is said to be missing."""
_JOBS = 20

AddLab = Callable[[str, Parts], object]
"""Writes the archive of a snapshot, by its label, to a stream."""


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
            subject = _subject(view, ctx.store.lab_with_nodes(name))
            found = evidence.collect(ctx, subject, rounds, seconds)
        stamp = time.strftime("%Y%m%dT%H%M%SZ", time.gmtime(began))
        with packing(to, f"{name}-{stamp}") as out:
            redactor = Redactor(list(subject.secrets))
            plain = msgspec.to_builtins(replace(view, password="", dsn=""), enc_hook=str)
            out.add_json("lab.json", redactor.value(plain))
            index = evidence.write(
                ctx,
                out,
                subject,
                found,
                why=why,
                began=began,
                missing=missing,
                timeline=_jobs(ctx, name, redactor),
            )
            if taken and add_lab:
                parts = Parts(out, LAB)
                try:
                    add_lab(taken.label, parts)
                    parts.finish()
                except Interrupted:
                    raise
                except (LabError, OSError) as error:  # the evidence is worth more than nothing
                    if parts.refused:
                        raise
                    # The index was written before the lab, for whoever reads the stream.
                    taken, index = None, index.lacking(THE_LAB, _why(error))
                    index.put(out)
    for one in index.missing if notes else ():
        ctx.progress.note("bundle", f"not collected: {one['what']}: {one['why']}")
    return BundleView(
        name,
        view.state,
        sum(one["size"] for one in out.files.values()),
        len(out.files),
        time.time() - began,
        lacks_lab=index.missing[0]["why"] if add_lab and not taken else "",
    )


def keep(ctx: Context, name: str, error: LabError) -> None:
    """Keep the bundle of a lab that failed and is about to be removed; see ``evidence.keep``."""

    def write(file: IO[bytes]) -> None:
        # Without notes: the first that its user reads is the error.
        bundle(ctx, name, file, why=str(error), rounds=1, seconds=SOON, notes=False)

    evidence.keep(ctx, name, error, write)


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
        return None, [{"what": THE_LAB, "why": _why(error)}]


def _why(error: LabError | OSError) -> str:
    """The error as one line, with the last line of a program that failed."""
    said = error.details[-1:] if isinstance(error, CommandFailed) else ()
    return ": ".join([str(error), *said])


def _subject(view: LabView, found: LabWithNodes) -> Subject:
    seen = {one.name: one for one in view.nodes}

    def silent(state: str) -> str:
        if view.asleep_at is not None:
            return "it is asleep"
        return f"it is {state}" if state in ("stopped", "paused") else ""

    nodes = []
    for record in found.nodes:
        one = seen.get(record.name)
        state = one.state if one else "unknown"
        nodes.append(
            Witness(
                record.name,
                GuestName(record.guest),
                record.image,
                server=bool(record.sql_port),
                role=record.role,
                state=state,
                why=one.why if one else "",
                engine=f"{one.engine} {one.engine_version}".strip() if one else "",
                silent=silent(state),
            )
        )
    facts = {
        "name": view.name, "state": view.state, "blueprint": view.blueprint,
        "engine": f"{view.engine} {view.engine_version}".strip(), "image": view.image,
        "template": view.template, "started": view.started, "why_cold": view.why_cold,
        "profile": view.profile, "parent": view.parent, "interrupted": view.interrupted,
    }  # fmt: skip
    return Subject(view.name, facts, nodes, [found.lab.password])


def _jobs(ctx: Context, name: str, redactor: Redactor) -> list[page.Moment]:
    """What jobs of a service did with the lab."""
    found = []
    for job in ctx.store.jobs.latest(lab=name, limit=_JOBS):
        for event in ctx.store.events.latest(f"job:{job.id}", limit=200):
            if event.state != "begin":
                text = f"{event.step} {event.state} {event.text}".strip()
                found.append(page.Moment(event.at, "lab", redactor.text(text)))
    return found
