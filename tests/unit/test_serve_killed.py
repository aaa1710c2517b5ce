"""kill -9 of the service, at each phase of a job: the next one ends it, and nothing is left."""

from __future__ import annotations

import os
import signal
import threading
import time
from collections import Counter
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import Any

import pytest
from lifecycle_world import Hook, World, ignore
from serve_world import BODY, MEMORY, settings_of

from api.auth import Caller
from api.service import Service
from api.submit import new_job, submit
from lab.lifecycle import token as tokens
from lab.lifecycle.context import Context
from lab.poolfile import WarmPool
from lab.settings import Settings
from lab.spec import LabSpec, NodeSize
from lab.state.jobs import OPEN
from lab.state.records import JobRecord

CREATE = {**BODY, "name": "shop", "ttl": 3600.0, "engine": "", "image": "", "profile": "",
          "snapshots": "", "cpus": 1, "disk": 0, "cold": False, "protected": False}  # fmt: skip
NAMELESS = {**CREATE, "name": ""}
KEY = "the-key"
STEPS = int(os.environ.get("LAB_KILL_STEPS", "20"))
"""At how many steps of a job the slow tests kill; 1000: at all."""


def submit_create(service: Service, asked: dict[str, object]) -> JobRecord:
    """What POST does with an Idempotency-Key."""
    caller = Caller(service.store.tokens.all()[0])
    return submit(service, new_job(caller, "create", asked, lab=str(asked["name"]), key=KEY))


def create(service: Service) -> JobRecord:
    return submit_create(service, CREATE)


def create_nameless(service: Service) -> JobRecord:
    return submit_create(service, NAMELESS)


def delete(service: Service) -> JobRecord:
    """What DELETE does."""
    caller = Caller(service.store.tokens.all()[0])
    request = {"force": False, "created_at": service.store.labs.get("shop").created_at}
    return submit(service, new_job(caller, "delete", request, lab="shop", key=KEY))


Ask = Callable[[Service], JobRecord]


@contextmanager
def serving(root: Path, hook: Hook = ignore, **changes: Any) -> Iterator[Service]:
    """A service whose every step of the lifecycle calls ``hook`` first."""

    @contextmanager
    def opener(settings: Settings) -> Iterator[Context]:
        with World(root).open(hook) as ctx:
            yield replace(ctx, settings=settings)

    service = Service(settings_of(root, **{"sweep": 3600.0, **changes}), opener)
    service.open()
    yield service  # and no close: the process ends here in any case


def in_child(act: Callable[[], None]) -> int:
    """Run ``act`` in a process of its own; how it ended."""
    child = os.fork()
    if not child:
        code = 1
        try:
            act()
            code = 0
        finally:
            os._exit(code)
    return os.waitstatus_to_exitcode(os.waitpid(child, 0)[1])


def until_ended(service: Service, job: str, seconds: float = 30.0) -> JobRecord:
    end = time.monotonic() + seconds
    while (found := service.store.jobs.get(job)).state in OPEN:
        assert time.monotonic() < end, f"the job is {found.state} for ever"
        time.sleep(0.01)
    return found


@dataclass
class Steps:
    """A hook that numbers the steps of each name; ``at`` is where the process is killed."""

    at: str = ""
    on: bool = False
    seen: list[str] = field(default_factory=list)
    _counts: Counter[str] = field(default_factory=Counter)
    _guard: threading.Lock = field(default_factory=threading.Lock)

    def __call__(self, step: str) -> None:
        if self.on:
            with self._guard:
                self._counts[step] += 1
                self.seen.append(f"{step} {self._counts[step]}")
                if self.seen[-1] == self.at:
                    os.kill(os.getpid(), signal.SIGKILL)


def phases(root: Path, ask: Ask, prepare: Callable[[Service], None]) -> list[str]:
    """The steps of a job, in order."""

    def act() -> None:
        steps = Steps()
        with serving(root, steps) as service:
            prepare(service)
            steps.on = True
            assert until_ended(service, ask(service).id).state == "succeeded"
            steps.on = False
        (root / "phases").write_text("\n".join(steps.seen))

    root.mkdir()
    assert in_child(act) == 0
    return (root / "phases").read_text().splitlines()


def kill_at(root: Path, step: str, ask: Ask, prepare: Callable[[Service], None]) -> bool:
    """Have a service killed when ``step`` of a job is about to happen; whether it came to that."""

    def act() -> None:
        steps = Steps(at=step)
        with serving(root, steps) as service:
            prepare(service)
            steps.on = True
            until_ended(service, ask(service).id)

    root.mkdir()
    return in_child(act) == -signal.SIGKILL


def token(service: Service) -> None:
    tokens.create(service.store, "ci", scope="use", project="shop")


def token_and_lab(service: Service) -> None:
    token(service)
    assert until_ended(service, freed(create(service), service)).state == "succeeded"


def freed(job: JobRecord, service: Service) -> str:
    """Free the key for the next job."""
    service.store.jobs.update(job.id, key=None)
    return job.id


def after_create(service: Service, ask: Ask) -> None:
    """The same request again is the same job, and made one lab."""
    again = ask(service)
    done = until_ended(service, again.id)
    assert done.state == "succeeded"
    labs = service.store.labs.all()
    assert [(lab.job, lab.state, lab.project) for lab in labs] == [(again.id, "ready", "shop")]
    assert len(service.store.jobs.latest()) == 1


