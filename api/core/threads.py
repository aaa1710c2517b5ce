"""Threads for what may block: so many for each token, so that no token takes them all."""

from __future__ import annotations

import inspect
from collections.abc import Callable
from contextvars import ContextVar
from functools import partial
from typing import Any, ParamSpec, TypeVar

import anyio
import anyio.to_thread
from anyio.lowlevel import RunVar
from fastapi.routing import APIRoute

P = ParamSpec("P")
T = TypeVar("T")

EACH = 4
"""Threads that the requests of a token may use at the same time."""
_NOBODY = 16
"""Threads of requests that have no token yet: tokens are checked in these."""
_ALL = 64
_KEPT = 1000

TOKEN: ContextVar[str] = ContextVar("token", default="")
"""The id of the token whose request is being answered; empty: none."""


class _Threads:
    """The threads of a service's requests; for use in its loop only."""

    def __init__(self) -> None:
        self._all = anyio.CapacityLimiter(_ALL)
        self._each = {"": anyio.CapacityLimiter(_NOBODY)}

    async def run(self, token: str, function: Callable[[], T]) -> T:
        """What ``function`` returns, run in a thread, once ``token`` has one left."""
        own = self._each.get(token)
        if own is None:
            if len(self._each) >= _KEPT:
                used = {one: own for one, own in self._each.items() if own.borrowed_tokens}
                self._each = {"": self._each[""], **used}
            own = self._each[token] = anyio.CapacityLimiter(EACH)
        async with own:
            return await anyio.to_thread.run_sync(function, limiter=self._all)


_threads: RunVar[_Threads] = RunVar("lab-threads")


async def in_thread(function: Callable[P, T], *args: P.args, **kwargs: P.kwargs) -> T:
    """What ``function`` returns, run in a thread of the token whose request is being answered."""
    try:
        threads = _threads.get()
    except LookupError:
        threads = _Threads()
        _threads.set(threads)
    return await threads.run(TOKEN.get(), partial(function, *args, **kwargs))


class Route(APIRoute):
    """A route whose function, unless it is a coroutine, runs ``in_thread``."""

    def __init__(self, path: str, endpoint: Callable[..., Any], **kwargs: Any) -> None:
        if not inspect.iscoroutinefunction(endpoint):
            endpoint = _threaded(endpoint)
        super().__init__(path, endpoint, **kwargs)


def _threaded(endpoint: Callable[..., Any]) -> Callable[..., Any]:
    async def run(**values: Any) -> Any:
        return await in_thread(endpoint, **values)

    run.__name__, run.__doc__ = endpoint.__name__, endpoint.__doc__
    # What FastAPI makes parameters and the document of.
    run.__signature__ = inspect.signature(endpoint, eval_str=True)  # type: ignore[attr-defined]
    return run
