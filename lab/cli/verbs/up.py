"""``lab up``."""

from __future__ import annotations

from typing import Annotated

import typer

from lab.cli import flags
from lab.cli.app import REMOVING, app_of, create
from lab.cli.manual import manual
from lab.cli.terminal.output import emit, parse_format
from lab.errors import InvalidSpec

_NEW = 5.0
"""Seconds of a lease that are over once a new lab is shown, at most."""


@manual(
    "lab up pxc --nodes 3",
    "lab up galera --name shop --memory 1G --ttl 2h",
    "lab up                        # what ./lab.toml describes",
    "lab up pxc -o json | jq -r .dsn",
    "lab up --matrix mysql:9.7,mariadb:11.8 -- make test",
    may_take_command=True,
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
    matrix: Annotated[
        str,
        typer.Option(
            "--matrix",
            metavar="ENGINE,...",
            show_default=False,
            help="Run CMD with a lab of each engine instead, and print a table of the results.",
        ),
    ] = "",
    output: flags.Output = "table",
) -> int:
    """Create a lab: a ready cluster.

    Labs are clones of a template. The first `lab up` builds the template, which takes minutes.

    With `--matrix`, CMD runs as by `lab run`, with each engine in a lab that is removed afterwards.
    """
    from lab.cli.terminal.show import lab_text, preview_text
    from lab.requests.labs import ChangeLab

    app = app_of(ctx)
    how = parse_format(output)
    if matrix:
        from lab.cli.verbs.matrix import matrix as run_matrix

        for flag, given in {
            "exist-ok": exist_ok,
            "dry-run": dry_run,
            "snapshots": snapshots,
        }.items():
            if given:
                raise InvalidSpec(f"--matrix and --{flag} exclude each other")
        return run_matrix(app, cluster, creation, matrix, how)
    if app.after_dashes is not None:
        raise InvalidSpec(
            "a command is given, and no --matrix",
            hint="`lab run` runs one with a lab, `lab up --matrix ENGINE,...` with several",
        )
    spec = flags.wanted(app.settings(), cluster, creation, snapshots)
    asked, limit = flags.creation_of(spec, creation, exist_ok=exist_ok), creation.limit
    if dry_run:
        with app.open() as session:
            found = session.preview(asked)
        emit(found, how, table=lambda: preview_text(found), names=lambda: [found.name])
        return 0
    with app.open(doing=REMOVING) as session:
        view = create(app, session, asked, limit)
        ends = view.expires_at
        if exist_ok and spec.ttl and ends is not None and ends < app.now() + spec.ttl - _NEW:
            view = session.run(ChangeLab(lab=view.name, ttl=spec.ttl))
    emit(view, how, table=lambda: lab_text(view, app.now()), names=lambda: [view.name])
    return 0
