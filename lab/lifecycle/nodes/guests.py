"""The guests of labs, also where the hypervisor does not answer: these are not known to run."""

from __future__ import annotations

from collections.abc import Iterable, Mapping

from lab.hypervisor import Guest
from lab.lifecycle.core.context import Context
from lab.names import GuestName
from lab.state.records import LabWithNodes


def known_guests(ctx: Context) -> Mapping[GuestName, Guest]:
    """All guests, for verbs that only read: the recorded ones if the hypervisor is silent."""
    if ctx.unanswered is None:
        return ctx.hypervisor.guests()
    return unknown_guests(ctx.store.labs_with_nodes())


def unknown_guests(labs: Iterable[LabWithNodes]) -> dict[GuestName, Guest]:
    """The recorded guests of ``labs``; whether they run is not known."""
    names = [GuestName(node.guest) for found in labs for node in found.nodes]
    return {name: Guest(name, "unknown", {}) for name in names}
