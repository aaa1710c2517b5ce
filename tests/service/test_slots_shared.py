"""Start slots are not held by what a project gives its servers: others' labs start meanwhile."""

from __future__ import annotations

import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest

from lab.config.settings import Settings
from lab.errors import NotReady
from lab.hypervisor import GuestChannel
from lab.lifecycle.core.context import Context, open_context
from lab.lifecycle.nodes import start_slots
from lab.names import GuestName
from lab.progress import never_halt
from lab.wait import Deadline, until
from tests.service.test_dataset_limits import asked
from tests.support.serve_world import BODY, Site, site

SILENT = "evil"
LONG = 60
"""Seconds that a server sleeps: longer than anything here may take."""


class SilentChannel:
    """A channel whose guest does not answer when it is to be personalised."""

    def __init__(self, real: GuestChannel) -> None:
        self._real = real

    def __getattr__(self, name: str) -> Any:
        return getattr(self._real, name)

    def personalise(
        self, message: bytes, *, timeout: float, halt: Callable[[], None] = never_halt
    ) -> int:
        del message
        end = time.monotonic() + timeout
        while time.monotonic() < end:
            halt()
            time.sleep(0.05)
        raise NotReady("the guest does not answer at its port")


class Infested:
    """The hypervisor with such guests in the labs called ``SILENT``."""

    def __init__(self, real: Any) -> None:
        self._real = real

    def __getattr__(self, name: str) -> Any:
        return getattr(self._real, name)

    def channel(self, guest: GuestName) -> Any:
        found = self._real.channel(guest)
        return SilentChannel(found) if guest.startswith(f"lab-{SILENT}-") else found


@contextmanager
def opened(settings: Settings) -> Iterator[Context]:
    with open_context(settings) as ctx:
        yield replace(ctx, hypervisor=Infested(ctx.hypervisor))


@pytest.fixture
def here(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[Site]:
    monkeypatch.setattr(start_slots, "LONGEST", {"boot": 2.0, "restore": 2.0})
    with site(tmp_path, opened) as found:
        found.make("good", token=found.token("b", project="beta"), ttl=3600)
        yield found


def begun(here: Site, body: dict[str, Any], step: str) -> list[str]:
    """Jobs of project alpha, one for each slot, once the first is at a step."""
    token = here.token("a", project="alpha")
    jobs = [
        here.ask("POST", "/v1/labs", body, token=token).json()["id"]
        for _ in range(start_slots.slots_here())
    ]

    def at_step() -> bool:
        found = here.ask("GET", f"/v1/jobs/{jobs[0]}/events?limit=500").json()["items"]
        return any(one["step"] == step and one["state"] == "begin" for one in found)

    assert until(at_step, Deadline.after(20)), here.ask("GET", f"/v1/jobs/{jobs[0]}").json()
    return jobs


def start_takes(here: Site) -> float:
    """Seconds that another project's lab takes to start."""
    began = time.monotonic()
    answer = here.ask("POST", "/v1/labs/good/start?wait=60")
    assert answer.status_code == 200, answer.text
    return time.monotonic() - began


def end(here: Site, jobs: list[str]) -> None:
    for job in jobs:
        here.ask("POST", f"/v1/jobs/{job}/cancel")
    here.settled(60)


def test_first_statements_hold_no_slot(here: Site) -> None:
    """The cluster has formed: what it executes then is the project's own time."""
    here.ask("POST", "/v1/labs/good/stop?wait=60")
    options = {"init": f"DO SLEEP({LONG})"}
    jobs = begun(here, {**BODY, "name": "one", "options": options}, "form")
    assert start_takes(here) < LONG / 2
    end(here, jobs)


@pytest.mark.rare
def test_queries_that_warm_data_hold_no_slot(here: Site, tmp_path: Path) -> None:
    token = here.token("a", project="alpha")
    body = asked(here, token, tmp_path, "CREATE TABLE t (a INT);\n")
    body["warm"] = "SELECT SLEEP(4)"
    answer = here.ask("POST", "/v1/datasets?wait=60", body, token=token)
    assert answer.status_code == 201, answer.text
    here.ask("POST", "/v1/labs/good/stop?wait=60")
    jobs = begun(here, {**BODY, "name": "one", "dataset": "d"}, "warm")
    assert start_takes(here) < 3
    end(here, jobs)


@pytest.mark.rare
def test_silent_guests_hold_no_slot_for_restores(here: Site) -> None:
    """The slot is given back in time, though the lab has ready_timeout for its own."""
    options = {"init": "CREATE DATABASE x"}
    answer = here.ask("POST", "/v1/templates?wait=60", {**BODY, "options": options})
    assert answer.status_code == 201, answer.text
    jobs = begun(here, {**BODY, "name": SILENT, "options": options}, "personalise")
    began = time.monotonic()
    here.make("another", token=here.token("c", project="beta"))
    assert time.monotonic() - began < LONG / 2
    end(here, jobs)


@pytest.mark.rare
def test_queries_of_a_project_have_a_minute(here: Site, tmp_path: Path) -> None:
    """The channel's own limit for them would be 15 minutes."""
    from lab.api.jobs import jobs as module

    token = here.token("a", project="alpha")
    body = asked(here, token, tmp_path, "CREATE TABLE t (a INT);\n")
    body["warm"] = f"SELECT SLEEP({LONG * 100})"
    assert module._WARM == 60.0
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(module, "_WARM", 1.0)
        answer = here.ask("POST", "/v1/datasets?wait=60", body, token=token)
    assert answer.status_code == 504, answer.text
