"""``lab up``."""

from __future__ import annotations

from typing import Annotated

import typer

from lab.cli import flags
from lab.cli.app import REMOVING, app_of
from lab.cli.manual import manual
from lab.cli.terminal.output import emit, parse_format


@manual(
    "lab up pxc --nodes 3",
    "lab up galera --name shop --memory 1G --ttl 2h",
    "lab up                        # what ./lab.toml describes",
    "lab up pxc -o json | jq -r .dsn",
)
def up(
    ctx: typer.Context,
    *,
    blueprint: flags.Blueprint = "",
    nodes: flags.Nodes = "",
    memory: flags.Memory = "",
    cpus: flags.Cpus = "",
    disk: flags.Disk = "",
    engine: flags.Engine = "",
    image: flags.Image = "",
    name: flags.LabName = "",
    ttl: flags.Ttl = "",
    profile: flags.Profile = "",
    snapshots: flags.Snapshots = "",
    cold: flags.Cold = False,
    keep_failed: flags.KeepFailed = False,
    exist_ok: Annotated[
        bool, typer.Option("--exist-ok", help="Succeed if a matching lab already exists.")
    ] = False,
    dry_run: Annotated[
        bool, typer.Option("--dry-run", help="Show what would be created, and from what.")
    ] = False,
    timeout: flags.ReadyTimeout = "",
    output: flags.Output = "table",
) -> None:
    """Make a lab: a ready cluster.

    Labs are clones of a template. The first `lab up` builds the template, which takes minutes.
    """
    from lab.cli.terminal.show import lab_text, preview_text

    app = app_of(ctx)
    how = parse_format(output)
    spec = flags.wanted(
        app.settings(),
        blueprint=blueprint,
        nodes=nodes,
        memory=memory,
        cpus=cpus,
        disk=disk,
        engine=engine,
        image=image,
        name=name,
        ttl=ttl,
        profile=profile,
        snapshots=snapshots,
    )
    limit = flags.duration("--timeout", timeout) if timeout else None
    if dry_run:
        with app.open() as session:
            found = session.preview(spec, cold=cold)
        emit(found, how, table=lambda: preview_text(found), names=lambda: [found.name])
        return
    with app.open(doing=REMOVING) as session:
        view = session.up(
            spec, cold=cold, keep_failed=keep_failed, exist_ok=exist_ok, timeout=limit
        )
    emit(view, how, table=lambda: lab_text(view, app.now()), names=lambda: [view.name])
