"""``lab image export|import``, and the same of templates, snapshots and datasets."""

from __future__ import annotations

from contextlib import AbstractContextManager
from typing import TYPE_CHECKING, Annotated

import typer

from lab.cli import complete, flags
from lab.cli.app import app_of, pick
from lab.cli.manual import manual
from lab.cli.terminal.output import emit, parse_format
from lab.cli.terminal.show import lab_text
from lab.cli.verbs import dataset, image, template
from lab.cli.verbs.snapshot import Label
from lab.errors import InvalidSpec
from lab.names import check_lab_name
from lab.requests.archives import (
    Destination,
    ExportArchive,
    ImportArchive,
    ImportOptions,
    ImportSnapshot,
)

if TYPE_CHECKING:
    from lab.cli.app import App
    from lab.cli.backend.session import Session
    from lab.names import ByKey
    from lab.views.archives import ExportView, ImportView

Where = Annotated[
    str, typer.Argument(metavar="FILE", show_default=False, help="A file, or - for stdout.")
]
From = Annotated[
    str,
    typer.Argument(metavar="FILE", show_default=False, help="A file, or - for stdin."),
]
Key = Annotated[
    str,
    typer.Argument(
        metavar="KEY",
        show_default=False,
        autocompletion=complete.templates,
        help="A key, as in `lab template ls`.",
    ),
]
To = Annotated[
    str,
    typer.Option(
        "--to",
        metavar="HOST",
        show_default=False,
        help="Copy to another host over SSH ([USER@]HOST). Resumes an interrupted transfer.",
    ),
]
RemoteLab = Annotated[
    str,
    typer.Option(
        "--remote-lab", metavar="COMMAND", help="With --to: the lab program of that host."
    ),
]
Resume = Annotated[bool, typer.Option("--resume", help="Resume an interrupted export to the file.")]
ResumeImport = Annotated[
    bool,
    typer.Option("--resume", help="Resume an interrupted import; keep partial data for a day."),
]
Native = Annotated[
    bool,
    typer.Option("--native", help="Disks as native streams, for hosts with the same storage."),
]
NoImage = Annotated[bool, typer.Option("--no-image", help="Leave out the image that it needs.")]
Cold = Annotated[bool, typer.Option("--cold", help="Disks only, without RAM.")]
WarmOnly = Annotated[
    bool, typer.Option("--warm-only", help="Fail if its RAM cannot be restored here.")
]
NoRam = Annotated[
    bool,
    typer.Option("--no-ram", help="Leave out its RAM, which QEMU would load as it is; labs boot."),
]
Talk = Annotated[bool, typer.Option("--talk", hidden=True)]

_DOING = "keeping the partial file for --resume"
_ARRIVED = "removing what arrived"
_ON_THE_HOST = "archives of snapshots are written and read by the host of the labs"
_DATASETS = "archives of datasets are written and read by the host of the labs"
_OVER_SSH = "hosts send each other archives over SSH"


@manual(
    "lab image export mariadb mariadb.lab",
    "lab image export mariadb --to admin@db2",
    "lab image export mariadb - | ssh db2 lab image import -",
)
def export_image(
    ctx: typer.Context,
    which: image.Which,
    where: Where = "",
    *,
    to: To = "",
    remote_lab: RemoteLab = "lab",
    resume: Resume = False,
    native: Native = False,
) -> None:
    """Write an image to a file or a pipe, or to another host."""
    app = app_of(ctx)
    destination = _destination(where, to, remote_lab, resume=resume, native=native)
    _export(app, "image", which, destination)


@manual("lab image import mariadb.lab", "ssh db1 lab image export mariadb - | lab image import -")
def import_image(
    ctx: typer.Context,
    where: From,
    *,
    resume: ResumeImport = False,
    talk: Talk = False,
    output: flags.Output = "table",
) -> None:
    """Import an exported image; it is verified first."""
    app = app_of(ctx)
    how = parse_format(output)
    asked = ImportArchive(kind="image", where=where, how=ImportOptions(resume), talk=talk)
    with _importing(app, asked) as session:
        done = session.run(asked)
        if talk:
            return
        view = session.image(done.key)
    _tell_import(app, done)
    emit(view, how, table=lambda: image.shown(view, app.now()), names=lambda: [view.key])


