"""Going back that was cut: until it is done again, the lab's disks fit neither now nor then."""

from __future__ import annotations

from pathlib import Path

from lab.errors import Conflict
from lab.lifecycle.core.context import Context
from lab.names import Owner
from lab.paths import writing


def begin(ctx: Context, name: str, label: str, node: str | None) -> None:
    """Note that the volumes of a lab, or of one node, are about to go back to ``label``.

    Raises Conflict if more than that one node is to go back already.
    """
    path, what = _path(ctx, name), f"--to {label}" + (f" --node {node}" if node else "")
    if node and path.exists() and path.read_text(encoding="utf-8") != what:
        check(ctx, name)
    with writing(path):
        path.write_text(what, encoding="utf-8")


def end(ctx: Context, name: str) -> None:
    """All of them are there, and what that takes was done."""
    path = _path(ctx, name)
    with writing(path):
        path.unlink(missing_ok=True)


def exists(ctx: Context, name: str) -> bool:
    """Whether a rollback was begun and did not end."""
    return _path(ctx, name).exists()


def check(ctx: Context, name: str) -> None:
    """Raise Conflict if a rollback was cut, by a kill or a failure, and not done again."""
    path = _path(ctx, name)
    if exists(ctx, name):
        again = f"lab rollback {name} {path.read_text(encoding='utf-8')}"
        raise Conflict(
            f"a rollback of {name} did not come to its end: its disks may not fit together",
            hint=f"`{again}` does it again",
        )


def _path(ctx: Context, name: str) -> Path:
    return ctx.home.directory(Owner("lab", name)) / "rollback"
