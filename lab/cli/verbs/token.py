"""``lab token``."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping
from dataclasses import field
from typing import TYPE_CHECKING, Annotated, Any, cast

import typer

from lab.cli import flags
from lab.cli.app import app_of
from lab.cli.manual import manual
from lab.cli.terminal.output import emit, parse_format
from lab.cli.terminal.table import table
from lab.units import format_duration, format_size
from lab.values import dataclass
from lab.views.tokens import TokenView

if TYPE_CHECKING:
    from lab.state.service import Scope


@dataclass(frozen=True)
class ListedToken(TokenView):
    """A token with its state."""

    state: str = ""
    """valid, expired or revoked"""


@dataclass(frozen=True)
class NewTokenView(ListedToken):
    """A new token, with its text."""

    token: str = field(default="", repr=False)


_SHOWN: Mapping[str, Callable[[Any], str]] = {
    "memory": format_size,
    "disk": format_size,
    "ttl": format_duration,
}


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
    asleep_after: Annotated[
        str,
        typer.Option(
            "--asleep-after",
            metavar="TIME",
            show_default=False,
            help="Pause its labs after this time without use, or never; default: the service's.",
        ),
    ] = "",
    output: flags.Output = "table",
) -> None:
    """Create a token for the service and print it once."""
    from lab.requests.tokens import CreateToken

    app = app_of(ctx)
    how = parse_format(output)
    asked = CreateToken(
        name=name,
        project=project,
        scope=cast("Scope", scope),
        ttl=flags.duration("--ttl", ttl) if ttl else None,
        max_labs=flags.whole("--max-labs", max_labs) if max_labs else None,
        max_nodes=flags.whole("--max-nodes", max_nodes) if max_nodes else None,
        max_memory=flags.size("--max-memory", max_memory) if max_memory else None,
        max_ttl=flags.duration("--max-ttl", max_ttl) if max_ttl else None,
        asleep_after=flags.asleep_after(asleep_after),
        max_cpus=flags.whole("--max-cpus", max_cpus) if max_cpus else None,
        max_disk=flags.size("--max-disk", max_disk) if max_disk else None,
        max_snapshots=flags.whole("--max-snapshots", max_snapshots) if max_snapshots else None,
        max_templates=flags.whole("--max-templates", max_templates) if max_templates else None,
    )
    with app.tokens() as found:
        made = found.create(asked)
    view = NewTokenView(**vars(made.token), state=_state(made.token), token=made.text)
    emit(view, how, table=lambda: f"{made.text}\n", names=lambda: [made.text])


@manual("lab token ls", "lab token ls -o json")
def ls(ctx: typer.Context, output: flags.Output = "table") -> None:
    """List tokens, their last use, and what is used of quotas.

    Secrets are not shown. Without the scope admin: your own.
    """
    app = app_of(ctx)
    how = parse_format(output)
    with app.tokens() as tokens:
        found = [ListedToken(**vars(one), state=_state(one)) for one in tokens.all()]
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


def _state(token: TokenView) -> str:
    from lab.lifecycle.service.token import valid

    return "valid" if valid(token) else "revoked" if token.revoked_at else "expired"


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
    for name, limit in vars(one).items():
        if name.startswith("max_") and limit is not None:
            what = name.removeprefix("max_")
            text = _SHOWN.get(what, str)
            if what == "ttl":
                yield f"ttl {text(limit)}"
            else:
                has = "unknown" if one.used is None else text(getattr(one.used, what))
                yield f"{what} {has} of {text(limit)}"
