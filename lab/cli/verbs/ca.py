"""``lab ca``."""

from __future__ import annotations

import sys
from typing import Annotated

import typer

from lab.cli.app import app_of
from lab.cli.manual import manual


@manual("lab ca > ca.pem", 'mariadb --ssl-ca="$(lab ca --path)" --ssl-verify-server-cert')
def ca(
    ctx: typer.Context,
    *,
    path: Annotated[bool, typer.Option("--path", help="Print the path of its file.")] = False,
) -> None:
    """Print the CA certificate of the database servers."""
    app = app_of(ctx)
    with app.open() as session:
        file = session.ca()
    sys.stdout.write(f"{file}\n" if path else file.read_text(encoding="utf-8"))
