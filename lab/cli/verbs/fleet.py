"""``lab host ls`` and other verbs about the hosts of a fleet; ``lab db migrate``."""

from __future__ import annotations

from collections.abc import Sequence
from typing import TYPE_CHECKING, Annotated

import typer

from lab.cli import flags
from lab.cli.app import app_of
from lab.cli.manual import manual
from lab.cli.terminal.output import emit, parse_format
from lab.cli.terminal.table import table
from lab.errors import InvalidSpec
from lab.units import format_duration, format_size

if TYPE_CHECKING:
    from lab.views.host import Capacity, FleetHost

_UNKNOWN = "unknown"

Name = Annotated[str, typer.Argument(metavar="HOST", show_default=False, help="The host.")]


@manual("lab host ls")
def ls(ctx: typer.Context, output: flags.Output = "table") -> None:
    """List the hosts of the fleet.

    They are shown as they were at their last heartbeat.
    """
    app, how = app_of(ctx), parse_format(output)
    with app.hosts() as hosts:
        found = hosts.all()
    emit(
        found,
        how,
        table=lambda: _table(found, app.now()),
        names=lambda: [one.name for one in found],
    )


@manual("lab host show h1")
def show(ctx: typer.Context, name: Name, output: flags.Output = "table") -> None:
    """Show a host of the fleet."""
    app, how = app_of(ctx), parse_format(output)
    with app.hosts() as hosts:
        found = hosts.get(name)
    emit(found, how, table=lambda: _one(found, app.now()), names=lambda: [found.name])


@manual("lab host drain h1")
def drain(ctx: typer.Context, name: Name) -> None:
    """Place no further labs on a host.

    Those that it has stay.
    """
    _drain(ctx, name, draining=True)


@manual("lab host undrain h1")
def undrain(ctx: typer.Context, name: Name) -> None:
    """Place labs on a host again."""
    _drain(ctx, name, draining=False)


def _drain(ctx: typer.Context, name: str, *, draining: bool) -> None:
    app = app_of(ctx)
    with app.hosts() as hosts:
        found = hosts.drain(name, draining=draining)
    app.say(f"the host {found.name} is {found.state}, and has {found.labs} labs")


@manual("lab host rm h1")
def rm(ctx: typer.Context, name: Name) -> None:
    """Forget a host.

    It is lost, or has neither labs nor jobs. If its service is started again, it joins again.
    """
    app = app_of(ctx)
    with app.hosts() as hosts:
        hosts.remove(name)
    app.say(f"the host {name} is forgotten")


@manual("lab host adopt shop@h1")
def adopt(
    ctx: typer.Context,
    lab: Annotated[
        str, typer.Argument(metavar="LAB@HOST", show_default=False, help="The foreign lab.")
    ],
) -> None:
    """Have a foreign lab hold its name again.

    It is of a host that was declared lost, and that is back. If another lab has the name by now,
    remove one of the two first: `lab down LAB@HOST`.
    """
    app = app_of(ctx)
    with app.hosts() as hosts:
        found = hosts.adopt(lab)
    app.say(f"the lab {found.name} is on the host {found.host_name}")


@manual(
    "lab db migrate --database postgresql://admin@db.example/lab",
    "lab db migrate --database postgresql://admin@db.example/lab --grant lab",
)
def migrate(
    ctx: typer.Context,
    *,
    database: Annotated[
        str,
        typer.Option(
            "--database",
            metavar="URL",
            show_default=False,
            help="The database of the fleet; default: database of [serve].",
        ),
    ] = "",
    grant: Annotated[
        str,
        typer.Option(
            "--grant",
            metavar="ROLE",
            show_default=False,
            help="The role that services use: it may then read and write rows.",
        ),
    ] = "",
) -> None:
    """Create or upgrade the tables of a fleet.

    As a role that may create tables; services need none.
    """
    app = app_of(ctx)
    url = database or app.settings().serve.database
    if not url:
        raise InvalidSpec("no database is given", hint="`lab db migrate --database URL`")
    from lab.fleet import schema
    from lab.fleet.database import migrate as run

    before = run(url, grant=grant)
    now = f"the fleet's tables have schema {schema.REVISION}"
    app.say(now if before == schema.REVISION else f"{now}, before: {before or 'none'}")


def _table(found: Sequence[FleetHost], now: float) -> str:
    head = ("HOST", "STATE", "LABS", "WAITING", "MEMORY", "LOAD", "LABELS", "HEARD")
    return table(head, [_row(one, now) for one in found])


def _row(one: FleetHost, now: float) -> tuple[str, ...]:
    return (
        one.name,
        one.state,
        _known(one.labs),
        str(one.waiting),
        _space(one.memory),
        _load(one),
        ", ".join(one.labels) or "-",
        f"{format_duration(max(0.0, now - one.heard_at))} ago",
    )


def _one(found: FleetHost, now: float) -> str:
    lines = {
        "host": f"{found.name} ({found.state})",
        "heard": f"{format_duration(max(0.0, now - found.heard_at))} ago",
        "memory": f"{_space(found.memory)} for labs" if found.memory else _UNKNOWN,
        "disk": _space(found.disk),
        "load": f"{_load(found)} processors" if found.processors else _UNKNOWN,
        "labs": f"{_known(found.labs)}, and {found.waiting} jobs wait or run",
        "labels": ", ".join(found.labels) or "-",
        "templates": _known(found.templates),
        "datasets": _datasets(found),
        "url": found.url,
        "version": found.version,
    }
    return "\n".join(f"{name:<10}{value}" for name, value in lines.items())


def _known(number: int | None) -> str:
    return _UNKNOWN if number is None else str(number)


def _load(found: FleetHost) -> str:
    if found.load is None or found.processors is None:
        return _UNKNOWN
    return f"{found.load:.1f} of {found.processors}"


def _space(found: Capacity | None) -> str:
    return f"{format_size(found.used)} of {format_size(found.total)}" if found else _UNKNOWN


def _datasets(found: FleetHost) -> str:
    if found.datasets is None:
        return _UNKNOWN if found.memory is None else "shown to administrators"
    return ", ".join(found.datasets) or "-"
