"""A service that is killed: its steps, and what may be left of them."""

from __future__ import annotations

import os
import signal
import sys
import threading
import time
import traceback
from collections import Counter
from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import Any

from lab.api.core.contexts import Opener
from lab.api.jobs.submit import new_job, submit
from lab.api.service import Service
from lab.config.settings import Settings
from lab.lifecycle.core.context import Context
from lab.lifecycle.service import token as tokens
from lab.requests.labs import CreateLab
from lab.requests.tokens import CreateToken
from lab.state.jobs import OPEN
from lab.state.service import JobRecord
from tests.support.lifecycle_world import Hook, World, ignore
from tests.support.serve_world import BODY, settings_of

CREATE = {**BODY, "name": "shop", "ttl": 3600.0, "engine": "", "image": "", "profile": "",
          "snapshots": "", "cpus": 1, "disk": 0, "cold": False, "protected": False,
          "owner": "ci"}  # fmt: skip
NAMELESS = {**CREATE, "name": ""}
KEY = "the-key"
ALL = 1 << 20
"""More steps than a job has: kill at each of them."""


def submit_create(service: Service, asked: Mapping[str, Any], key: str | None = KEY) -> JobRecord:
    """What POST does with an Idempotency-Key."""
    token, request = service.core.store.tokens.all()[0], CreateLab(**asked)
    return submit(service.jobs, new_job(token, request, key=key))


def hooked(root: Path, hook: Hook) -> Opener:
    """What opens contexts whose every step calls ``hook`` first."""

    @contextmanager
    def opener(settings: Settings) -> Iterator[Context]:
        with World(root).open(hook) as ctx:
            yield replace(ctx, settings=settings)

    return opener


@contextmanager
def serving(root: Path, hook: Hook = ignore, **changes: Any) -> Iterator[Service]:
    """A service whose every step of the lifecycle calls ``hook`` first."""

    service = Service(settings_of(root, **{"sweep": 3600.0, **changes}), hooked(root, hook))
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
        except BaseException:  # noqa: BLE001  # the child ends here, whatever it is
            traceback.print_exc()
        finally:
            sys.stderr.flush()
            os._exit(code)
    return os.waitstatus_to_exitcode(os.waitpid(child, 0)[1])


def until_ended(service: Service, job: str, seconds: float = 30.0) -> JobRecord:
    end = time.monotonic() + seconds
    while (found := service.core.store.jobs.get(job)).state in OPEN:
        assert time.monotonic() < end, f"the job is {found.state} forever"
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


def token(service: Service) -> None:
    tokens.create(service.core.store, CreateToken(name="ci", scope="use", project="shop"))


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


def create(service: Service) -> JobRecord:
    return submit_create(service, CREATE)


def create_nameless(service: Service) -> JobRecord:
    return submit_create(service, NAMELESS)


Ask = Callable[[Service], JobRecord]


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


def token_and_lab(service: Service) -> None:
    token(service)
    assert until_ended(service, freed(create(service), service)).state == "succeeded"


def freed(job: JobRecord, service: Service) -> str:
    """Free the key for the next job."""
    service.core.store.jobs.update(job.id, key=None)
    return job.id


def after_create(service: Service, ask: Ask) -> None:
    """The same request again is the same job, and made one lab."""
    again = ask(service)
    done = until_ended(service, again.id)
    assert done.state == "succeeded"
    labs = service.core.store.labs.all()
    assert [(lab.job, lab.state, lab.project) for lab in labs] == [(again.id, "ready", "shop")]
    assert len(service.core.store.jobs.latest()) == 1


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
                for job in service.core.store.jobs.open():
                    until_ended(service, job.id)
                service.sweeper.sweep()
                after(service, ask)
            whole(root)

        assert in_child(recover) == 0, f"after a kill at {step}"
    assert killed >= len(chosen) * 0.8
