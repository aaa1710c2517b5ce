"""Contexts of the lifecycle for threads: one for each that works, kept for the next."""

from __future__ import annotations

import threading
from collections.abc import Callable, Iterator
from contextlib import AbstractContextManager, ExitStack, contextmanager
from dataclasses import replace

from lab.config.settings import Settings
from lab.errors import HostUnfit, LabError
from lab.lifecycle.core.context import UNKNOWN, Context, Origin, open_context
from lab.progress import Listener, Progress, go_on, ignore

Opener = Callable[[Settings], AbstractContextManager[Context]]

_KEPT = 8
"""Open contexts that are kept while nobody uses them."""


class Contexts:
    """Hands out contexts that ``opener`` makes of ``settings``. Safe for use by several threads."""

    def __init__(self, settings: Settings, opener: Opener = open_context) -> None:
        self._settings = settings
        self._opener = opener
        self._guard = threading.Lock()
        self._idle: list[tuple[ExitStack, Context]] = []
        self._closed = False

    @contextmanager
    def use(
        self,
        listener: Listener = ignore,
        *,
        halt: Callable[[], None] = go_on,
        origin: Origin = UNKNOWN,
        owner: str = "",
        templates: int | None = None,
    ) -> Iterator[Context]:
        """A context for the block; ``owner``: whom labs made in it belong to.

        One in which something broke is not used again, as its connections may be what broke.
        Raises HostUnfit if none can be opened.
        """
        stack, context = self._take()
        settings = replace(context.settings, owner=owner) if owner else context.settings
        sound = False
        try:
            progress = Progress(listener, halt)
            yield replace(
                context, settings=settings, progress=progress, origin=origin, templates=templates
            )
            sound = True
        except LabError as error:
            sound = not isinstance(error, HostUnfit)
            raise
        finally:
            self._give_back(stack, context, sound=sound)

    def close(self) -> None:
        """Close what nobody uses; what is in use is closed when it is given back."""
        with self._guard:
            self._closed = True
            idle, self._idle = self._idle, []
        for stack, _ in idle:
            stack.close()

    def _take(self) -> tuple[ExitStack, Context]:
        with self._guard:
            if self._idle:
                return self._idle.pop()
        stack = ExitStack()
        context = stack.enter_context(self._opener(self._settings))
        context.store.labs.suggests = False  # a token does not see other projects' labs
        return stack, context

    def _give_back(self, stack: ExitStack, context: Context, *, sound: bool) -> None:
        with self._guard:
            keep = sound and not self._closed and len(self._idle) < _KEPT
            if keep:
                self._idle.append((stack, context))
        if not keep:
            stack.close()
