"""``lab serve``."""

from __future__ import annotations

from dataclasses import replace
from typing import TYPE_CHECKING, Annotated

import typer

from lab.cli import flags
from lab.cli.app import app_of
from lab.cli.manual import manual
from lab.config import servefile
from lab.distribution import extra
from lab.errors import InvalidSpec

if TYPE_CHECKING:
    from lab.lifecycle.service.token import NewToken


@manual(
    "lab serve",
    "lab serve --port 8443",
    "lab serve --database postgresql://lab@db.example/lab --host-name h1",
)
def serve(
    ctx: typer.Context,
    *,
    address: Annotated[
        str,
        typer.Option(
            "--address", metavar="ADDRESS", show_default=False, help="Default: 127.0.0.1."
        ),
    ] = "",
    port: Annotated[
        str,
        typer.Option("--port", metavar="PORT", show_default=False, help="Default: 8080; 0: any."),
    ] = "",
    database: Annotated[
        str,
        typer.Option(
            "--database",
            metavar="URL",
            show_default=False,
            help="The PostgreSQL database of the fleet that this host belongs to.",
        ),
    ] = "",
    host_name: Annotated[
        str,
        typer.Option(
            "--host-name", metavar="NAME", show_default=False, help="The name of this host there."
        ),
    ] = "",
) -> None:
    """Serve labs over HTTP, until interrupted.

    The first start creates the administrator's token and prints it once.
    """
    app = app_of(ctx)
    settings = app.settings()
    changes: dict[str, object] = {"address": address} if address else {}
    if port:
        changes["port"] = flags.whole("--port", port)
        if not 0 <= flags.whole("--port", port) <= 65535:
            raise InvalidSpec(f"--port: {port} is not a port number")
    if database or host_name:
        changes |= servefile.fleet(
            settings.serve, database=database or None, host_name=host_name or None
        )
    settings = replace(settings, serve=replace(settings.serve, **changes))  # type: ignore[arg-type]
    with extra("serve", "the service"):
        from lab.api.server import serve as run

    def first(created: NewToken) -> None:
        typer.echo(created.text)
        app.say(f"this is the administrator's token; it is stored in {settings.home.admin_token}")

    run(settings, first=first, started=lambda url: app.say(f"serving at {url}"), quiet=app.quiet)
