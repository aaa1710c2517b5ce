"""The hypervisor of FreeBSD hosts: bhyve guests, managed by vm-bhyve.

A guest exists while it runs, as with libvirt's transient domains. vm-bhyve keeps its directory
afterwards, which is removed when the guest is stopped, restarted or forgotten.
"""

from __future__ import annotations

import hashlib
import json
import threading
from collections.abc import Callable, Mapping, Sequence
from contextlib import suppress
from dataclasses import astuple
from pathlib import Path

from lab.errors import Conflict, HostUnfit, LabError, NotFound
from lab.hypervisor import SHUTDOWN_SECONDS, Capabilities, Guest, GuestShape, GuestSpec
from lab.hypervisor.agent import GUEST_AGENT, AgentChannel
from lab.hypervisor.bhyve import redirects, text
from lab.hypervisor.bhyve.command import vm
from lab.hypervisor.bhyve.place import Place, taken
from lab.hypervisor.bhyve.ports import SocketPorts
from lab.hypervisor.bhyve.redirects import PfRedirects
from lab.hypervisor.bhyve.running import end, left_locked, listed, until_running
from lab.hypervisor.bhyve.switches import Switches
from lab.hypervisor.bhyve.text import Row
from lab.names import GuestName
from lab.progress import never_halt

FIRMWARE = Path("/usr/local/share/uefi-firmware/BHYVE_UEFI.fd")
"""The firmware of guests whose loader is ``uefi`` (vm::uefi in lib/vm-run of vm-bhyve)."""

UPLINK = "public"
"""The switch to the host's network, by the name in vm-bhyve's documentation."""

_COLD = "bhyve can neither pause a guest nor restore its RAM"


class BhyveHypervisor:
    """See Hypervisor for the contract. ``home``: the tag of this installation's guests."""

    def __init__(self, *, home: str, firmware: Path = FIRMWARE) -> None:
        self._home = home
        self._firmware = firmware
        self._facts: Mapping[str, str] = {}
        self._found: Place | None = None
        self._probing = threading.Lock()

    def close(self) -> None:
        """Nothing to close; guests keep running."""

    @property
    def run_as(self) -> None:
        """See Hypervisor; bhyve runs as this user."""

    @property
    def memory(self) -> None:
        """See Hypervisor."""

    @property
    def live(self) -> None:
        """See Hypervisor; guests have addresses of their own."""

    @property
    def redirects(self) -> PfRedirects:
        """See Hypervisor; raises HostUnfit."""
        return PfRedirects(self._place())

    def capabilities(self) -> Capabilities:
        """See Hypervisor."""
        self._place()
        return Capabilities(
            "bhyve",
            "bhyve",
            why_cold=_COLD,
            direct=False,
            forwards=False,
            facts=self._facts,
        )

    def fingerprint(self, shape: GuestShape) -> str:
        """See Hypervisor; disks captured without RAM can be started with any version."""
        return hashlib.sha256(json.dumps(["bhyve", *astuple(shape)]).encode()).hexdigest()[:32]

    def start(self, guest: GuestSpec) -> None:
        """See Hypervisor."""
        place = self._place()
        _check_files(guest)
        left = left_locked([guest.name]) if place.kept(guest.name) is not None else set()
        with place.hold():
            rows = {name: row for name, row in listed().items() if name not in left}
            self._vacate(place, guest.name, rows)
            _check_disks(place, guest, rows)
            forwards = guest.network.forwards
            if forwards:
                redirects.check()
                redirects.check_free(guest.name, forwards, place.ports())
            switches = self._switches(place)
            try:
                place.put(guest, _switch(guest, switches))
                if forwards:
                    redirects.load(guest.name, forwards)
            except BaseException:
                place.remove(guest.name)
                _sweep(place, switches)
                raise
        try:
            vm(f"starting {guest.name}", "start", guest.name)
            until_running(place, guest.name)
        except Conflict:  # it was started without vm-bhyve: not ours
            self._clear(place, [guest.name])
            raise
        except BaseException as error:
            if isinstance(error, LabError):
                error.details += tuple(place.last_words(guest.name))
            with suppress(LabError):
                self.stop(guest.name, force=True)
            raise

    def stop(
        self,
        guest: GuestName,
        *,
        force: bool,
        timeout: float = SHUTDOWN_SECONDS,
        halt: Callable[[], None] = never_halt,
    ) -> None:
        """See Hypervisor."""
        place = self._place()
        row = listed().get(guest)
        if place.kept(guest) is None:
            if row is None:
                return
            raise _not_ours(guest)
        if row is not None and row.state != "stopped":
            end(guest, row, force=force, timeout=timeout, halt=halt)
        self._clear(place, [guest])

    def guests(self) -> dict[GuestName, Guest]:
        """See Hypervisor."""
        place, rows = self._place(), listed()
        return {
            name: Guest(name, "running", kept.tags)
            for name, kept in place.all_kept().items()
            if name in rows and rows[name].state == "running"
        }

    def names(self) -> set[GuestName]:
        """See Hypervisor; a guest of others keeps its name while it is stopped."""
        place = self._place()
        return {
            GuestName(name)
            for name, row in listed().items()
            if row.state != "stopped" or place.kept(name) is None
        }

    def forget(self, guests: Sequence[GuestName]) -> None:
        """See Hypervisor."""
        place = self._place()
        left = left_locked(g for g in guests if place.kept(g) is not None) if guests else set()
        rows = listed()
        ended = [g for g in guests if g in left or g not in rows or rows[g].state == "stopped"]
        self._clear(place, ended)

    def segment_free(self, segment: int) -> bool:
        """See Hypervisor."""
        place = self._place()
        with place.hold():
            return self._switches(place).free(segment)

    def channel(self, guest: GuestName) -> AgentChannel:
        """See Hypervisor."""
        place = self._place()
        if place.kept(guest) is None and place.directory(guest).exists():
            raise _not_ours(guest)
        # Checked in the file system: this is called often, and `vm` takes a tenth of a second.
        if not place.socket(guest, GUEST_AGENT).exists():
            raise _absent(guest)
        return AgentChannel(SocketPorts(place, guest), guest)

    def console_argv(self, guest: GuestName) -> list[str]:
        """See Hypervisor."""
        place, row = self._place(), listed().get(guest)
        if row is None or (row.state != "running" and place.kept(guest)):
            raise _absent(guest)
        if place.kept(guest) is None:
            raise _not_ours(guest)
        return ["vm", "console", guest]

    def evidence(self, guest: GuestName) -> dict[str, str]:
        """See Hypervisor."""
        place, found = self._place(), dict[str, str]()
        if place.kept(guest) is None:
            return found
        directory = place.directory(guest)
        for name in (f"{guest}.conf", "vm-bhyve.log", "bhyve.log"):
            with suppress(OSError):
                found[name] = (directory / name).read_text(errors="replace")
        return found

    def processes(self) -> dict[GuestName, int]:
        """See Hypervisor; FreeBSD has no ``/proc``."""
        return {}

    def _place(self) -> Place:
        with self._probing:
            if self._found is None:
                self._found, self._facts = _probe(self._home, self._firmware)
            return self._found

    def _switches(self, place: Place) -> Switches:
        return Switches(place.own, self._home)

    def _vacate(self, place: Place, guest: GuestName, rows: Mapping[str, Row]) -> None:
        """Remove leftovers of our guest of that name; raises Conflict if the name is taken."""
        ended = guest not in rows or rows[guest].state == "stopped"
        if place.kept(guest) is not None and ended:
            place.remove(guest)
        elif guest in rows or place.directory(guest).exists():
            raise taken(guest)

    def _clear(self, place: Place, ended: Sequence[GuestName]) -> None:
        with place.hold():
            for guest in ended:
                place.remove(guest)
            _sweep(place, self._switches(place))


