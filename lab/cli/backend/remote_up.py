"""``lab up`` against a service."""

from __future__ import annotations

import dataclasses
import re
import time
from contextlib import suppress
from typing import TYPE_CHECKING

from msgspec.structs import replace

from lab.errors import Busy, Conflict, LabError
from lab.lifecycle.labs import configuration
from lab.progress import Event, Step
from lab.requests.labs import EnsureLab
from lab.spec import LabSpec
from lab.values import dataclass
from lab.views.labs import FIRST_USE
from lab.wait import Deadline

if TYPE_CHECKING:
    from lab.client import Client
    from lab.progress import Listener
    from lab.requests.labs import CreateLab
    from lab.views.labs import LabView

_READY_SECONDS = 600.0
_PAUSE = 0.5
"""Seconds between two requests while another job works on a lab."""
_WITHOUT_US = ("ready", "creating", "starting", "removing")
"""States of a lab that is ready, or on which another command works."""


class StepTimer:
    """Passes events of a job on, and adds up the seconds of its steps as ``Progress`` does."""

    def __init__(self, listener: Listener) -> None:
        self._listener = listener
        self._open = [Step("job")]

    @property
    def steps(self) -> list[Step]:
        """The steps, with their parts in them."""
        return self._open[0].steps

    def __call__(self, event: Event) -> None:
        """Hear an event; an end without a begin is from before a restart of the service."""
        self._listener(event)
        if event.state == "begin":
            siblings = self._open[-1].steps
            found = next((step for step in siblings if step.step == event.step), Step(event.step))
            if found not in siblings:
                siblings.append(found)
            self._open.append(found)
        elif event.state in ("end", "fail") and any(
            step.step == event.step for step in self._open[1:]
        ):
            while self._open.pop().step != event.step:
                pass
            place = next(s for s in self._open[-1].steps if s.step == event.step)
            place.seconds += event.seconds


@dataclass(frozen=True)
class LabCreation:
    """How labs are created; its methods raise as ``Client.create`` does."""

    client: Client
    hear: Listener
    timeout: float | None

    def up(self, asked: CreateLab) -> LabView:
        """A new lab; or that of our project which matches, started if it is stopped."""
        if not isinstance(asked, EnsureLab):
            return self._made(asked)
        try:
            named = replace(asked, name=asked.name or asked.blueprint)
            return self._same(asked) or self._made(named)
        except Conflict:
            # It was created meanwhile, or the name belongs to another project.
            found = self._same(asked)
            if found is None and asked.name:
                raise
            return found or self._made(asked)

    def _made(self, asked: CreateLab) -> LabView:
        """A new lab, with the seconds of each step."""
        timer = StepTimer(self.hear)
        made: LabView = self.client.run(asked, timeout=self.timeout, listener=timer)
        first_use = sum(step.seconds for step in timer.steps if step.step in FIRST_USE)
        return dataclasses.replace(made, first_use_seconds=first_use, steps=tuple(timer.steps))

    def _same(self, asked: CreateLab) -> LabView | None:
        """The matching lab of our project, once it is ready; None if there is none.

        Raises Conflict if its configuration differs.
        """
        timeout = self.timeout or _READY_SECONDS
        name = asked.name or asked.blueprint
        labs = {lab.name: lab for lab in self.client.labs()}
        found = labs.get(name)
        if found is None and not asked.name:  # the service gave it a number, or one of a pool
            numbered = re.compile(rf"{re.escape(name)}-(\d+|[0-9a-f]{{6}})")
            found = next((lab for n, lab in labs.items() if numbered.fullmatch(n)), None)
        if found is None:
            return None
        if found.state == "creating":
            found = self.client.wait(found.name, timeout=timeout)
        configuration.check(found.name, configuration.of_view(found), self._asked(asked))
        if asked.chosen.user:
            raise Conflict(
                f"lab {found.name} exists, and a service does not tell whether its accounts have"
                " these passwords",
                hint=f"`lab down {found.name}` removes it; without --user it is used as it is",
            )
        if found.state in _WITHOUT_US:
            return self.client.wait(found.name, timeout=timeout)
        return self._started(found.name, timeout)

    def _started(self, name: str, timeout: float) -> LabView:
        """A lab that does not become ready by itself; another job on it is waited for."""
        deadline = Deadline.after(timeout)
        while True:
            try:
                self.client.power("start", name, timeout=deadline.left, listener=self.hear)
                return self.client.wait(name, timeout=deadline.left)
            except Busy:
                if deadline.passed:
                    raise
            time.sleep(min(_PAUSE, deadline.left))

    def _asked(self, asked: CreateLab) -> configuration.Configuration:
        """What ``asked`` requests; default profile and full keys are those of the service."""
        profile, image = asked.profile, asked.image
        if image or asked.dataset or not profile:
            with suppress(LabError):  # a service without room for another lab refuses a preview
                found = self.client.preview(LabSpec.of(asked, name=""), cold=asked.cold)
                profile, image = found.profile, (image or asked.dataset) and found.image
        return configuration.requested(asked, profile=profile, image=image)
