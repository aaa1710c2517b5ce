"""What is known of guests while they are there, as a bundle; those of failures are kept."""

from __future__ import annotations

import os
import secrets
import time
from collections.abc import Callable, Mapping, Sequence
from contextlib import suppress
from dataclasses import field, replace
from functools import partial
from pathlib import Path
from typing import IO, Any

from lab import host
from lab.bundle import page, questions
from lab.bundle.packing import Packing
from lab.bundle.redact import Redactor
from lab.bundle.unpacking import MANIFEST
from lab.distribution import version
from lab.drafts import replaced
from lab.errors import Interrupted, LabError, NotReady
from lab.hypervisor import GuestChannel
from lab.lifecycle.core.context import Context
from lab.lifecycle.core.parallel import each
from lab.lifecycle.images.ready import engine_units
from lab.names import GuestName
from lab.units import format_size
from lab.values import dataclass
from lab.wait import Deadline

SOON = 45.0
"""Seconds for all that is asked of nodes that failed: their user waits for the error."""
KEPT = 30
"""Bundles of what failed."""
_CALL = 60.0
"""Seconds of one call: a round of an emulated guest takes 5 to 15."""
_PING = 5.0
_CONSOLE = 1 << 20
"""Bytes of a console, and of what the hypervisor keeps of a guest, the last ones."""
_PAGE = "index.html"
_ANSWER = 1 << 20
"""Bytes of an answer of a guest."""


@dataclass(frozen=True)
class Witness:
    """A node that is asked."""

    name: str
    guest: GuestName
    image: str
    """The key of its image."""
    server: bool
    """Whether it has a server, or stands for one as proxies do."""
    role: str
    state: str
    why: str = ""
    engine: str = ""
    silent: str = ""
    """Why its guest is not asked; empty if it is."""


@dataclass(frozen=True)
class Subject:
    """What a bundle is of: a lab, or a template that is being made."""

    name: str
    facts: Mapping[str, Any]
    """What the manifest says of it."""
    nodes: Sequence[Witness]
    secrets: Sequence[str] = ()
    """What must not be in it."""


@dataclass
class Found:
    """What was collected of a node: texts by the names of their files, and what was not."""

    files: dict[str, str] = field(default_factory=dict)
    missing: list[tuple[str, str]] = field(default_factory=list)


def collect(ctx: Context, subject: Subject, rounds: int, seconds: float) -> list[Found]:
    """Ask all nodes; what has not answered after ``seconds`` is missing."""
    deadline = Deadline.after(seconds)
    return each(lambda node: _node(ctx, node, rounds, deadline), subject.nodes)


@dataclass(frozen=True)
class Index:
    """The manifest and the page of a bundle, which may be written again when more is known."""

    manifest: Mapping[str, Any]
    """Without ``missing`` and ``files``."""
    missing: Sequence[dict[str, str]]
    timeline: Sequence[page.Moment]
    redactor: Redactor

    def lacking(self, what: str, why: str) -> Index:
        """The same, where this is missing too."""
        return replace(self, missing=[{"what": what, "why": why}, *self.missing])

    def put(self, out: Packing) -> None:
        """Write both files.

        Of several in an archive the last ones count: whoever unpacks it gets these.
        """
        for path in (MANIFEST, _PAGE):
            out.files.pop(path, None)  # of the former index, which this one replaces
        said = {**self.manifest, "missing": list(self.missing), "files": out.files}
        clean = self.redactor.value(said)
        out.add_json(MANIFEST, clean)
        out.add(_PAGE, page.index(clean, self.timeline))


def write(
    ctx: Context,
    out: Packing,
    subject: Subject,
    found: Sequence[Found],
    *,
    why: str,
    began: float,
    missing: Sequence[dict[str, str]] = (),
    timeline: Sequence[page.Moment] = (),
) -> Index:
    """Write what was collected, and the index; returns that, with all that is missing.

    ``why``: what failed; ``began``: when it was collected, in epoch seconds; ``missing``: what is
    known to be missing before; ``timeline``: moments besides those of the servers' logs.
    """
    redactor = Redactor(list(subject.secrets))
    lacking, moments = list(missing), list(timeline)
    for node, seen in zip(subject.nodes, found, strict=True):
        for path, text in sorted(seen.files.items()):
            out.add(f"nodes/{node.name}/{path}", _clean(redactor, path, text))
        lacking += [{"what": f"{node.name}: {what}", "why": w} for what, w in seen.missing]
        moments += page.moments(node.name, redactor.log(seen.files.get("error.log", "")))
    merged = page.merged(moments)
    out.add("timeline.txt", page.as_text(merged))
    index = Index(_manifest(ctx, subject, redactor.log(why), began), lacking, merged, redactor)
    index.put(out)
    return index


