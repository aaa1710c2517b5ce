"""``lab host ...``, ``lab gc``, ``lab doctor``, ``lab version``."""

from __future__ import annotations

from collections.abc import Sequence
from typing import TYPE_CHECKING, Annotated

import typer

from lab.cli import flags
from lab.cli.app import app_of
from lab.cli.manual import manual
from lab.cli.terminal.output import emit, parse_format
from lab.cli.terminal.table import table
from lab.errors import HostUnfit, InvalidSpec
from lab.units import format_size

if TYPE_CHECKING:
    from lab.views.host import Finding, HostView


@manual("lab host init --pool tank/lab")
def init(
    ctx: typer.Context,
    *,
    pool: Annotated[
        str, typer.Option("--pool", metavar="DATASET", help="The ZFS dataset for volumes.")
    ] = "",
    output: flags.Output = "table",
) -> int:
    """Keep the volumes of this home on ZFS from now on.

    Creates or checks the dataset and writes it to your config file. It can be repeated. If root
    privileges are missing, it prints the commands for root and exits with 5.
    """
    app = app_of(ctx)
    how = parse_format(output)
    settings = app.settings()
    wanted = pool or settings.pool
    if not wanted:
        raise InvalidSpec("no dataset is given", hint="`lab host init --pool tank/lab`")
    view = app.here().init_host(settings, wanted)
    emit(view, how, table=lambda: _host(view), names=lambda: [view.pool])
    if view.missing:
        app.say("run these commands as root, then `lab host init` again")
    return HostUnfit.exit_code if view.missing else 0


@manual(
    "lab gc",
    "lab gc --dry-run",
    "lab gc --unused --older-than 30d    # after upgrades",
    "lab gc --orphans                    # after the state database was lost",
)
def gc(
    ctx: typer.Context,
    *,
    dry_run: Annotated[
        bool, typer.Option("--dry-run", help="Only print what would be removed.")
    ] = False,
    orphans: Annotated[
        bool,
        typer.Option("--orphans", help="Also tagged resources missing from the state database."),
    ] = False,
    unused: Annotated[
        bool,
        typer.Option("--unused", help="Also unused images and templates."),
    ] = False,
    older_than: Annotated[
        str,
        typer.Option(
            metavar="TIME", show_default=False, help="With --unused: only if unused for this time."
        ),
    ] = "",
    output: flags.Output = "table",
) -> None:
    """Remove expired labs and leftovers of interrupted commands."""
    from lab.requests.host import CollectGarbage

    app = app_of(ctx)
    how = parse_format(output)
    if older_than and not unused:
        raise InvalidSpec("--older-than requires --unused", hint="lab gc --unused --older-than 30d")
    age = flags.duration("--older-than", older_than) if older_than else 0.0
    asked = CollectGarbage(dry_run=dry_run, orphans=orphans, unused=unused, age=age)
    with app.open() as session:
        app.if_interrupted("`lab gc` again removes the rest")
        report = session.run(asked)
    if how == "table" and not (report.removed or report.left or report.snapshots):
        app.say("nothing to remove")
        return
    gone = "would remove" if dry_run else "removed"
    rows = [
        *((gone, what) for what in report.removed),
        *(("snapshot", what) for what in report.snapshots),
        *(("left", what) for what in report.left),
    ]
    emit(
        report,
        how,
        table=lambda: "".join(f"{word:<{len(gone)}}  {what}\n" for word, what in rows),
        names=lambda: report.removed,
    )


@manual("lab doctor", "lab doctor -o json")
def doctor(ctx: typer.Context, output: flags.Output = "table") -> int:
    """Report the capabilities of this host, and required changes.

    It exits with 5 if a change is required.
    """
    app = app_of(ctx)
    how = parse_format(output)
    findings = app.here().doctor(app.settings())
    emit(
        findings,
        how,
        table=lambda: _findings(findings),
        names=lambda: [one.topic for one in findings if one.level == "fail"],
    )
    return HostUnfit.exit_code if any(one.level == "fail" for one in findings) else 0


@manual("lab version", "lab version -o json")
def version(_: typer.Context, output: flags.Output = "table") -> None:
    """Print the version."""
    import platform

    from lab.distribution import version as installed

    how = parse_format(output)
    ours = installed()
    emit(
        {"lab": ours, "python": platform.python_version()},
        how,
        table=lambda: f"lab {ours}\n",
        names=lambda: [ours],
    )


def _host(view: HostView) -> str:
    lines = [f"did   {line}" for line in view.done]
    if view.config:
        lines.append(f"did   write pool = {view.pool} into {view.config}")
    lines += [f"run   {line}" for line in view.missing]
    if not view.missing:
        free = f"{format_size(view.free)} of {format_size(view.total)} free"
        lines.append(f"ok    volumes are below {view.pool}: ZFS {view.version}, {free}")
    return "".join(f"{line}\n" for line in lines)


def _findings(findings: Sequence[Finding]) -> str:
    lines = table(
        ("LEVEL", "TOPIC", "FOUND"), [(one.level, one.topic, one.value) for one in findings]
    ).splitlines(keepends=True)
    text = lines[:1]
    for one, line in zip(findings, lines[1:], strict=True):
        text.append(line)
        if one.advice:
            text.append(f"       -> {one.advice}\n")
            if one.why:
                text.append(f"          ({one.why})\n")
    return "".join(text)
