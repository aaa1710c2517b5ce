"""``lab bundle``."""

from __future__ import annotations

import sys
import time
from pathlib import Path
from typing import Annotated

import typer

from lab.cli import flags
from lab.cli.app import app_of, pick
from lab.cli.manual import manual
from lab.drafts import replaced
from lab.paths import writing
from lab.units import format_size


@manual("lab bundle shop", "lab bundle shop -o - | ssh db1 tar --zstd -xf -")
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
) -> None:
    """Write the evidence of a lab to a file: logs, consoles, states.

    Of each node: its servers' logs and journal, console, QEMU's log and definition of the guest,
    and what pt-stalk collects, under its names, in two rounds; a page with a timeline of all nodes.
    Passwords, keys, tokens and the literals of statements are removed. Nothing is changed, and a
    lab that is asleep is not woken.
    """
    app = app_of(ctx)
    with app.open() as session:
        lab = pick(session, name)
        if to == "-":
            session.bundle(lab, sys.stdout.buffer)
            return
        path = Path(to or f"{lab}-{time.strftime('%Y%m%dT%H%M%SZ', time.gmtime())}.tar.zst")
        with writing(path), replaced(path) as draft, draft.open("wb") as file:
            session.bundle(lab, file)
    sys.stdout.write(f"{path}: {format_size(path.stat().st_size)}\n")
