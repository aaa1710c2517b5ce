"""``lab bundle``, ``lab open``."""

from __future__ import annotations

import sys
from pathlib import Path
from typing import Annotated

import typer

from lab.cli import flags
from lab.cli.app import app_of, pick
from lab.cli.manual import manual
from lab.cli.terminal.output import emit, parse_format
from lab.cli.terminal.show import lab_text
from lab.cli.verbs.on_failure import path_of, write
from lab.errors import HostUnfit, InvalidSpec, NotReady
from lab.names import check_lab_name
from lab.requests.archives import ImportOptions, OpenBundle

_ON_THE_HOST = "bundles with the lab in them are written and opened by the host of the labs"


@manual(
    "lab bundle shop",
    "lab bundle shop --with-lab -o shop.tar.zst",
    "lab bundle shop -o - | ssh db1 tar --zstd -xf -",
)
def bundle(
    ctx: typer.Context,
    *,
    name: flags.Name = "",
    to: Annotated[
        str,
        typer.Option(
            "--file",
            "-o",
            metavar="FILE",
            show_default=False,
            help="Where it is written; `-`: stdout. Default: LAB-TIME.tar.zst.",
        ),
    ] = "",
    with_lab: Annotated[
        bool,
        typer.Option(
            "--with-lab", help="With the lab itself, disks and RAM, for `lab open`: all its data."
        ),
    ] = False,
    yes: Annotated[bool, typer.Option("--yes", "-y", help="Do not ask.")] = False,
) -> None:
    """Write the evidence of a lab to a file: logs, consoles, states.

    Of each node: its servers' logs and journal, console, QEMU's log and definition of the guest,
    and what pt-stalk collects, under its names, in two rounds; a page with a timeline of all nodes.
    Passwords, keys, tokens and the literals of statements are removed. Nothing is changed, and a
    lab that is asleep is not woken.

    With --with-lab a snapshot of the lab is taken first, and removed afterwards; a lab that is
    asleep is woken for it. Nothing of that is removed: the RAM and the disks have all data, keys
    and password hashes.
    """
    app = app_of(ctx)
    if to == "-" and sys.stdout.isatty():
        raise InvalidSpec(
            "a bundle cannot be written to a terminal", hint="name a file, or redirect the output"
        )
    if with_lab:
        _agree(yes=yes)
    opened = app.open_here(_ON_THE_HOST) if with_lab else app.open()
    with opened as session:
        lab = pick(session, name)
        if to != "-":
            path = Path(to) if to else path_of(lab, Path())
            write(session, lab, path, with_lab=with_lab, say=_line)
            return
        if lacking := session.bundle(lab, sys.stdout.buffer, with_lab=with_lab):
            raise HostUnfit(f"the bundle was written without the lab: {lacking}")


@manual(
    "lab open shop-20261126T101500Z.tar.zst",
    "lab open shop.tar.zst look --ttl 2h",
    "lab open shop.tar.zst --no-ram",
)
def open_file(
    ctx: typer.Context,
    where: Annotated[
        str,
        typer.Argument(
            metavar="FILE", show_default=False, help="A bundle with a lab in it, or - for stdin."
        ),
    ],
    name: Annotated[
        str,
        typer.Argument(
            metavar="[NAME]",
            show_default=False,
            help="The lab. Default: the name that it had, numbered if it is taken.",
        ),
    ] = "",
    *,
    no_ram: Annotated[
        bool,
        typer.Option("--no-ram", help="Leave out its RAM, which QEMU would load as it is."),
    ] = False,
    ttl: flags.Ttl = "",
    keep_sessions: flags.KeepSessions = False,
    timeout: flags.ReadyTimeout = "",
    output: flags.Output = "table",
) -> int:
    """Create a lab from a bundle with a lab in it.

    It continues from the moment of the bundle if its RAM can be restored by this host's hypervisor,
    else its disks boot. A lab that does not get ready, such as one that had failed, is kept in the
    state `failed`, with the exit code 7: its nodes can be reached with `lab exec`, `lab ssh` and
    `lab console`.
    """
    app = app_of(ctx)
    how = parse_format(output)
    settings = app.settings()
    lease = flags.lease("--ttl", ttl) if ttl else settings.default_ttl
    limit = flags.timeout(timeout, settings.ready_timeout)
    if name:
        check_lab_name(name)
    asked = OpenBundle(
        where=where,
        how=ImportOptions(ram=not no_ram),
        name=name,
        ttl=lease,
        keep_sessions=keep_sessions,
    )
    with app.open_here(_ON_THE_HOST, doing="removing what arrived") as host:
        view = host.run(asked, timeout=limit)
    emit(view, how, table=lambda: lab_text(view, app.now()), names=lambda: [view.name])
    return 0 if view.state == "ready" else NotReady.exit_code


def _line(text: str) -> None:
    sys.stdout.write(f"{text}\n")


def _agree(*, yes: bool) -> None:
    if yes:
        return
    if not sys.stdin.isatty():
        raise InvalidSpec(
            "--with-lab writes all data, keys and password hashes of the lab, and stdin is not a"
            " terminal to confirm it",
            hint="add --yes",
        )
    if not typer.confirm(
        "The file will have all data, keys and password hashes of the lab. Write it?", err=True
    ):
        raise typer.Exit(1)
