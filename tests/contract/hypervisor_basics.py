"""The contract: starting, pausing and ending guests, and whose they are."""

from __future__ import annotations

import multiprocessing as mp
from collections.abc import Callable, Iterator
from concurrent.futures import ThreadPoolExecutor
from contextlib import contextmanager
from dataclasses import replace
from pathlib import Path

import pytest

from lab.errors import (
    CommandFailed,
    Conflict,
    HostUnfit,
    Interrupted,
    NotFound,
    NotReady,
    PortTaken,
)
from lab.hypervisor import (
    DirectBoot,
    Disk,
    Forward,
    GuestShape,
    GuestSpec,
    Hypervisor,
    live_of,
    memory_of,
)
from lab.names import GuestName
from lab.wait import Deadline, until
from tests.contract.hypervisor_site import (
    MIB,
    SECONDS,
    ClosableHypervisor,
    Opener,
    Site,
    states,
)

_SPAWN = mp.get_context("spawn")
_NOWHERE = Path("/nowhere/at-all")
_ABSENT = GuestName("lab-ct-absent-n1")


class Starting:
    def test_a_started_guest_runs_and_keeps_its_tags(self, site: Site, ours: Hypervisor) -> None:
        guest = site.guest()
        guest = replace(guest, tags={**guest.tags, "role": 'a "b" <c> & d'})
        ours.start(guest)
        found = ours.guests()
        assert list(found) == [guest.name]
        assert (found[guest.name].name, found[guest.name].state) == (guest.name, "running")
        assert dict(found[guest.name].tags) == dict(guest.tags)

    def test_a_name_is_taken_once(self, site: Site, ours: Hypervisor) -> None:
        ours.start(site.guest())
        for other, home in ((ours, site.home), (site.hypervisor(site.foreign), site.foreign)):
            again = replace(site.guest("n2", home), name=site.guest().name)
            with pytest.raises(Conflict):
                other.start(again)
        assert states(ours) == {site.guest().name: "running"}

    def test_a_name_is_free_again_at_once(self, site: Site, ours: Hypervisor) -> None:
        for _ in range(2):
            ours.start(site.guest())
            ours.stop(site.guest().name, force=True)
        assert states(ours) == {}

    @pytest.mark.parametrize(
        "spoil",
        [
            lambda guest: replace(guest, disks=(Disk(_NOWHERE, "raw", "lab-os"),)),
            lambda guest: replace(guest, memory_file=_NOWHERE),
            lambda guest: replace(guest, console_log=_NOWHERE),
        ],
        ids=["disk", "memory file", "console log"],
    )
    def test_what_cannot_be_started_leaves_nothing(
        self, site: Site, ours: Hypervisor, spoil: Callable[[GuestSpec], GuestSpec]
    ) -> None:
        with pytest.raises(HostUnfit) as failure:
            ours.start(spoil(site.guest()))
        assert any(str(_NOWHERE.parent) in line for line in failure.value.details)
        assert states(ours) == {}
        ours.start(site.guest())

    def test_a_disk_is_written_by_one_guest(self, site: Site, ours: Hypervisor) -> None:
        first, second = site.guest("n1"), site.guest("n2")
        ours.start(first)
        with pytest.raises(HostUnfit):
            ours.start(replace(second, disks=first.disks))
        assert list(states(ours)) == [first.name]

    def test_several_are_started_at_once(self, site: Site, ours: Hypervisor) -> None:
        guests = [site.guest(f"n{number}") for number in (1, 2, 3)]
        with ThreadPoolExecutor(3) as pool:
            list(pool.map(ours.start, guests))
        assert states(ours) == {guest.name: "running" for guest in guests}

    def test_fingerprints_tell_shapes_apart(self, site: Site, ours: Hypervisor) -> None:
        shapes = [
            GuestShape(64 * MIB, 1, 2, "direct"),
            GuestShape(128 * MIB, 1, 2, "direct"),
            GuestShape(64 * MIB, 2, 2, "direct"),
            GuestShape(64 * MIB, 1, 3, "direct"),
            GuestShape(64 * MIB, 1, 2, "firmware"),
        ]
        prints = [ours.fingerprint(shape) for shape in shapes]
        assert len(set(prints)) == len(shapes)
        other = site.hypervisor(site.foreign)
        assert prints == [other.fingerprint(shape) for shape in shapes]
        assert other.capabilities() == ours.capabilities()

    def test_a_segment_is_free_until_it_has_guests(self, site: Site, ours: Hypervisor) -> None:
        segment = site.guest().network.segment
        assert ours.segment_free(segment)
        guest = site.guest()
        ours.start(guest)
        assert not ours.segment_free(guest.network.segment)
        ours.stop(guest.name, force=True)
        assert ours.segment_free(guest.network.segment)


