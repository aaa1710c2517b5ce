"""A pool of contexts of the lifecycle, one for each thread that needs one."""

from __future__ import annotations

import threading
from collections.abc import Callable, Iterator
from contextlib import AbstractContextManager, ExitStack, contextmanager
from dataclasses import replace

from lab.config.settings import Settings
from lab.errors import HostUnfit, LabError
from lab.lifecycle.core.context import UNKNOWN, Context, Origin, open_context
from lab.progress import Listener, Progress, ignore, never_halt

Opener = Callable[[Settings], AbstractContextManager[Context]]

_KEPT = 8
"""Open contexts that are kept while they are unused."""


class Contexts:
    """Lends contexts that ``opener`` opens from ``settings``. Safe for use by several threads."""

    def __init__(self, settings: Settings, opener: Opener = open_context) -> None:
        self._settings = settings
        self._opener = opener
        self._lock = threading.Lock()
        self._idle: list[tuple[ExitStack, Context]] = []
        self._closed = False

    @contextmanager
    def use(
        self,
        listener: Listener = ignore,
        *,
        halt: Callable[[], None] = never_halt,
        origin: Origin = UNKNOWN,
        owner: str = "",
        templates: int | None = None,
        data: Callable[[int], None] | None = None,
        warm: float | None = None,
        above: int = 0,
    ) -> Iterator[Context]:
        """A context for the block; ``owner``: of labs that are created in it.

        ``templates``, ``data``, ``warm``, ``above``: see Context. One in which HostUnfit or a
        defect was raised is closed: its connections may be broken. Raises HostUnfit if none can be
        opened.
        """
        stack, context = self._borrow()
        settings = replace(context.settings, owner=owner) if owner else context.settings
        sound = False
        try:
            progress = Progress(listener, halt)
            yield replace(
                context,
                settings=settings,
                progress=progress,
                origin=origin,
                templates=templates,
                data=data,
                warm=context.warm if warm is None else warm,
                above=above,
            )
            sound = True
        except LabError as error:
            sound = not isinstance(error, HostUnfit)
            raise
        finally:
            self._return(stack, context, sound=sound)

    def close(self) -> None:
        """Close unused contexts; those in use are closed when they are returned."""
        with self._lock:
            self._closed = True
            idle, self._idle = self._idle, []
        for stack, _ in idle:
            stack.close()

    def _borrow(self) -> tuple[ExitStack, Context]:
        with self._lock:
            if self._idle:
                return self._idle.pop()
        stack = ExitStack()
        context = stack.enter_context(self._opener(self._settings))
        context.store.labs.suggests = False  # a token does not see other projects' labs
        return stack, context

    def _return(self, stack: ExitStack, context: Context, *, sound: bool) -> None:
        with self._lock:
            keep = sound and not self._closed and len(self._idle) < _KEPT
            if keep:
                self._idle.append((stack, context))
        if not keep:
            stack.close()
