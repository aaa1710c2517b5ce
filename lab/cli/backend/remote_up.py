"""Labs that a service is to make, or has already."""

from __future__ import annotations

import re
from contextlib import suppress
from dataclasses import dataclass, replace
from typing import TYPE_CHECKING

from lab.cli.backend.job_steps import Heard
from lab.errors import Conflict, LabError
from lab.lifecycle.core.views import FIRST_USE
from lab.lifecycle.nodes import configuration

if TYPE_CHECKING:
    from lab.client import Client
    from lab.lifecycle.core.views import LabView
    from lab.progress import Listener
    from lab.spec import LabSpec

_READY_SECONDS = 600.0


@dataclass(frozen=True)
class Making:
    """How labs are to be made; see ``Client.create``, whose errors its methods raise."""

    client: Client
    hear: Listener
    cold: bool
    keep_failed: bool
    timeout: float | None

    def up(self, spec: LabSpec) -> LabView:
        """Such a lab: the one of ours that is there already, started if need be, or a new one."""
        try:
            named = replace(spec, name=spec.name or spec.blueprint)
            return self._same(spec) or self.make(named)
        except Conflict:
            # Somebody was faster; or the name is another project's.
            found = self._same(spec)
            if found is None and spec.name:
                raise
            return found or self.make(spec)

    def make(self, spec: LabSpec) -> LabView:
        """A new lab, with what its making took."""
        heard = Heard(self.hear)
        made = self.client.create(
            spec,
            cold=self.cold,
            keep_failed=self.keep_failed,
            timeout=self.timeout,
            listener=heard,
        )
        first_use = sum(step.seconds for step in heard.steps if step.step in FIRST_USE)
        return replace(made, first_use_seconds=first_use, steps=tuple(heard.steps))

    def _same(self, spec: LabSpec) -> LabView | None:
        """The lab of ours that is there already, ready; None if there is none. Raises Conflict."""
        timeout = self.timeout or _READY_SECONDS
        name = spec.name or spec.blueprint
        labs = {lab.name: lab for lab in self.client.labs()}
        found = labs.get(name)
        if found is None and not spec.name:  # the service gave it a number, or one of a pool
            numbered = re.compile(rf"{re.escape(name)}-(\d+|[0-9a-f]{{6}})")
            found = next((lab for n, lab in labs.items() if numbered.fullmatch(n)), None)
        if found is None:
            return None
        if found.state == "creating":
            found = self.client.wait(found.name, timeout=timeout)
        configuration.check(found.name, configuration.of_view(found), self._asked(spec))
        halted = any(node.state in ("stopped", "paused") for node in found.nodes)
        if found.state in ("stopped", "failed") or (halted and found.state != "starting"):
            return self.client.power("start", found.name, timeout=timeout, listener=self.hear)
        return self.client.wait(found.name, timeout=timeout)

    def _asked(self, spec: LabSpec) -> configuration.Configuration:
        """What ``spec`` requests; default profile and full keys are those of the service."""
        profile, image = spec.profile, spec.image
        if image or not profile:
            with suppress(LabError):  # a service without room for another lab refuses a preview
                found = self.client.preview(replace(spec, name=""), cold=self.cold)
                profile, image = found.profile, image and found.image
        return configuration.asked(spec, profile=profile, image=image)