class KernelBooting:
    @pytest.mark.parametrize("part", ["kernel", "initrd"])
    def test_a_kernel_that_is_not_there_leaves_nothing(
        self, site: Site, ours: Hypervisor, part: str
    ) -> None:
        boot = site.kernel()
        spoiled = DirectBoot(
            _NOWHERE if part == "kernel" else boot.kernel,
            _NOWHERE if part == "initrd" else boot.initrd,
            "",
        )
        with pytest.raises(HostUnfit) as failure:
            ours.start(replace(site.guest(), boot=spoiled))
        assert any(str(_NOWHERE.parent) in line for line in failure.value.details)
        assert states(ours) == {}


class Forwarding:
    def test_a_port_leads_to_one_guest(self, site: Site, ours: Hypervisor) -> None:
        first, second = site.guest("n1"), site.guest("n2")
        port = first.network.forwards[0].host_port
        ours.start(first)
        with pytest.raises(PortTaken) as failure:
            ours.start(
                replace(second, network=replace(second.network, forwards=(Forward(port, 3306),)))
            )
        assert any(str(port) in line for line in failure.value.details)
        assert list(states(ours)) == [first.name]


class Changing:
    """With ``live``."""

    def test_a_port_moves_between_guests(self, site: Site, ours: Hypervisor) -> None:
        """Protects a reset: the lab's address leads to the other guests at once, also paused."""
        live = live_of(ours)
        first, second = site.guest("n1"), site.guest("n2")
        second = replace(second, network=replace(second.network, forwards=()))
        port = first.network.forwards[0]
        for one in (first, second):
            ours.start(one)
        memory_of(ours).pause([second.name])
        with pytest.raises(PortTaken):
            live.forward(second.name, add=[port])
        live.forward(first.name, remove=[port])
        live.forward(second.name, add=[port])
        with pytest.raises(PortTaken):
            live.forward(first.name, add=[port])
        third = replace(site.guest("n3"), network=replace(second.network, forwards=(port,)))
        with pytest.raises(PortTaken):
            ours.start(third)
        ours.stop(first.name, force=True)
        with pytest.raises(PortTaken):
            ours.start(third)
        ours.stop(second.name, force=True)
        ours.start(third)
        assert states(ours) == {third.name: "running"}

    def test_a_guest_ends_by_itself(self, site: Site, ours: Hypervisor) -> None:
        """Protects from guests that a reset leaves: also a paused one ends, and once is enough."""
        live = live_of(ours)
        first, second = site.guest("n1"), site.guest("n2")
        for one in (first, second):
            ours.start(one)
        memory_of(ours).pause([first.name])
        for _ in range(2):
            live.quit(first.name)
        live.quit(second.name)
        ours.stop(second.name, force=True)
        assert until(lambda: not states(ours), Deadline.after(20))
        live.quit(first.name)
        ours.start(first)
        assert states(ours) == {first.name: "running"}

    def test_what_is_not_there_or_not_ours_is_not_changed(
        self, site: Site, ours: Hypervisor
    ) -> None:
        foreign = site.guest(home=site.foreign)
        site.hypervisor(site.foreign).start(foreign)
        for guest, error in ((_ABSENT, NotFound), (foreign.name, Conflict)):
            with pytest.raises(error):
                live_of(ours).forward(guest)


