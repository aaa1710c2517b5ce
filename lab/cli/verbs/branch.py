"""``lab branch``."""

from __future__ import annotations

from typing import Annotated

import typer

from lab.cli import flags
from lab.cli.app import REMOVING, app_of, pick
from lab.cli.complete import snapshots
from lab.cli.manual import manual
from lab.cli.terminal.output import emit, parse_format
from lab.cli.terminal.show import lab_text, labs_text
from lab.names import check_lab_name


@manual(
    "lab branch shop",
    "lab branch shop shop-try --ttl 2h",
    "lab branch shop test --at before-upgrade --count 3",
    "lab branch shop replica --identity new",
)
def branch(
    ctx: typer.Context,
    name: flags.Lab,
    new: Annotated[
        str,
        typer.Argument(
            metavar="[NAME]",
            show_default=False,
            help="The branch; numbered with --count. Default: the lab's name, numbered.",
        ),
    ] = "",
    *,
    at: Annotated[
        str,
        typer.Option(
            "--at",
            metavar="LABEL",
            show_default=False,
            autocompletion=snapshots,
            help="A snapshot, or the newest of that name. Default: the lab as it is now.",
        ),
    ] = "",
    count: Annotated[
        str, typer.Option("--count", metavar="N", help="How many labs to create, 1 to 50.")
    ] = "1",
    ttl: flags.Ttl = "",
    keep_sessions: flags.KeepSessions = False,
    identity: flags.WhoseIdentity = "shared",
    timeout: flags.ReadyTimeout = "",
    output: flags.Output = "table",
) -> None:
    """Create labs that are clones of a lab, as it is or was.

    A branch has the data, the nodes and the sizes of the lab, and its own ports and password.
    """
    from lab.requests.labs import BranchLab

    app = app_of(ctx)
    how = parse_format(output)
    number = flags.whole("--count", count)
    settings = app.settings()
    lease = flags.lease("--ttl", ttl) if ttl else settings.default_ttl
    limit = flags.timeout(timeout, settings.ready_timeout)
    if new:
        check_lab_name(new)
    with app.open(doing=REMOVING) as session:
        asked = BranchLab(
            lab=pick(session, name),
            name=new,
            at=at,
            count=number,
            ttl=lease,
            keep_sessions=keep_sessions,
            identity=flags.identity(identity),
        )
        views = session.run(asked, timeout=limit)
    now = app.now()
    emit(
        views,
        how,
        table=lambda: lab_text(views[0], now) if len(views) == 1 else labs_text(views, now),
        names=lambda: [view.name for view in views],
    )
