"""kill -9 of a service that keeps a pool: the next one continues with it, and nothing is left."""

from __future__ import annotations

import signal
import time
from pathlib import Path

import pytest

from lab.api.service import Service
from lab.config.poolfile import WarmPool
from tests.support.killed_service import (
    NAMELESS,
    Steps,
    in_child,
    serving,
    submit_create,
    token,
    until_ended,
    whole,
)
from tests.support.serve_world import MEMORY

POOL = (WarmPool("small", {"blueprint": "galera", "nodes": 2, "memory": MEMORY}),)


def until_full(service: Service) -> None:
    store = service.core.store

    def full() -> bool:
        # Jobs first: one that is open may claim what is found in the pool. The service may not
        # have seen yet that a lab of the pool is gone, or that one is ready.
        if store.jobs.open():
            return False
        kept = [lab.state for lab in store.labs.all() if lab.pool]
        return kept == ["ready"] and service.core.pool.counts()["small"] == 1

    end = time.monotonic() + 30
    while not full():
        assert time.monotonic() < end, "the pool does not fill"
        time.sleep(0.01)


def fill_and_claim(service: Service) -> None:
    """A pool, and somebody who claims from it; it is full again."""
    until_full(service)
    kept = {lab.name for lab in service.core.store.labs.all()}
    job = until_ended(service, submit_create(service, NAMELESS).id)
    assert (job.state, job.lab in kept) == ("succeeded", True), job
    until_full(service)


def sweep_pool(tmp_path: Path) -> None:
    """Kill a service that keeps a pool at each of its steps; the next one continues with it."""

    def run(root: Path, steps: Steps) -> None:
        with serving(root, steps, pool=POOL, sweep=0.05) as service:
            token(service)
            steps.on = True
            fill_and_claim(service)
            steps.on = False

    def whole_run() -> None:
        steps = Steps()
        run(tmp_path / "whole", steps)
        (tmp_path / "steps").write_text("\n".join(steps.seen))

    (tmp_path / "whole").mkdir()
    assert in_child(whole_run) == 0
    # Guests are looked at again and again: how often is chance.
    seen = (tmp_path / "steps").read_text().splitlines()
    steps = [step for step in seen if not step.startswith("hypervisor.guests")]
    killed = 0
    for number, step in enumerate(steps):
        root = tmp_path / str(number)
        root.mkdir()

        def killed_run(root: Path = root, step: str = step) -> None:
            run(root, Steps(at=step))

        if in_child(killed_run) != -signal.SIGKILL:
            continue
        killed += 1

        def recover(root: Path = root) -> None:
            with serving(root, pool=POOL, sweep=0.05) as service:
                until_full(service)
                end = time.monotonic() + 30
                while any(lab.state != "ready" for lab in service.core.store.labs.all()):
                    assert time.monotonic() < end, service.core.store.labs.all()
                    time.sleep(0.01)
                labs = service.core.store.labs.all()
                claimed = [lab for lab in labs if not lab.pool]
                jobs = service.core.store.jobs.latest(kinds=["create"])
                assert all(job.state == "succeeded" for job in jobs), jobs
                assert [lab.job for lab in claimed] == [job.id for job in jobs]
                assert len(labs) - len(claimed) == 1
            whole(root)

        assert in_child(recover) == 0, f"after a kill at {step}"
    assert killed >= len(steps) * 0.6


@pytest.mark.rare
def test_each_phase_of_a_pool(tmp_path: Path) -> None:
    """Protects the host: whatever step of filling or claiming is the last, nothing leaks."""
    sweep_pool(tmp_path)
