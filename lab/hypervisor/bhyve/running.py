"""Waiting for guests of vm-bhyve to run, and to end.

Between a command and its effect is ``vm _run``, a process in the background (vm::run in
lib/vm-run of vm-bhyve): it makes the network cards, takes the lock, runs bhyve and puts all away
afterwards. Only its log, and the lists that ``vm`` prints, tell how far it is.
"""

from __future__ import annotations

from collections.abc import Iterable
from contextlib import suppress

from lab.errors import HostUnfit, LabError, NotReady
from lab.hypervisor.bhyve import text
from lab.hypervisor.bhyve.command import vm
from lab.hypervisor.bhyve.place import Place
from lab.hypervisor.bhyve.text import Row
from lab.names import GuestName
from lab.wait import Deadline, attempts

_START_SECONDS = 60.0
_END_SECONDS = 30.0
"""How long bhyve may take to end once it was asked to; it has nothing to wait for then."""
_STALE_SECONDS = 3.0
"""How long a lock without a process counts: vm-bhyve holds it a moment before and after."""
_OVER = ("fatal;", "bhyve exited with status", "stopped")
"""How vm-bhyve notes in a guest's log that it will not run (vm::run in lib/vm-run)."""
_ALONE = "failed to "
"""How it notes that a card is on no switch, and continues (switch::standard::provision)."""


def listed() -> dict[str, Row]:
    """All guests that vm-bhyve knows, by name; raises HostUnfit."""
    return text.guests(vm("listing guests", "list"))


def until_running(place: Place, guest: GuestName) -> None:
    """Wait for a guest that was just started; raises HostUnfit if it will not run, or is alone."""
    for _ in attempts(Deadline.after(_START_SECONDS), first=0.05, most=0.3):
        if text.state_of(vm(f"looking for {guest}", "info", guest), guest) == "running":
            if alone := [line for line in place.log(guest) if line.startswith(_ALONE)]:
                what = f"starting {guest}: it would have no network"
                raise HostUnfit(what, hint="`vm init` makes switches' bridges", details=alone)
            return
        if any(line.startswith(_OVER) for line in place.log(guest)):
            raise HostUnfit(f"starting {guest}: bhyve ended at once")
    raise HostUnfit(f"starting {guest}: bhyve did not run within {_START_SECONDS:g} s")


def end(guest: GuestName, row: Row, *, force: bool, timeout: float) -> None:
    """End a guest that runs; raises NotReady, and what ``vm`` raised if it still does."""
    failed: LabError | None = None
    now: Row | None = row
    before = ""
    stale: Deadline | None = None
    patience = Deadline.after(_END_SECONDS if force else timeout)
    for _ in attempts(patience, first=0.05, most=0.5):
        if now is None or now.state == "stopped":
            return
        # Also if it was locked before: bhyve was being made ready, or the guest rebooted.
        if now.state == "running" and before != "running":
            failed = _told(guest, force=force)
        if now.state == "locked":
            stale = stale or Deadline.after(_STALE_SECONDS)
            if stale.passed:
                _destroy(guest)
                return
        before, now = now.state, listed().get(guest)
    if now is None or now.state == "stopped":
        return
    if failed is not None:
        raise failed
    seconds = _END_SECONDS if force else timeout
    raise NotReady(f"{guest} did not shut down within {seconds:g} s", hint="force it")


def left_locked(guests: Iterable[str]) -> set[str]:
    """Those whose lock stays though nothing of them runs, as after a crash of the host.

    Waits a moment while one is locked, as it may just start or end; raises HostUnfit.
    """
    for _ in attempts(Deadline.after(_STALE_SECONDS), first=0.05, most=0.5):
        rows = listed()
        guests = {one for one in guests if one in rows and rows[one].state == "locked"}
        if not guests:
            return set()
    for one in guests:
        _destroy(one)
    return set(guests)


def _told(guest: GuestName, *, force: bool) -> LabError | None:
    """Tell a guest to end; what ``vm`` raised, for the guest may have ended meanwhile."""
    # poweroff asks for a yes unless it is forced; stop asks the guest, not us.
    how = ("poweroff", "-f") if force else ("stop",)
    try:
        vm(f"stopping {guest}", *how, guest)
    except LabError as error:
        return error
    return None


def _destroy(guest: str) -> None:
    """Take from the kernel what `vm _run` would have, had it not been killed or were it faster.

    With it the name cannot be used again: vm-bhyve takes it for a guest that runs.
    """
    with suppress(LabError):  # most often there is nothing, which is an error too
        vm(f"removing what is left of {guest}", "poweroff", "-f", guest)