def _probe(home: str, firmware: Path) -> tuple[Place, dict[str, str]]:
    """The directory of guests, and facts to show; raises HostUnfit."""
    version = text.version(vm("querying vm-bhyve's version", "version"))
    store = text.datastores(vm("listing datastores", "datastore", "list")).get("default")
    if store is None:
        raise HostUnfit("vm-bhyve has no default datastore", hint="`sysrc vm_dir` sets it")
    if not firmware.exists():
        raise HostUnfit(
            f"bhyve's firmware {firmware} is missing", hint="pkg install bhyve-firmware"
        )
    where = f" ({store.dataset})" if store.dataset else ""
    facts = {"vm-bhyve": version, "datastore": f"{store.path}{where}", "firmware": str(firmware)}
    return Place(store.path, home), facts


def _switch(guest: GuestSpec, switches: Switches) -> str:
    """The switch that a guest's cards are on; raises Conflict, HostUnfit."""
    if not guest.network.uplink:
        return switches.ensure(guest.network.segment)
    if UPLINK not in text.switches(vm("listing switches", "switch", "list")):
        raise HostUnfit(
            f"{guest.name} needs the host's network, and there is no switch {UPLINK!r}",
            hint=f"`vm switch create {UPLINK}`, then `vm switch add {UPLINK} em0` with a card"
            " without address; docs/freebsd.md describes hosts with a single card",
        )
    return UPLINK


def _sweep(place: Place, switches: Switches) -> None:
    switches.sweep({kept.switch for kept in place.all_kept().values()})
    redirects.sweep(place.everyones())


def _check_files(guest: GuestSpec) -> None:
    for disk in guest.disks:
        if not disk.path.exists():
            raise _unfit(guest.name, f"{disk.path} does not exist")
    try:
        with guest.console_log.open("a") as log:
            log.write(f"bhyve writes no console log: use `vm console {guest.name}`\n")
    except OSError as error:
        raise _unfit(guest.name, f"{guest.console_log}: {error.strerror}") from None


def _check_disks(place: Place, guest: GuestSpec, rows: Mapping[str, Row]) -> None:
    """Raise HostUnfit if a disk is used by two guests and one writes to it: bhyve has no check."""
    writable = {str(disk.path): not disk.readonly for disk in guest.disks}
    ours = place.all_kept()
    for name, row in rows.items():
        if row.state == "stopped" and GuestName(name) not in ours:
            continue  # one of ours may be starting
        for path, writes in place.disks(name).items():
            if path in writable and (writes or writable[path]):
                raise _unfit(guest.name, f"{path} is a disk of {name}")


def _unfit(guest: str, why: str) -> HostUnfit:
    return HostUnfit(f"starting {guest}: it cannot run here", details=[why])


def _absent(guest: str) -> NotFound:
    return NotFound(f"looking for {guest}: no such guest")


def _not_ours(guest: str) -> Conflict:
    return Conflict(
        f"guest {guest} does not belong to this installation", hint="another LAB_HOME may own it"
    )
