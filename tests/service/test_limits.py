"""Protects all requests from the few that wait for a guest."""

from __future__ import annotations

import asyncio
import threading

import pytest
from starlette.concurrency import run_in_threadpool

from lab.api.core.limits import Limit
from lab.errors import LimitReached


def test_what_takes_long_keeps_nobody_waiting() -> None:
    """As many run as there are slots; their threads are none of those that requests share."""
    go_on = threading.Event()

    async def work() -> None:
        limit = Limit(60, "programs run", 60)  # more than there are shared threads
        long = [asyncio.create_task(limit.run("t", go_on.wait)) for _ in range(limit.per_token)]
        await asyncio.sleep(0)  # all begin
        assert limit.used() == limit.per_token
        with pytest.raises(LimitReached, match="60 programs run for this token already"):
            await limit.run("t", lambda: None)
        assert await asyncio.wait_for(run_in_threadpool(lambda: 1), 5) == 1
        long[0].cancel()  # the service ends
        with pytest.raises(asyncio.CancelledError):
            await asyncio.wait_for(long.pop(0), 5)
        go_on.set()
        await asyncio.gather(*long)
        assert limit.used() == 0
        with pytest.raises(ZeroDivisionError):
            await limit.run("t", lambda: 1 / 0)
        assert limit.used() == 0

    asyncio.run(work())
