"""The lock of an image or a template, and waiting for the command that makes it."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from contextlib import ExitStack, contextmanager
from typing import Literal

from lab.lifecycle.core.context import Context
from lab.locks.named import lock
from lab.wait import Deadline

PATIENCE = 3600.0
"""Seconds to wait for that command: on a slow line a build takes half an hour."""


@contextmanager
def build_lock(
    ctx: Context,
    kind: Literal["image", "template"],
    name: str,
    *,
    shared: bool = False,
    unless: Callable[[], bool] | None = None,
) -> Iterator[bool]:
    """Hold the lock for the block; waiting for it is reported, and is a step called ``kind``.

    Gives True; or False without the lock once ``unless`` is True, as it need not be made.
    Raises Conflict if it does not become free.
    """
    with ExitStack() as waiting:

        def wait_for(pid: int | None) -> None:
            text = f"waiting for process {pid or '?'} to make the {kind} {name}"
            ctx.progress.note(kind, text)
            waiting.enter_context(ctx.progress.step(kind, text))

        def needless() -> bool:
            ctx.progress.halt()
            return unless is not None and unless()

        deadline = Deadline.after(PATIENCE)
        with lock(
            ctx.home,
            kind,
            name,
            shared=shared,
            deadline=deadline,
            on_wait=wait_for,
            unless=needless,
        ) as held:
            waiting.close()
            yield held
