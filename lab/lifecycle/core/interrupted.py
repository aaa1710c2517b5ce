"""Interrupted rollbacks: until one is completed, the disks of the lab are inconsistent."""

from __future__ import annotations

from pathlib import Path

from lab.drafts import replaced
from lab.errors import Conflict
from lab.lifecycle.core.context import Context
from lab.names import Owner
from lab.paths import Home, sync, writing


def begin(ctx: Context, name: str, label: str, node: str | None) -> None:
    """Record that the volumes of a lab, or of one node, are about to be rolled back to ``label``.

    Whole or not at all, also after a power loss. Raises Conflict if a rollback of more than that
    one node was interrupted.
    """
    path, what = _path(ctx.home, name), f"--to {label}" + (f" --node {node}" if node else "")
    if node and path.exists() and path.read_text(encoding="utf-8") != what:
        check(ctx, name)
    with replaced(path, durable=True) as fresh:
        fresh.write_text(what, encoding="utf-8")


def end(ctx: Context, name: str) -> None:
    """Record that the rollback is complete: what is written from now on must not be undone."""
    path = _path(ctx.home, name)
    with writing(path):
        path.unlink(missing_ok=True)
        sync(path.parent)


def exists(ctx: Context, name: str) -> bool:
    """Whether a rollback was begun and not completed."""
    return _path(ctx.home, name).exists()


def pending(ctx: Context, name: str) -> tuple[str, str | None] | None:
    """The label, and the node unless it is all, of a rollback that was not completed; else None."""
    return _read(ctx.home, name)


def _read(home: Home, name: str) -> tuple[str, str | None] | None:
    try:
        _, label, *node = _path(home, name).read_text(encoding="utf-8").split()
    except FileNotFoundError:
        return None
    return label, node[1] if node else None


def described(home: Home, name: str) -> str:
    """What was interrupted and what completes it, for views; empty if nothing was."""
    if (found := _read(home, name)) is None:
        return ""
    label, node = found
    return f"rollback{f' of {node}' if node else ''} to {label}; `lab start {name}` completes it"


def check(ctx: Context, name: str) -> None:
    """Raise Conflict if a rollback was interrupted, by a kill or a failure, and not completed."""
    path = _path(ctx.home, name)
    if exists(ctx, name):
        again = f"lab rollback {name} {path.read_text(encoding='utf-8')}"
        raise Conflict(
            f"the rollback of {name} was interrupted: its disks may be inconsistent",
            hint=f"`{again}` completes it",
        )


def _path(home: Home, name: str) -> Path:
    return home.directory(Owner("lab", name)) / "rollback"
