"""Waits for guests of vm-bhyve to run, and to end.

Commands start ``vm _run``, a process in the background (vm::run in lib/vm-run of vm-bhyve): it
creates the network interfaces, acquires the lock, runs bhyve, and removes all of it afterwards.
Only its log, and the lists that ``vm`` prints, show its progress.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable
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
"""Timeout in seconds for the end of bhyve after a poweroff, which waits for no guest."""
_STALE_SECONDS = 3.0
"""Seconds for which a lock without a process is respected: vm-bhyve has it before and after."""
_OVER = ("fatal;", "bhyve exited with status", "stopped")
"""vm-bhyve's messages in a guest's log if it does not start (vm::run in lib/vm-run)."""
_ALONE = "failed to "
"""Its message if an interface has no switch; the guest starts (switch::standard::provision)."""


def listed() -> dict[str, Row]:
    """All guests that vm-bhyve knows, by name; raises HostUnfit."""
    return text.guests(vm("listing guests", "list"))


def until_running(place: Place, guest: GuestName) -> None:
    """Wait for a guest that was started; raises HostUnfit if it fails, or has no network."""
    for _ in attempts(Deadline.after(_START_SECONDS), first=0.05, most=0.3):
        if text.state_of(vm(f"looking for {guest}", "info", guest), guest) == "running":
            if alone := [line for line in place.log(guest) if line.startswith(_ALONE)]:
                what = f"starting {guest}: it would have no network"
                raise HostUnfit(
                    what, hint="`vm init` creates the bridges of switches", details=alone
                )
            return
        if any(line.startswith(_OVER) for line in place.log(guest)):
            raise HostUnfit(f"starting {guest}: bhyve ended at once")
    raise HostUnfit(f"starting {guest}: bhyve did not run within {_START_SECONDS:g} s")


def end(
    guest: GuestName, row: Row, *, force: bool, timeout: float, halt: Callable[[], None]
) -> None:
    """Stop a running guest; raises NotReady, and the errors of ``vm`` if it still runs.

    And those of ``halt``, which is called while it shuts down.
    """
    failed: LabError | None = None
    now: Row | None = row
    before = ""
    stale: Deadline | None = None
    patience = Deadline.after(_END_SECONDS if force else timeout)
    for _ in attempts(patience, first=0.05, most=0.5):
        if now is None or now.state == "stopped":
            return
        # Also if it was locked before: bhyve was starting, or the guest rebooted.
        if now.state == "running" and before != "running":
            failed = _end(guest, force=force)
        if now.state == "locked":
            stale = stale or Deadline.after(_STALE_SECONDS)
            if stale.passed:
                _destroy(guest)
                return
        if not force:
            halt()
        before, now = now.state, listed().get(guest)
    if now is None or now.state == "stopped":
        return
    if failed is not None:
        raise failed
    seconds = _END_SECONDS if force else timeout
    raise NotReady(f"{guest} did not shut down within {seconds:g} s", hint="force it")


def left_locked(guests: Iterable[str]) -> set[str]:
    """Guests with a lock but no process, as after a crash of the host.

    Waits for a short time while one is locked, as it may be starting or ending; raises HostUnfit.
    """
    for _ in attempts(Deadline.after(_STALE_SECONDS), first=0.05, most=0.5):
        rows = listed()
        guests = {one for one in guests if one in rows and rows[one].state == "locked"}
        if not guests:
            return set()
    for one in guests:
        _destroy(one)
    return set(guests)


def _end(guest: GuestName, *, force: bool) -> LabError | None:
    """Request a guest's end; returns the error of ``vm``, as the guest may have ended meanwhile."""
    # without -f, poweroff asks for confirmation; stop requests a shutdown of the guest
    how = ("poweroff", "-f") if force else ("stop",)
    try:
        vm(f"stopping {guest}", *how, guest)
    except LabError as error:
        return error
    return None


def _destroy(guest: str) -> None:
    """Remove the kernel's virtual machine, which `vm _run` removes unless it was killed.

    While it exists the name cannot be reused: for vm-bhyve the guest runs.
    """
    with suppress(LabError):  # usually there is none, which is an error too
        vm(f"removing leftovers of {guest}", "poweroff", "-f", guest)
