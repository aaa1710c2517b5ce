"""``lab up``."""

from __future__ import annotations

from typing import Annotated

import typer

from lab.cli import flags
from lab.cli.app import REMOVING, app_of
from lab.cli.manual import manual
from lab.cli.terminal.output import emit, parse_format

_NEW = 5.0
"""Seconds of a lease that are over once a new lab is shown, at most."""


@manual(
    "lab up pxc --nodes 3",
    "lab up galera --name shop --memory 1G --ttl 2h",
    "lab up                        # what ./lab.toml describes",
    "lab up pxc -o json | jq -r .dsn",
)
@flags.expand
def up(
    ctx: typer.Context,
    *,
    cluster: flags.Cluster,
    creation: flags.Creation,
    snapshots: flags.Snapshots = "",
    exist_ok: Annotated[
        bool,
        typer.Option(
            "--exist-ok", help="Succeed if a matching lab already exists; renew its lease."
        ),
    ] = False,
    dry_run: Annotated[
        bool,
        typer.Option(
            "--dry-run", help="Show the lab that would be created, its image and template."
        ),
    ] = False,
    output: flags.Output = "table",
) -> None:
    """Create a lab: a ready cluster.

    Labs are clones of a template. The first `lab up` builds the template, which takes minutes.
    """
    from lab.cli.terminal.show import lab_text, preview_text

    app = app_of(ctx)
    how = parse_format(output)
    spec = flags.wanted(app.settings(), cluster, creation, snapshots)
    asked, limit = flags.creation_of(spec, creation, exist_ok=exist_ok), creation.limit
    if dry_run:
        with app.open() as session:
            found = session.preview(asked)
        emit(found, how, table=lambda: preview_text(found), names=lambda: [found.name])
        return
    with app.open(doing=REMOVING) as session:
        view = session.run(asked, timeout=limit)
        ends = view.expires_at
        if exist_ok and spec.ttl and ends is not None and ends < app.now() + spec.ttl - _NEW:
            view = session.extend(view.name, spec.ttl)
    emit(view, how, table=lambda: lab_text(view, app.now()), names=lambda: [view.name])
