"""``lab token``."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass, field, fields
from typing import TYPE_CHECKING, Annotated, cast

import typer

from lab.cli import flags
from lab.cli.app import app_of
from lab.cli.manual import manual
from lab.cli.terminal.output import emit, parse_format
from lab.cli.terminal.table import table
from lab.units import format_duration, format_size

if TYPE_CHECKING:
    from lab.lifecycle.service.token import Used
    from lab.state.service import Scope, TokenRecord


@dataclass(frozen=True)
class TokenView:
    """A token as it is shown: without its hash. ``state``: valid, expired, revoked."""

    id: str
    name: str
    scope: str
    project: str
    state: str
    created_at: float
    expires_at: float | None
    max_labs: int | None
    max_nodes: int | None
    max_memory: int | None
    max_cpus: int | None
    max_disk: int | None
    max_snapshots: int | None
    max_templates: int | None
    max_ttl: float | None
    last_used_at: float | None


@dataclass(frozen=True)
class ListedToken(TokenView):
    """A token in a list. ``used``: what its project has, counted as quotas count it."""

    used: Used | None


@dataclass(frozen=True)
class NewTokenView(TokenView):
    """A new token, with its text."""

    token: str = field(repr=False)


def _number(flag: str, what: str) -> object:
    return typer.Option(flag, metavar="N", show_default=False, help=what)


@manual(
    "lab token create ci --project shop",
    "lab token create nightly --project shop --scope use --ttl 30d --max-labs 4 --max-ttl 2h",
)
def create(
    ctx: typer.Context,
    name: Annotated[
        str, typer.Argument(metavar="NAME", show_default=False, help="Name of the token.")
    ],
    *,
    project: Annotated[
        str, typer.Option("--project", metavar="PROJECT", help="Project whose labs it can access.")
    ] = "default",
    scope: Annotated[
        str, typer.Option("--scope", metavar="SCOPE", help="read, use, or admin (all projects).")
    ] = "use",
    ttl: Annotated[
        str,
        typer.Option(
            "--ttl", metavar="TIME", show_default=False, help="Lifetime; default: unlimited."
        ),
    ] = "",
    max_labs: Annotated[str, _number("--max-labs", "Limit for the project: labs.")] = "",
    max_nodes: Annotated[str, _number("--max-nodes", "Limit for the project: nodes.")] = "",
    max_memory: Annotated[
        str,
        typer.Option(
            "--max-memory",
            metavar="SIZE",
            show_default=False,
            help="Limit for the project: memory.",
        ),
    ] = "",
    max_cpus: Annotated[str, _number("--max-cpus", "Limit for the project: processors.")] = "",
    max_disk: Annotated[
        str,
        typer.Option(
            "--max-disk",
            metavar="SIZE",
            show_default=False,
            help="Limit for the project: disk space, with snapshots.",
        ),
    ] = "",
    max_snapshots: Annotated[
        str, _number("--max-snapshots", "Limit for the project: snapshots.")
    ] = "",
    max_templates: Annotated[
        str, _number("--max-templates", "Limit for the project: templates.")
    ] = "",
    max_ttl: Annotated[
        str,
        typer.Option("--max-ttl", metavar="TIME", show_default=False, help="The longest lease."),
    ] = "",
    output: flags.Output = "table",
) -> None:
    """Create a token for the service and print it once."""
    from lab.lifecycle.service.token import Quota

    app = app_of(ctx)
    how = parse_format(output)
    quota = Quota(
        labs=flags.whole("--max-labs", max_labs) if max_labs else None,
        nodes=flags.whole("--max-nodes", max_nodes) if max_nodes else None,
        memory=flags.size("--max-memory", max_memory) if max_memory else None,
        ttl=flags.duration("--max-ttl", max_ttl) if max_ttl else None,
        cpus=flags.whole("--max-cpus", max_cpus) if max_cpus else None,
        disk=flags.size("--max-disk", max_disk) if max_disk else None,
        snapshots=flags.whole("--max-snapshots", max_snapshots) if max_snapshots else None,
        templates=flags.whole("--max-templates", max_templates) if max_templates else None,
    )
    lasts = flags.duration("--ttl", ttl) if ttl else None
    with app.tokens() as found:
        created = found.create(
            name, scope=cast("Scope", scope), project=project, ttl=lasts, quota=quota
        )
    view = NewTokenView(**vars(_view(created.record)), token=created.text)
    emit(view, how, table=lambda: f"{created.text}\n", names=lambda: [created.text])


@manual("lab token ls", "lab token ls -o json")
def ls(ctx: typer.Context, output: flags.Output = "table") -> None:
    """List tokens, their last use, and what is used of quotas.

    Secrets are not shown. Without the scope admin: your own.
    """
    app = app_of(ctx)
    how = parse_format(output)
    with app.tokens() as tokens:
        found = [ListedToken(**vars(_view(record)), used=used) for record, used in tokens.listed()]
    emit(
        found,
        how,
        table=lambda: _table(found, app.now()),
        names=lambda: [view.name for view in found],
    )


@manual("lab token revoke ci")
def revoke(
    ctx: typer.Context,
    name: Annotated[
        str, typer.Argument(metavar="TOKEN", show_default=False, help="Its name or id.")
    ],
) -> None:
    """Revoke a token immediately."""
    app = app_of(ctx)
    with app.tokens() as tokens:
        record = tokens.revoke(name)
    app.say(f"revoked {record.name} ({record.id})")


def _view(record: TokenRecord) -> TokenView:
    from lab.lifecycle.service.token import valid

    state = "valid" if valid(record) else "revoked" if record.revoked_at else "expired"
    known = {k: v for k, v in vars(record).items() if k in TokenView.__dataclass_fields__}
    return TokenView(**known, state=state)


def _table(found: list[ListedToken], now: float) -> str:
    rows = []
    for one in found:
        left = "" if one.expires_at is None else format_duration(max(0.0, one.expires_at - now))
        last = "never"
        if one.last_used_at is not None:
            last = f"{format_duration(max(0.0, now - one.last_used_at))} ago"
        quota = ", ".join(_quota(one))
        rows.append((one.id, one.name, one.scope, one.project, one.state, left, last, quota))
    return table(("ID", "NAME", "SCOPE", "PROJECT", "STATE", "LEFT", "LAST USE", "QUOTA"), rows)


def _quota(one: ListedToken) -> Iterator[str]:
    """Each limit of a token, with what its project has of it."""
    from lab.lifecycle.service.token import Quota

    for field_ in fields(Quota):
        limit = getattr(one, f"max_{field_.name}")
        if limit is None:
            continue
        if field_.name == "ttl":
            yield f"ttl {format_duration(limit)}"
            continue
        has = "unknown" if one.used is None else getattr(one.used, field_.name)
        if field_.name in ("memory", "disk"):
            has = has if isinstance(has, str) else format_size(has)
            limit = format_size(limit)
        yield f"{field_.name} {has} of {limit}"
