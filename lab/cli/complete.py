"""Completion of names, from the state database.

A shell cannot show messages during completion: on any error there are no names.
"""

from __future__ import annotations

from contextlib import suppress
from typing import TYPE_CHECKING

import typer

from lab.cli.terminal.output import FORMATS

if TYPE_CHECKING:
    from lab.cli.app import App
    from lab.cli.backend.session import Recorded

SOURCES = ("engine", "journal", "console")


def labs(ctx: typer.Context, incomplete: str) -> list[str]:
    """Recorded labs that are not on the command line yet."""
    given = ctx.params.get("names") or ()
    names = _recorded(ctx).labs
    return [name for name in names if name.startswith(incomplete) and name not in given]


def nodes(ctx: typer.Context, incomplete: str) -> list[str]:
    """The nodes of the lab on the command line, or of the only one."""
    recorded = _recorded(ctx).labs
    # If the line ends in --node, the parser stops early and leaves words in args.
    words = [
        str(ctx.params.get("name") or ""),
        *ctx.args,
        *(recorded if len(recorded) == 1 else ()),
    ]
    known = next((recorded[word] for word in words if word in recorded), [])
    return [node for node in known if node.startswith(incomplete)]


def labs_and_files(ctx: typer.Context, incomplete: str) -> list[str]:
    """The nodes of recorded labs, as ``LAB:NODE:/``, then the files of this directory."""
    from pathlib import Path

    from lab.paths import entries

    recorded = _recorded(ctx).labs
    nodes = [f"{lab}:{node}:/" for lab, names in recorded.items() for node in names]
    directory, _, begun = incomplete.rpartition("/")
    place = Path(f"{directory}/" if "/" in incomplete else ".")
    found = []
    with suppress(OSError):  # it cannot be read
        found = entries(place)
    files = [
        f"{directory}/{path.name}" if "/" in incomplete else path.name
        for path in found
        if path.name.startswith(begun)
    ]
    return [name for name in (*nodes, *files) if name.startswith(incomplete)]


def labs_and_nodes(ctx: typer.Context, incomplete: str) -> list[str]:
    """Recorded labs and, after one or if there is only one, its nodes."""
    recorded = _recorded(ctx).labs
    words = [*(ctx.params.get("words") or ()), *ctx.args]
    known = next((word for word in words if word in recorded), "")
    if known:
        return [node for node in recorded[known] if node.startswith(incomplete)]
    only = next(iter(recorded.values())) if len(recorded) == 1 else ()
    return [name for name in (*recorded, *only) if name.startswith(incomplete)]


def snapshots(ctx: typer.Context, incomplete: str) -> list[str]:
    """The snapshots of the lab on the command line, or of the only one."""
    recorded = _recorded(ctx).snapshots
    given = ctx.params.get("labels") or ()
    words = [
        str(ctx.params.get("name") or ""),
        *ctx.args,
        *(recorded if len(recorded) == 1 else ()),
    ]
    known = next((recorded[word] for word in words if word in recorded), [])
    return [label for label in known if label.startswith(incomplete) and label not in given]


def removable_snapshots(ctx: typer.Context, incomplete: str) -> list[str]:
    """Labels of snapshots that can be removed: all but the state after creation."""
    from lab.schedule import ORIGIN

    return [label for label in snapshots(ctx, incomplete) if label != ORIGIN]


def images(ctx: typer.Context, incomplete: str) -> list[str]:
    """Recorded images, by recipe and by key."""
    return [name for name in _recorded(ctx).images if name.startswith(incomplete)]


def datasets(ctx: typer.Context, incomplete: str) -> list[str]:
    """Recorded datasets, by name and by version."""
    return [name for name in _recorded(ctx).datasets if name.startswith(incomplete)]


def templates(ctx: typer.Context, incomplete: str) -> list[str]:
    """The keys of recorded templates."""
    return [key for key in _recorded(ctx).templates if key.startswith(incomplete)]


def recipes(ctx: typer.Context, incomplete: str) -> list[str]:
    """The recipes of images, with the added engines."""
    from lab.imagebuild.recipe import recipes as known

    return [name for name in (*known(), *_recorded(ctx).engines) if name.startswith(incomplete)]


def engines(ctx: typer.Context, incomplete: str) -> list[str]:
    """The engines that can be required, and their series."""
    from lab.config.enginefile import engines as known

    names = known(_recorded(ctx).engines)
    return [name for name in names if name.startswith(incomplete)]


def added_engines(ctx: typer.Context, incomplete: str) -> list[str]:
    """The engines that were added."""
    return [name for name in _recorded(ctx).engines if name.startswith(incomplete)]


def blueprints(incomplete: str) -> list[str]:
    """The blueprints."""
    from lab.blueprints import BLUEPRINTS

    return [name for name in BLUEPRINTS if name.startswith(incomplete)]


def profiles(incomplete: str) -> list[str]:
    """The built-in profiles."""
    from lab.config.profile import PROFILES

    return [name for name in PROFILES if name.startswith(incomplete)]


def topologies(incomplete: str) -> list[str]:
    """The topologies of replication."""
    from lab.options import TOPOLOGIES

    return [name for name in TOPOLOGIES if name.startswith(incomplete)]


def proxies(incomplete: str) -> list[str]:
    """The proxies that a node can run."""
    from lab.options import PROXY_NAMES

    return [name for name in PROXY_NAMES if name.startswith(incomplete)]


def identities(incomplete: str) -> list[str]:
    """Whose identity the servers of a branch have."""
    from lab.names import IDENTITIES

    return [name for name in IDENTITIES if name.startswith(incomplete)]


def conditions(incomplete: str) -> list[str]:
    """What can be waited for."""
    from lab.lifecycle.labs.conditions import WORDS

    return [name for name in WORDS if name.startswith(incomplete)]


def formats(incomplete: str) -> list[str]:
    """The output formats."""
    return [name for name in FORMATS if name.startswith(incomplete)]


def sources(incomplete: str) -> list[str]:
    """The sources of a node's log."""
    return [name for name in SOURCES if name.startswith(incomplete)]


def _recorded(ctx: typer.Context) -> Recorded:
    root = ctx.find_root()
    app: App = root.obj
    app.home, app.remote = (root.params.get(name) or None for name in ("home", "remote"))
    try:
        # Not of a service elsewhere: Tab must not wait for a network.
        return app.here().recorded(app.settings())
    except Exception:  # noqa: BLE001  # see above
        from lab.cli.backend.session import Recorded

        return Recorded()
