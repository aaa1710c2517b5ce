"""What requests leave in the record: protects the host's disk, and the memory of lists of jobs."""

from __future__ import annotations

import time
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
from sqlalchemy import event
from sqlalchemy.engine import Engine

from lab.api.core.limits import Rate
from lab.api.jobs.stored import facts
from lab.api.jobs.submit import new_job
from lab.errors import LimitReached, NotFound
from lab.paths import Home
from lab.requests.images import BuildImage
from lab.requests.labs import CreateLab
from lab.requests.snapshots import TakeSnapshot
from lab.state.service import TokenRecord
from lab.state.store import Store
from lab.units import MIB
from tests.support.serve_world import BODY, MEMORY, Site, site

LARGE: dict[str, Any] = {
    "my_cnf": [{"text": "#" + "x" * 250_000, "role": ""}] * 3,
    "init": "-- " + "y" * 250_000,
}
FAILS = {"blueprint": "galera", "nodes": 1, "memory": MEMORY, "engine": "mariadb:9.9"}
"""A job that fails at once: there is no such series."""


@pytest.fixture
def here(tmp_path: Path) -> Iterator[Site]:
    with site(tmp_path, token_rate=10_000) as found:
        yield found


def size(root: Path) -> int:
    return sum(path.stat().st_size for path in root.glob("*.db"))


@pytest.mark.rare
def test_failing_jobs_leave_little(here: Site, tmp_path: Path) -> None:
    """A hundred requests of a MiB each, whose jobs fail at once."""
    token = here.token()
    here.ask("POST", "/v1/labs?wait=20", FAILS, token=token)
    before = size(tmp_path)
    for _ in range(100):
        answer = here.ask("POST", "/v1/labs?wait=20", {**FAILS, "options": LARGE}, token=token)
        assert answer.status_code == 422, answer.text
    assert size(tmp_path) - before < 5 * MIB
    # Journals are used again from their start: SQLite begins to at 4 MiB.
    assert sum(path.stat().st_size for path in tmp_path.glob("*.db-wal")) < 16 * MIB
    jobs = here.service.core.store.jobs
    last = jobs.latest(limit=1)[0]
    assert last.size == 0
    with pytest.raises(NotFound):
        jobs.request(last.id)


def test_lists_do_not_read_requests(here: Site) -> None:
    """No statement of ``latest`` and ``open`` has the column, or the table, of requests."""
    said: list[str] = []

    def hear(_: object, __: object, statement: str, *_more: object) -> None:
        said.append(statement)

    jobs = here.service.core.store.jobs
    here.ask("POST", "/v1/labs?wait=20", FAILS)
    event.listen(Engine, "before_cursor_execute", hear)
    try:
        jobs.open()
        jobs.latest(limit=500)
    finally:
        event.remove(Engine, "before_cursor_execute", hear)
    ours = [statement for statement in said if "FROM jobs" in statement]
    assert len(ours) >= 2
    assert not [statement for statement in ours if "request" in statement]


def test_facts_have_no_texts() -> None:
    """Protects what lists read, and secrets, which end with the job."""
    asked = CreateLab(
        blueprint="replication",
        nodes=3,
        options={**LARGE, "proxy": "haproxy", "user": [{"name": "a"}], "set": ["a=1"]},
    )
    found = facts(asked)
    assert found["options"] == {"proxy": "haproxy"}
    assert found["nodes"] == 3
    token = TokenRecord("t", "ci", "", "use", "shop", 0.0)
    job = new_job(token, asked)
    assert job.size > MIB - 100_000
    assert job.request["options"]["init"]


@pytest.mark.rare
def test_requests_of_open_jobs_are_limited(tmp_path: Path) -> None:
    """Protects the disk from a token that queues large requests."""
    with site(tmp_path, token_requests=2 * MIB, memory=2 * MEMORY, token_jobs=50) as here:
        here.make("first")
        token = here.token()
        body = {**BODY, "options": {"init": "-- " + "y" * 250_000, "my_cnf": LARGE["my_cnf"][:2]}}
        codes = [here.ask("POST", "/v1/labs", body, token=token) for _ in range(4)]
        assert [one.status_code for one in codes] == [202, 202, 429, 429]
        assert "token's open jobs would have 2.1M, 2M is the limit" in codes[-1].json()["detail"]
        assert codes[-1].headers["Retry-After"]
        assert here.ask("DELETE", "/v1/labs/first?wait=20").status_code == 204
        here.settled(60)


def test_jobs_of_a_token_are_rate_limited(tmp_path: Path) -> None:
    with site(tmp_path, token_rate=5) as here:
        token, other = here.token(), here.token("other")
        codes = [here.ask("POST", "/v1/labs?wait=20", FAILS, token=token) for _ in range(7)]
        assert [one.status_code for one in codes[4:]] == [422, 429, 429]
        assert 1 <= int(codes[-1].headers["Retry-After"]) <= 60
        assert "5 times within a minute" in codes[-1].json()["detail"]
        for who in (other, here.admin):
            assert here.ask("POST", "/v1/labs?wait=20", FAILS, token=who).status_code == 422


def test_a_rate_is_for_any_minute() -> None:
    now = 0.0
    rate = Rate(3, "did it", clock=lambda: now)
    for now in (0.0, 10.0, 20.0):  # noqa: B007
        rate.use("a")
    rate.use("b")
    now = 59.0
    with pytest.raises(LimitReached) as raised:
        rate.use("a")
    assert raised.value.retry_after == pytest.approx(1.0)
    now = 60.5
    rate.use("a")
    with pytest.raises(LimitReached):
        rate.use("a")


def test_what_fills_the_disk_is_refused_when_it_is_full(tmp_path: Path) -> None:
    """Protects the space that is kept free: requests are written to it too."""
    with site(tmp_path) as here:
        here.make("first")
        here.change(space_floor=1 << 60)
        token = here.token()
        answer = here.ask("POST", "/v1/labs", FAILS, token=token)
        assert answer.status_code == 503, answer.text
        assert "of disk is free" in answer.json()["detail"]
        assert here.ask("DELETE", "/v1/labs/first?wait=20").status_code == 204


def test_what_a_job_was_asked_for_is_there_while_it_is_open(tmp_path: Path) -> None:
    home = Home(tmp_path)
    home.create()
    with Store(home) as store:
        token = TokenRecord("t", "ci", "", "use", "shop", time.time())
        job = new_job(token, BuildImage(recipe="mariadb"))
        store.jobs.add(job)
        assert store.jobs.request(job.id) == {"recipe": "mariadb", "rebuild": False}
        other = new_job(token, TakeSnapshot(lab="shop", name="x"))
        store.jobs.add(other)
        store.jobs.remove_all([job.id])
        with pytest.raises(NotFound):
            store.jobs.request(job.id)
        assert store.jobs.request(other.id)
