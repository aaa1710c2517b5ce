"""kill -9 of the service, at each phase of a job: the next one ends it, and nothing is left."""

from __future__ import annotations

import threading
from pathlib import Path

import pytest

from lab.api.jobs.submit import new_job, submit
from lab.api.service import Service
from lab.requests.labs import DeleteLab
from lab.state.service import JobRecord
from tests.support.killed_service import (
    ALL,
    KEY,
    Ask,
    create,
    create_nameless,
    in_child,
    serving,
    sweep,
    token,
    token_and_lab,
    until_ended,
    whole,
)


def delete(service: Service) -> JobRecord:
    """What DELETE does."""
    token = service.core.store.tokens.all()[0]
    created_at = service.core.store.labs.get("shop").created_at
    request = DeleteLab(lab="shop", created_at=created_at)
    return submit(service.jobs, new_job(token, request, key=KEY))


def after_delete(service: Service, ask: Ask) -> None:
    """The lab is gone, by one job."""
    if not service.core.store.jobs.latest(kinds=["delete"]):
        until_ended(service, ask(service).id)  # it was not accepted yet
    assert service.core.store.labs.all() == []
    assert [job.state for job in service.core.store.jobs.latest(kinds=["delete"])] == ["succeeded"]


def test_a_create_that_was_killed_is_done_by_the_next_service(tmp_path: Path) -> None:
    """Protects the promise of 202: one lab, one job, no leak, in each phase of the first use."""
    sweep(tmp_path, create_nameless, token, most=6)


def test_a_job_that_is_cancelled_undoes_what_it_made(tmp_path: Path) -> None:
    """Protects those who changed their mind: at the job's next step it turns back."""

    def act() -> None:
        there, go_on = threading.Event(), threading.Event()

        def hook(step: str) -> None:
            if step == "hypervisor.restore":
                there.set()
                assert go_on.wait(20)

        with serving(tmp_path, hook) as service:
            token(service)
            job = create(service)
            assert there.wait(20)
            service.jobs.cancel(job)
            go_on.set()
            assert until_ended(service, job.id).state == "cancelled"
            assert service.core.store.labs.all() == []
        whole(tmp_path)

    assert in_child(act) == 0


@pytest.mark.rare
@pytest.mark.parametrize("ask", [create, create_nameless])
def test_each_phase_of_create(tmp_path: Path, ask: Ask) -> None:
    """Protects as the test above, at each of the steps."""
    sweep(tmp_path, ask, token, most=ALL)


@pytest.mark.rare
def test_each_phase_of_delete(tmp_path: Path) -> None:
    """Protects the host from labs that nobody removes any more, at each of the steps."""
    sweep(tmp_path, delete, token_and_lab, most=ALL, after=after_delete)