class Pausing:
    def test_guests_pause_and_resume_together(self, site: Site, ours: Hypervisor) -> None:
        guests = [site.guest("n1"), site.guest("n2")]
        for guest in guests:
            ours.start(guest)
        names = [guest.name for guest in guests]
        for _ in range(2):
            memory_of(ours).pause(names)
            assert states(ours) == dict.fromkeys(names, "paused")
        for _ in range(2):
            memory_of(ours).resume(names)
            assert states(ours) == dict.fromkeys(names, "running")

    def test_all_or_none_are_paused_and_resumed(self, site: Site, ours: Hypervisor) -> None:
        guest = site.guest().name
        ours.start(site.guest())
        with pytest.raises(NotFound):
            memory_of(ours).pause([guest, _ABSENT])
        assert states(ours) == {guest: "running"}
        memory_of(ours).pause([guest])
        with pytest.raises(NotFound):
            memory_of(ours).resume([guest, _ABSENT])
        assert states(ours) == {guest: "paused"}

    def test_a_paused_guest_is_silent(self, site: Site, ours: Hypervisor) -> None:
        guest = site.guest().name
        ours.start(site.guest())
        memory_of(ours).pause([guest])
        assert not ours.channel(guest).ping(1.0)
        with pytest.raises(NotReady):
            ours.channel(guest).run(["/bin/true"], timeout=1.0)
        with pytest.raises(NotReady):
            ours.channel(guest).personalise(b"", timeout=1.0)

    def test_force_ends_a_paused_one_at_once(self, site: Site, ours: Hypervisor) -> None:
        ours.start(site.guest())
        memory_of(ours).pause([site.guest().name])
        ours.stop(site.guest().name, force=True)
        assert states(ours) == {}

    def test_a_guest_that_does_not_react_stays(self, site: Site, ours: Hypervisor) -> None:
        guest = site.guest().name
        ours.start(site.guest())
        memory_of(ours).pause([guest])
        with pytest.raises(NotReady, match=guest):
            ours.stop(guest, force=False, timeout=0.5)
        assert states(ours) == {guest: "paused"}

    def test_foreign_guests_are_not_paused(self, site: Site, ours: Hypervisor) -> None:
        foreign = site.hypervisor(site.foreign)
        spec = site.guest(home=site.foreign)
        foreign.start(spec)
        memory = memory_of(ours)
        for meddle in (
            lambda: memory.pause([spec.name]),
            lambda: memory.resume([spec.name]),
            lambda: memory.save_memory(spec.name, site.directory / "ram", site.directory / "state"),
        ):
            with pytest.raises(Conflict, match="not belong"):
                meddle()
        assert states(foreign) == {spec.name: "running"}

    def test_another_process_sees_them_paused(self, site: Site, ours: Hypervisor) -> None:
        guest = site.guest().name
        ours.start(site.guest())
        with _another_process(site) as talk:
            assert talk.recv() == {guest: "running"}
            memory_of(ours).pause([guest])
            talk.send("look again")
            assert talk.recv() == {guest: "paused"}
            talk.send("end it")
            assert talk.recv() == {}


class Reaching:
    def test_there_is_no_way_into_an_absent_guest(self, ours: Hypervisor) -> None:
        with pytest.raises(NotFound):
            ours.channel(_ABSENT)
        with pytest.raises(NotFound):
            ours.console_argv(_ABSENT)

    def test_the_console_is_a_command(self, site: Site, ours: Hypervisor) -> None:
        ours.start(site.guest())
        assert all(ours.console_argv(site.guest().name))

    def test_what_is_kept_of_a_guest(self, site: Site, ours: Hypervisor) -> None:
        """Protects who looks for why a guest failed; what is not there is no error."""
        assert ours.evidence(_ABSENT) == {}
        ours.start(site.guest())
        found = ours.evidence(site.guest().name)
        assert any(site.guest().name in text for text in found.values())

    def test_the_process_of_a_guest(self, site: Site, ours: Hypervisor) -> None:
        """Protects who measures guests: no other process is taken for one."""
        ours.start(site.guest())
        found = ours.processes()
        assert set(found) <= {site.guest().name}
        for pid in found.values():
            assert site.guest().name.encode() in Path(f"/proc/{pid}/cmdline").read_bytes()
        ours.stop(site.guest().name, force=True)
        assert ours.processes() == {}