def after_delete(service: Service, ask: Ask) -> None:
    """The lab is gone, by one job."""
    if not service.store.jobs.latest(kinds=["delete"]):
        until_ended(service, ask(service).id)  # it was not accepted yet
    assert service.store.labs.all() == []
    assert [job.state for job in service.store.jobs.latest(kinds=["delete"])] == ["succeeded"]


def whole(root: Path) -> None:
    """Nothing is there but what belongs to finished labs, images and templates."""
    with World(root).open() as ctx:
        owners = {str(resource.owner) for resource in ctx.store.resources.all()}
        owners |= {guest.tags["owner"] for guest in ctx.hypervisor.guests().values()}
        owners |= {str(volume.name.owner) for volume in ctx.storage.volumes()}
        known = {f"lab:{lab.name}" for lab in ctx.store.labs.all() if lab.state == "ready"}
        known |= {f"image:{image.key}" for image in ctx.store.images.all()}
        known |= {f"template:{made.key}" for made in ctx.store.templates.all()}
        assert owners <= known
        states: list[str] = [image.state for image in ctx.store.images.all()]
        states += [made.state for made in ctx.store.templates.all()]
        assert set(states) <= {"ready"}


def sweep(
    tmp_path: Path,
    ask: Ask,
    prepare: Callable[[Service], None],
    *,
    most: int,
    after: Callable[[Service, Ask], None] = after_create,
) -> None:
    """Kill a job at ``most`` of its steps, spread over all of them; ``after`` looks what became."""
    steps = phases(tmp_path / "whole", ask, prepare)
    assert len(steps) >= 5
    chosen, killed = steps[:: -(-len(steps) // most)], 0
    for number, step in enumerate(chosen):
        root = tmp_path / str(number)
        if not kill_at(root, step, ask, prepare):
            continue  # it does not always happen, such as waiting
        killed += 1

        def recover(root: Path = root) -> None:
            with serving(root) as service:
                for job in service.store.jobs.open():
                    until_ended(service, job.id)
                service.sweeper.sweep()
                after(service, ask)
            whole(root)

        assert in_child(recover) == 0, f"after a kill at {step}"
    assert killed >= len(chosen) * 0.8


def test_a_create_that_was_killed_is_done_by_the_next_service(tmp_path: Path) -> None:
    """Protects the promise of 202: one lab, one job, no leak, in each phase of the first use."""
    sweep(tmp_path, create_nameless, token, most=6)


def test_a_delete_that_was_killed_is_done_by_the_next_service(tmp_path: Path) -> None:
    """Protects the host from labs that nobody removes any more."""
    sweep(tmp_path, delete, token_and_lab, most=4, after=after_delete)


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
            assert service.store.labs.all() == []
        whole(tmp_path)

    assert in_child(act) == 0


POOL = (WarmPool("small", LabSpec("galera", nodes=2, size=NodeSize(memory=MEMORY))),)


def until_full(service: Service) -> None:
    end = time.monotonic() + 30
    while service.pool.counts()["small"] < 1 or service.store.jobs.open():
        assert time.monotonic() < end, "the pool does not fill"
        time.sleep(0.01)


def fill(service: Service) -> None:
    """A pool that has what it is to have."""
    until_full(service)


def fill_and_claim(service: Service) -> None:
    """A pool, and somebody who claims from it; it is full again."""
    until_full(service)
    submit_create(service, NAMELESS)
    time.sleep(0.05)
    until_full(service)


def sweep_pool(tmp_path: Path, act: Callable[[Service], None], *, most: int) -> None:
    """Kill a service that keeps a pool at ``most`` of its steps; the next one goes on with it."""

    def run(root: Path, steps: Steps) -> None:
        with serving(root, steps, pool=POOL, sweep=0.05) as service:
            token(service)
            steps.on = True
            act(service)
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
    chosen, killed = steps[:: -(-len(steps) // most)], 0
    for number, step in enumerate(chosen):
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
                while any(lab.state != "ready" for lab in service.store.labs.all()):
                    assert time.monotonic() < end, service.store.labs.all()
                    time.sleep(0.01)
                labs = service.store.labs.all()
                claimed = [lab for lab in labs if not lab.pool]
                jobs = service.store.jobs.latest(kinds=["create"])
                assert [lab.job for lab in claimed] == [job.id for job in jobs]
                assert all(job.state == "succeeded" for job in jobs)
                assert len(labs) - len(claimed) == 1
            whole(root)

        assert in_child(recover) == 0, f"after a kill at {step}"
    assert killed >= len(chosen) * 0.6


def test_a_service_that_is_killed_leaves_a_pool_to_the_next(tmp_path: Path) -> None:
    """Protects the host: whatever step of filling or claiming is the last, nothing leaks."""
    sweep_pool(tmp_path, fill_and_claim, most=6)


@pytest.mark.slow
@pytest.mark.parametrize("act", [fill, fill_and_claim])
def test_many_phases_of_a_pool(tmp_path: Path, act: Callable[[Service], None]) -> None:
    """Protects as the test above, at LAB_KILL_STEPS of the steps, spread over all."""
    sweep_pool(tmp_path, act, most=STEPS)


@pytest.mark.slow
@pytest.mark.parametrize("ask", [create, create_nameless])
def test_many_phases_of_create(tmp_path: Path, ask: Ask) -> None:
    """Protects as the test above, at LAB_KILL_STEPS of the steps, spread over all."""
    sweep(tmp_path, ask, token, most=STEPS)


@pytest.mark.slow
def test_many_phases_of_delete(tmp_path: Path) -> None:
    """Protects as the test above, at LAB_KILL_STEPS of the steps, spread over all."""
    sweep(tmp_path, delete, token_and_lab, most=STEPS, after=after_delete)
