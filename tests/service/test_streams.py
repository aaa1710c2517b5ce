"""Streams of events: so many for a token, and what its clients do without one."""

from __future__ import annotations

import time
from collections.abc import Iterator
from contextlib import ExitStack

import pytest
from httpx import Client as Http

from lab.api.core.limits import Limit
from lab.client import Client
from lab.errors import LimitReached
from lab.progress import Event
from tests.support.page_visit import visit
from tests.support.serve_world import MEMORY, Site, site

STREAM = {"Accept": "text/event-stream"}


@pytest.fixture(scope="module")
def here(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Site]:
    with site(tmp_path_factory.mktemp("streams")) as found:
        yield found


def owner(token: str) -> str:
    """Under what the streams of ``token`` are counted."""
    return token.split("_")[1]


def fill(here: Site, token: str, stack: ExitStack) -> Http:
    """Have ``token`` listen as often as it may."""
    client = stack.enter_context(Http(base_url=here.client.base_url, timeout=20.0))
    client.headers["Authorization"] = f"Bearer {token}"
    for _ in range(here.service.core.limits.streams.per_token):
        answer = stack.enter_context(client.stream("GET", "/v1/events", headers=STREAM))
        assert answer.status_code == 200
    return client


def until_taken(here: Site, token: str, count: int) -> None:
    end = time.monotonic() + 20
    while here.service.core.limits.streams.used(owner(token)) != count:
        assert time.monotonic() < end
        here.service.core.notifier.notify(
            "anything"
        )  # a client that is gone is noticed when something is sent
        time.sleep(0.02)


def test_a_token_has_so_many_streams(here: Site) -> None:
    """Protects all others: one token cannot take all connections of the service."""
    token = here.token("greedy")
    with ExitStack() as stack:
        fill(here, token, stack)
        job = here.ask("GET", "/v1/jobs", token=token)
        assert job.status_code == 200  # all but streams continues
        refused = here.ask("GET", "/v1/events", token=token, Accept="text/event-stream")
        assert refused.status_code == 429
        assert refused.headers["retry-after"] == "10"
        assert refused.json()["detail"].startswith("64 streams of events are open")
        other = here.token("modest")
        with here.client.stream(
            "GET", "/v1/events", headers={**STREAM, "Authorization": f"Bearer {other}"}
        ) as answer:
            assert answer.status_code == 200
    until_taken(here, token, 0)
    until_taken(here, other, 0)


def test_pages_are_counted_and_refused_as_well(here: Site) -> None:
    """Protects from many windows; the page gets an answer that it understands."""
    token = here.token("windows")
    with ExitStack() as stack:
        fill(here, token, stack)
        with visit(here, token) as client:
            refused = client.get("/live")
            assert refused.status_code == 429
            assert refused.headers["retry-after"] == "10"
            assert client.get("/").status_code == 200
    until_taken(here, token, 0)


def test_the_client_goes_on_without_a_stream(here: Site) -> None:
    """Protects large test runs with one token: progress is not heard, and nothing else is lost."""
    token, reported = here.token("many"), list[Event]()
    with ExitStack() as stack:
        fill(here, token, stack)
        with Client(str(here.client.base_url), token) as client:
            lab = client.create("galera", nodes=1, memory=MEMORY, listener=reported.append)
            assert lab.state == "ready"
            assert reported == []
            client.delete(lab.name)
    until_taken(here, token, 0)


def test_slots_are_for_each_and_for_all() -> None:
    """Protects the count: a released slot can be acquired again, and one token cannot take all."""
    limit = Limit(2, "streams are open", 3)
    limit.acquire("one")
    limit.acquire("one")
    with pytest.raises(LimitReached, match="2 streams are open for this token already"):
        limit.acquire("one")
    limit.acquire("other")
    with pytest.raises(LimitReached, match="3 streams are open already"):
        limit.acquire("other")
    limit.release("one")
    limit.acquire("one")
    for who in ("one", "one", "other"):
        limit.release(who)
    assert (limit.used("one"), limit.used("other"), limit.used()) == (0, 0, 0)