@manual(
    "lab template export 3f9a0c1d2e4b pxc.lab",
    "lab template export 3f9a --to db2",
    "lab template export 3f9a - --no-image | ssh db2 lab template import -",
)
def export_template(
    ctx: typer.Context,
    key: Key,
    where: Where = "",
    *,
    to: To = "",
    remote_lab: RemoteLab = "lab",
    resume: Resume = False,
    native: Native = False,
    no_image: NoImage = False,
    cold: Cold = False,
) -> None:
    """Write a template to a file or a pipe, or to another host.

    The image that it needs is included.
    """
    app = app_of(ctx)
    destination = _destination(where, to, remote_lab, resume=resume, native=native)
    _export(app, "template", key, destination, image=not no_image, ram=not cold)


@manual(
    "lab template import pxc.lab",
    "lab template import pxc.lab --warm-only",
    "lab template import pxc.lab --no-ram",
)
def import_template(
    ctx: typer.Context,
    where: From,
    *,
    resume: ResumeImport = False,
    warm_only: WarmOnly = False,
    no_ram: NoRam = False,
    talk: Talk = False,
    output: flags.Output = "table",
) -> None:
    """Import an exported template; it is verified first.

    If its RAM cannot be restored by this host's hypervisor, only its disks are imported: labs boot.
    """
    app = app_of(ctx)
    how = parse_format(output)
    options = _options(resume=resume, warm_only=warm_only, no_ram=no_ram)
    asked = ImportArchive(kind="template", where=where, how=options, talk=talk)
    with _importing(app, asked) as session:
        done = session.run(asked)
        if talk:
            return
        (view,) = [found for found in session.templates() if found.key == done.key]
    _tell_import(app, done)
    emit(view, how, table=lambda: template.shown([view], app.now()), names=lambda: [view.key])


@manual(
    "lab snapshot export shop loaded shop.lab",
    "lab snapshot export shop loaded --to db2",
    "lab snapshot export shop loaded - | ssh db2 lab snapshot import -",
)
def export_snapshot(
    ctx: typer.Context,
    name: flags.Lab,
    label: Label,
    where: Where = "",
    *,
    to: To = "",
    remote_lab: RemoteLab = "lab",
    resume: Resume = False,
    native: Native = False,
    no_image: NoImage = False,
    cold: Cold = False,
) -> None:
    """Write a snapshot to a file or a pipe, or to another host.

    The archive is complete in itself: RAM, disks, and the image that they need. With --to the other
    host makes a lab of it.
    """
    app = app_of(ctx)
    destination = _destination(where, to, remote_lab, resume=resume, native=native)
    with app.open_here(_ON_THE_HOST, doing=_DOING) as host:
        asked = ExportArchive(
            kind="snapshot",
            lab=pick(host, name),
            which=label,
            to=destination,
            image=not no_image,
            ram=not cold,
        )
        view = host.run(asked)
    _tell(app, view)


@manual(
    "lab snapshot import shop.lab",
    "lab snapshot import shop.lab copy --ttl 2h",
    "lab snapshot import shop.lab --warm-only",
)
def import_snapshot(
    ctx: typer.Context,
    where: From,
    name: Annotated[
        str,
        typer.Argument(
            metavar="[NAME]",
            show_default=False,
            help="The lab. Default: the name of the exported lab, numbered if it is taken.",
        ),
    ] = "",
    *,
    resume: ResumeImport = False,
    warm_only: WarmOnly = False,
    no_ram: NoRam = False,
    ttl: flags.Ttl = "",
    keep_sessions: flags.KeepSessions = False,
    timeout: flags.ReadyTimeout = "",
    talk: Talk = False,
    output: flags.Output = "table",
) -> None:
    """Create a lab from an exported snapshot.

    The archive is verified first. The lab has the data, the nodes and the sizes of the exported
    one, and its own ports and password. It boots if the RAM cannot be restored by this host's
    hypervisor.
    """
    app = app_of(ctx)
    how = parse_format(output)
    settings = app.settings()
    lease = flags.lease("--ttl", ttl) if ttl else settings.default_ttl
    limit = flags.timeout(timeout, settings.ready_timeout)
    options = _options(resume=resume, warm_only=warm_only, no_ram=no_ram)
    if name:
        check_lab_name(name)
    asked = ImportSnapshot(
        where=where, how=options, talk=talk, name=name, ttl=lease, keep_sessions=keep_sessions
    )
    with app.open_here(_ON_THE_HOST, doing=_ARRIVED) as host:
        view = host.run(asked, timeout=limit)
    if not talk:
        emit(view, how, table=lambda: lab_text(view, app.now()), names=lambda: [view.name])