def of_job(ctx: Context, job: str) -> Path:
    """Where the bundle is of what a job could not make, if it is there."""
    return ctx.home.bundles / f"job-{job}.tar.zst"


def keep(ctx: Context, name: str, error: LabError, write: Callable[[IO[bytes]], object]) -> None:
    """Keep a bundle of what failed with ``error`` and is about to be removed; it says where.

    ``write``: writes it. The latest ``KEPT`` stay in the home. A caller of a service gets it from
    there, as the host's files are somebody else's. If it cannot be written, that is noted.
    """
    if isinstance(error, Interrupted) or ctx.home.full:
        return
    directory, job = ctx.home.bundles, ctx.origin.job
    stamp = time.strftime("%Y%m%dT%H%M%SZ", time.gmtime())
    path = of_job(ctx, job) if job else directory / f"{name}-{stamp}.tar.zst"
    try:
        directory.mkdir(mode=0o700, exist_ok=True)
        with replaced(path) as draft, draft.open("wb") as file:
            write(file)
    except Interrupted:
        return
    except Exception as failed:  # noqa: BLE001  whatever it is: the failure itself is to be seen
        ctx.progress.note("bundle", f"no bundle was kept: {failed}")
        return
    _prune(directory)
    error.details += (f"bundle: GET /v1/jobs/{job}/bundle" if job else f"bundle: {path}",)


def _prune(directory: Path) -> None:
    """Remove all but the latest; others may do the same."""
    found = []
    for path in directory.glob("*.tar.zst"):
        with suppress(OSError):
            found.append((path.stat().st_mtime, path))
    for _, path in sorted(found)[:-KEPT]:
        with suppress(OSError):
            path.unlink()


def _clean(redactor: Redactor, path: str, text: str) -> str:
    name = path.rpartition("-")[2]
    if name in questions.STATEMENTS:
        return redactor.statement(text)
    if name in questions.STATUS:
        return redactor.status(text)
    return redactor.log(text) if name in questions.LOGS else redactor.text(text)


def _node(ctx: Context, node: Witness, rounds: int, deadline: Deadline) -> Found:
    seen, guest = Found(), node.guest

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
    if node.silent:
        seen.missing.append(("guest", node.silent))
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
        part(f"round {number + 1}", partial(_round, ctx, channel, node, seen, number, deadline))
    return seen


def _logs(
    ctx: Context, channel: GuestChannel, node: Witness, seen: Found, deadline: Deadline
) -> None:
    commands = questions.logs(engine_units(ctx, node.image))
    if not node.server:
        del commands["error.log"]
    seen.files |= _asked(ctx, channel, commands, deadline)


def _round(
    ctx: Context, channel: GuestChannel, node: Witness, seen: Found, number: int, deadline: Deadline
) -> None:
    stamp = time.strftime("%Y_%m_%d_%H_%M_%S", time.gmtime())
    answers = _asked(ctx, channel, questions.commands(number, server=node.server), deadline)
    seen.files |= {f"{stamp}-{name}": text for name, text in answers.items()}


def _asked(
    ctx: Context, channel: GuestChannel, commands: Mapping[str, str], deadline: Deadline
) -> dict[str, str]:
    if deadline.passed:
        raise NotReady("not asked: the time for all nodes was over")
    mark = secrets.token_hex(16)
    script = questions.script(commands, mark).encode()
    limit = min(_CALL, max(1.0, deadline.left))
    answer = channel.run(
        ["/bin/sh", "-s"], stdin=script, timeout=limit, halt=ctx.progress.halt, most=_ANSWER
    )
    return questions.parts(answer.decode(errors="replace"), mark, commands)


def _pause(ctx: Context, deadline: Deadline) -> None:
    until = time.monotonic() + min(questions.APART, deadline.left)
    while time.monotonic() < until:
        ctx.progress.halt()
        time.sleep(0.1)


def _console(ctx: Context, node: Witness) -> str:
    with ctx.home.console_log(node.guest).open("rb") as file:
        file.seek(max(0, file.seek(0, os.SEEK_END) - _CONSOLE))
        return file.read().decode(errors="replace")


def _manifest(
    ctx: Context,
    subject: Subject,
    why: str,
    at: float,
) -> dict[str, Any]:
    capabilities, memory = ctx.hypervisor.capabilities(), host.memory()
    return {
        "format": 1,
        "at": at,
        "why": why,
        "lab": dict(subject.facts),
        "nodes": [
            {"name": one.name, "role": one.role, "state": one.state, "why": one.why,
             "engine": one.engine}
            for one in subject.nodes
        ],
        "versions": {
            "lab": version(), "hypervisor": capabilities.name,
            "accelerator": capabilities.accelerator, **capabilities.facts,
            "processors": str(host.processors()), "load": f"{os.getloadavg()[0]:.2f}",
            "memory": f"{format_size(memory.available)} of {format_size(memory.total)} available",
        },
    }  # fmt: skip
