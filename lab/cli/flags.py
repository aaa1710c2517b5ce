"""The flags that several verbs share, and what they mean in the program's own types.

Values reach the verbs as text and are read here, so that a wrong one is told in our words,
whichever version of the library parses the line.
"""

from __future__ import annotations

import re
from collections.abc import Callable
from functools import partial
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, cast

import typer

from lab.cli import complete
from lab.cli.terminal.output import FORMATS
from lab.errors import InvalidSpec
from lab.spec import parse_duration, parse_size

if TYPE_CHECKING:
    from lab.config.labfile import LabValues
    from lab.config.settings import Settings
    from lab.schedule import Schedule
    from lab.spec import LabSpec

Name = Annotated[
    str,
    typer.Argument(
        metavar="NAME",
        show_default=False,
        autocompletion=complete.labs,
        help="The lab; not needed if lab.toml names one or there is only one.",
    ),
]
Node = Annotated[
    str,
    typer.Option(
        "--node",
        metavar="NODE",
        show_default=False,
        autocompletion=complete.nodes,
        help="The node, as n2 or 2.",
    ),
]
Output = Annotated[
    str,
    typer.Option(
        "-o",
        "--output",
        metavar="FORMAT",
        autocompletion=complete.formats,
        help=f"How to print: {', '.join(FORMATS)}.",
    ),
]
Timeout = Annotated[
    str,
    typer.Option(
        "--timeout", metavar="TIME", show_default=False, help="Give up after this, such as 5m."
    ),
]
ReadyTimeout = Annotated[
    str,
    typer.Option(
        "--timeout",
        metavar="TIME",
        show_default=False,
        help="How long nodes may take to get ready once they were started; default 10m.",
    ),
]
Blueprint = Annotated[
    str,
    typer.Argument(
        metavar="BLUEPRINT",
        show_default=False,
        autocompletion=complete.blueprints,
        help="How nodes become a cluster, such as pxc; default: what ./lab.toml says.",
    ),
]
Nodes = Annotated[
    str,
    typer.Option(
        "--nodes", metavar="N", show_default=False, help="1 to 9; default: 3, of single 1."
    ),
]
Memory = Annotated[
    str,
    typer.Option("--memory", metavar="SIZE", show_default=False, help="Per node; default 768M."),
]
Cpus = Annotated[
    str, typer.Option("--cpus", metavar="N", show_default=False, help="Per node; default 1.")
]
Disk = Annotated[
    str,
    typer.Option(
        "--disk", metavar="SIZE", show_default=False, help="Per node; default: the image's."
    ),
]
Engine = Annotated[
    str,
    typer.Option(
        "--engine",
        metavar="ENGINE",
        show_default=False,
        autocompletion=complete.engines,
        help="Require this engine: percona or mariadb.",
    ),
]
Image = Annotated[
    str,
    typer.Option(
        "--image",
        metavar="IMAGE",
        show_default=False,
        autocompletion=complete.images,
        help="Require this image, by key, such as one that was imported.",
    ),
]
LabName = Annotated[
    str,
    typer.Option(
        "--name", metavar="NAME", show_default=False, help="Default: made from the blueprint's."
    ),
]
Ttl = Annotated[
    str,
    typer.Option(
        "--ttl",
        metavar="TIME",
        show_default=False,
        help="The lease, such as 2h, or none; `lab gc` removes a lab when it has expired.",
    ),
]
Profile = Annotated[
    str,
    typer.Option(
        "--profile",
        metavar="PROFILE",
        show_default=False,
        autocompletion=complete.profiles,
        help="Durability profile: durable, balanced (default), disposable, or your own.",
    ),
]
Snapshots = Annotated[
    str,
    typer.Option(
        "--snapshots",
        metavar="SCHEDULE",
        show_default=False,
        help="Have `lab gc` take and rotate snapshots, such as hourly:24,daily:7.",
    ),
]
Cold = Annotated[
    bool, typer.Option("--cold", help="Cold boot: do not restore RAM from the template.")
]
KeepFailed = Annotated[
    bool, typer.Option("--keep-failed", help="Keep the guests of a failed lab, for inspection.")
]

_WHOLE = re.compile(r"[+-]?[0-9]{1,9}")


def wanted(
    settings: Settings,
    *,
    blueprint: str,
    nodes: str,
    memory: str,
    cpus: str,
    disk: str,
    engine: str,
    name: str | None = None,
    ttl: str = "",
    profile: str = "",
    snapshots: str = "",
    image: str = "",
) -> LabSpec:
    """The lab that flags and ``lab.toml`` ask for; raises InvalidSpec.

    ``name``: None if the verb has no such flag.
    """
    from lab.config import labfile

    said: list[tuple[str, str, Callable[[str], object]]] = [
        ("blueprint", blueprint, str),
        ("engine", engine, str),
        ("name", name or "", str),
        ("nodes", nodes, partial(whole, "--nodes")),
        ("cpus", cpus, partial(whole, "--cpus")),
        ("memory", memory, partial(size, "--memory")),
        ("disk", disk, partial(size, "--disk")),
        ("ttl", ttl, partial(lease, "--ttl")),
        ("snapshots", snapshots, schedule),
        ("profile", profile, str),
        ("image", image, str),
    ]
    given = cast("LabValues", {key: parse(text) for key, text, parse in said if text})
    spec = labfile.merge(labfile.read(Path.cwd()), given, default_ttl=settings.default_ttl)
    if not settings.url:  # a service has profiles of its own
        settings.profile_of(spec.profile)  # a wrong name is told before anything else
    return spec


def whole(flag: str, text: str) -> int:
    """A whole number; raises InvalidSpec."""
    if not _WHOLE.fullmatch(text):
        raise InvalidSpec(f"{flag}: {text!r} is not a whole number")
    return int(text)


def size(flag: str, text: str) -> int:
    """Bytes; raises InvalidSpec."""
    try:
        return parse_size(text)
    except InvalidSpec as error:
        raise _about(flag, error) from None


def duration(flag: str, text: str) -> float:
    """Seconds, from ``90``, ``90s`` or ``5m``; raises InvalidSpec."""
    try:
        return parse_duration(f"{text}s" if text.isdecimal() and text.isascii() else text)
    except InvalidSpec as error:
        raise _about(flag, error) from None


def lease(flag: str, text: str) -> float | None:
    """Seconds, or None for ``none``; raises InvalidSpec."""
    return None if text.lower() == "none" else duration(flag, text)


def schedule(text: str) -> Schedule:
    """How snapshots are taken; raises InvalidSpec."""
    from lab import schedule as schedules

    try:
        return schedules.parse(text)
    except InvalidSpec as error:
        raise _about("--snapshots", error) from None


def timeout(text: str, default: float) -> float:
    """Seconds; raises InvalidSpec."""
    return duration("--timeout", text) if text else default


def node(text: str, default: str = "n1") -> str:
    """A node's name; raises InvalidSpec."""
    from lab.names import parse_node

    return parse_node(text) if text else default


def maybe_node(text: str) -> str | None:
    """A node's name, None if none was given; raises InvalidSpec."""
    return node(text) if text else None


def _about(flag: str, error: InvalidSpec) -> InvalidSpec:
    return InvalidSpec(f"{flag}: {error.what}", hint=error.hint)