@manual(
    "lab dataset export shop shop.lab",
    "lab dataset export shop@2 --to admin@db2",
    "lab dataset export shop - | ssh db2 lab dataset import -",
)
def export_dataset(
    ctx: typer.Context,
    which: dataset.Which,
    where: Where = "",
    *,
    to: To = "",
    remote_lab: RemoteLab = "lab",
    resume: Resume = False,
    native: Native = False,
) -> None:
    """Write a version to a file or a pipe, or to another host.

    The archive is complete in itself. It has neither the source nor the masking rules and their
    secret.
    """
    app = app_of(ctx)
    destination = _destination(where, to, remote_lab, resume=resume, native=native)
    with app.open_here(_DATASETS, doing=_DOING) as host:
        view = host.run(ExportArchive(kind="dataset", which=which, to=destination))
    _tell(app, view)


@manual("lab dataset import shop.lab", "lab dataset import shop.lab --name crm")
def import_dataset(
    ctx: typer.Context,
    where: From,
    *,
    name: Annotated[
        str,
        typer.Option(
            "--name",
            metavar="NAME",
            show_default=False,
            help="The dataset. Default: as it was called where it was exported.",
        ),
    ] = "",
    resume: ResumeImport = False,
    talk: Talk = False,
    output: flags.Output = "table",
) -> None:
    """Import an exported version of a dataset; it is verified first. It keeps its number."""
    app = app_of(ctx)
    how = parse_format(output)
    options = ImportOptions(resume, name=name)
    with app.open_here(_DATASETS, doing=_ARRIVED) as host:
        done = host.run(ImportArchive(kind="dataset", where=where, how=options, talk=talk))
        if talk:
            return
        view = host.dataset(done.key)
    emit(view, how, table=lambda: dataset.shown(view, app.now()), names=lambda: [view.at])


def _destination(
    where: str, to: str, remote_lab: str, *, resume: bool, native: bool
) -> Destination:
    if bool(where) == bool(to):
        raise InvalidSpec("no target is given", hint="give a FILE, - for stdout, or --to HOST")
    if to and (resume or native):
        flag = "--resume" if resume else "--native"
        raise InvalidSpec(
            f"{flag} cannot be combined with --to",
            hint="transfers over SSH always resume, and choose the format themselves",
        )
    if where == "-" and resume:
        raise InvalidSpec("cannot resume a transfer to a pipe", hint="use a file, or --to HOST")
    return Destination(where, to, remote_lab, resume, native)


def _options(*, resume: bool, warm_only: bool, no_ram: bool) -> ImportOptions:
    if warm_only and no_ram:
        raise InvalidSpec("--no-ram cannot be combined with --warm-only, which requires the RAM")
    return ImportOptions(resume, warm_only, ram=not no_ram)


def _export(
    app: App, kind: ByKey, which: str, to: Destination, *, image: bool = True, ram: bool = True
) -> None:
    """Export what a service has as well."""
    opened = app.open_here(_OVER_SSH, doing=_DOING) if to.host else app.open(doing=_DOING)
    with opened as session:
        view = session.run(ExportArchive(kind=kind, which=which, to=to, image=image, ram=ram))
    _tell(app, view)


def _importing(app: App, asked: ImportArchive) -> AbstractContextManager[Session]:
    """Where an archive is imported that a service takes as well."""
    if asked.talk:  # as the other end of an export to this host
        return app.open_here(_OVER_SSH, doing=_ARRIVED)
    return app.open(doing=_ARRIVED)


def _tell(app: App, view: ExportView) -> None:
    from lab.units import format_size

    what = f"{view.kind} {view.key}"
    made = f", and created the lab {view.lab} from it" if view.lab else ""
    size = f"{format_size(view.size)} in {view.seconds:.1f} s"
    if view.outcome == "exists":
        app.say(f"{view.to} already has the {what}{made}")
    elif view.outcome == "imported":
        app.say(f"{view.to} imported the {what}{made}: {size}")
    elif view.to != "-":
        app.say(f"exported the {what} to {view.to}: {size}")


def _tell_import(app: App, view: ImportView) -> None:
    what = f"{view.kind} {view.key}"
    app.say(f"the {what} exists already" if view.outcome == "exists" else f"imported the {what}")