class Personalising:
    """For drivers whose tests have guests with the program behind the port.

    A driver's class gives the fixture ``connect``: it has so many clients' sessions at the
    server of a guest.
    """

    def test_ended_sessions_are_counted(
        self, site: Site, ours: Hypervisor, connect: Callable[[GuestName, int], None]
    ) -> None:
        guest = site.guest().name
        ours.start(site.guest())
        site.booted(site.guest())
        channel = ours.channel(guest)
        connect(guest, 3)
        assert channel.personalise(b"entropy 00\n", timeout=SECONDS) == 0
        captured = b"entropy 00\nreseed 3137\nsessions\n"
        assert channel.personalise(captured, timeout=SECONDS) == 3
        assert channel.personalise(captured, timeout=SECONDS) == 0
        assert channel.personalise(b"", timeout=SECONDS) == 0

    def test_ended_sessions_are_counted_over_messages_that_fail(
        self, site: Site, ours: Hypervisor, connect: Callable[[GuestName, int], None]
    ) -> None:
        guest = site.guest().name
        ours.start(site.guest())
        site.booted(site.guest())
        channel = ours.channel(guest)
        connect(guest, 2)
        with pytest.raises(CommandFailed) as failure:
            channel.personalise(b"sessions\nnonsense 00\n", timeout=SECONDS)
        assert failure.value.details == ("nonsense: unknown item",)
        connect(guest, 1)
        assert channel.personalise(b"sessions\n", timeout=SECONDS) == 3
        assert channel.personalise(b"sessions\n", timeout=SECONDS) == 0


class Stopping:
    def test_force_ends_at_once(self, site: Site, ours: Hypervisor) -> None:
        ours.start(site.guest())
        ours.stop(site.guest().name, force=True)
        assert states(ours) == {}

    @pytest.mark.parametrize("force", [True, False])
    def test_an_absent_guest_is_stopped_already(self, ours: Hypervisor, force: bool) -> None:
        ours.stop(_ABSENT, force=force, timeout=1)

    def test_a_guest_is_asked_to_shut_down(self, site: Site, ours: Hypervisor) -> None:
        ours.start(site.guest())
        site.booted(site.guest())
        ours.stop(site.guest().name, force=False, timeout=10)
        assert states(ours) == {}

    def test_a_shutdown_is_not_waited_for_after_an_interrupt(
        self, site: Site, ours: Hypervisor
    ) -> None:
        """Protects Ctrl-C and cancelled jobs: a guest may take minutes, or never shut down."""

        def halt() -> None:
            raise Interrupted("cancelled")

        ours.start(site.guest())  # one that has booted may have ended by the first look
        with pytest.raises(Interrupted):
            ours.stop(site.guest().name, force=False, halt=halt)
        ours.stop(site.guest().name, force=True)
        assert states(ours) == {}


class Owning:
    def test_foreign_guests_are_invisible_and_left_alone(
        self, site: Site, ours: Hypervisor
    ) -> None:
        foreign = site.hypervisor(site.foreign)
        spec = site.guest(home=site.foreign)
        guest = spec.name
        foreign.start(spec)
        assert {spec.name} <= ours.names() & foreign.names()
        assert ours.guests() == {}
        for meddle in (
            lambda: ours.stop(guest, force=True),
            lambda: ours.stop(guest, force=False),
            lambda: ours.channel(guest),
            lambda: ours.console_argv(guest),
        ):
            with pytest.raises(Conflict, match="not belong"):
                meddle()
        ours.forget([guest, _ABSENT])
        assert states(foreign) == {guest: "running"}

    def test_guests_outlive_the_connection(self, site: Site, ours: ClosableHypervisor) -> None:
        ours.start(site.guest())
        ours.close()
        assert states(site.hypervisor(site.home)) == {site.guest().name: "running"}

    def test_another_process_sees_and_ends_them(self, site: Site, ours: Hypervisor) -> None:
        guest = site.guest().name
        ours.start(site.guest())
        with _another_process(site) as talk:
            for answer in ("look again", "end it"):
                assert talk.recv() == {guest: "running"}
                talk.send(answer)
            assert talk.recv() == {}
        assert states(ours) == {}


@contextmanager
def _another_process(site: Site) -> Iterator[mp.connection.Connection]:
    """A process that reports the guests, again after each of two messages, and ends them all."""
    to, ours_end = _SPAWN.Pipe()
    child = _SPAWN.Process(target=_see_and_end, args=(site.open, site.home, ours_end))
    child.start()
    try:
        yield to
    finally:
        to.close()
        ours_end.close()
        child.join(30)


def _see_and_end(opener: Opener, home: str, pipe: mp.connection.Connection) -> None:
    hypervisor = opener(home)
    for _ in range(2):
        pipe.send(states(hypervisor))
        pipe.recv()
    for guest in hypervisor.guests():
        hypervisor.stop(guest, force=True)
    pipe.send(states(hypervisor))
