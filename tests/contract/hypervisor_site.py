"""What a driver's tests give to the hypervisor's contract, and the guests it is tested with."""

from __future__ import annotations

import secrets
import socket
from collections.abc import Callable
from contextlib import ExitStack
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import Protocol

from lab.hypervisor import (
    DirectBoot,
    Disk,
    FirmwareBoot,
    Forward,
    GuestSpec,
    Hypervisor,
    MemoryImage,
    Network,
    memory_of,
)
from lab.names import GuestName
from tests.contract.hypervisor_kernel import kernel

MIB = 1 << 20
MEMORY = 16 * MIB
SECONDS = 30.0
"""How long the contract waits for what should come at once."""


class ClosableHypervisor(Hypervisor, Protocol):
    def close(self) -> None: ...


Opener = Callable[[str], ClosableHypervisor]


@dataclass
class Site:
    """A place with guests, whose files are in ``directory``.

    ``open`` gives a hypervisor for an installation's name, in this process or, pickled, in
    another. ``give`` lets guests read and write a file. ``booted`` waits until a guest that
    was just started is far enough to react. ``direct``: guests boot from a kernel's file;
    ``forwards``: ports lead to them.
    """

    open: Opener
    directory: Path
    give: Callable[[Path], None]
    booted: Callable[[GuestSpec], None]
    direct: bool = True
    forwards: bool = True
    token: str = field(default_factory=lambda: f"ct{secrets.token_hex(3)}")
    opened: list[ClosableHypervisor] = field(default_factory=list)

    @property
    def home(self) -> str:
        """Ours: no other test has it."""
        return self.token

    @property
    def foreign(self) -> str:
        """Another installation."""
        return f"{self.token}-foreign"

    def hypervisor(self, home: str) -> ClosableHypervisor:
        """A hypervisor for an installation; it is closed when the test ends."""
        self.opened.append(self.open(home))
        return self.opened[-1]

    def clear(self) -> None:
        """End all guests and close all that was opened."""
        for home in (self.home, self.foreign):
            hypervisor = self.hypervisor(home)
            for guest in hypervisor.guests():
                hypervisor.stop(guest, force=True)
        for hypervisor in self.opened:
            hypervisor.close()

    def guest(self, node: str = "n1", home: str = "") -> GuestSpec:
        """A guest as it could be started, with its files in place."""
        name = GuestName(f"lab-{self.token}-{node}")
        sql, ssh, segment = free_ports(3)
        return GuestSpec(
            name=name,
            tags={"home": home or self.home, "owner": f"lab:{self.token}", "node": node},
            memory=MEMORY,
            cpus=1,
            disks=(Disk(self.file(f"{node}.disk", MIB), "raw", "lab-os"),),
            network=Network(
                "52:54:00:4c:00:01",
                "52:54:00:4c:01:01",
                (Forward(sql, 3306), Forward(ssh, 22)) if self.forwards else (),
                segment,
            ),
            boot=self.kernel() if self.direct else FirmwareBoot(),
            console_log=self.directory / f"{node}.log",
        )

    def kernel(self) -> DirectBoot:
        """What guests boot that need no firmware."""
        return DirectBoot(self.put("kernel", kernel()), self.put("initrd", bytes(512)), "quiet")

    def former(self, node: str = "n1") -> GuestSpec:
        """A guest whose RAM can be captured."""
        return replace(self.guest(node), memory_file=self.file(f"{node}.ram", MEMORY))

    def file(self, name: str, size: int) -> Path:
        """A file of zeros that guests may write to."""
        path = self.directory / name
        with path.open("ab") as file:
            file.truncate(size)
        self.give(path)
        return path

    def put(self, name: str, content: bytes) -> Path:
        """A file that guests may read."""
        path = self.directory / name
        if not path.exists():
            path.write_bytes(content)
            path.chmod(0o644)
        return path

    def capture(self, hypervisor: Hypervisor, guest: GuestSpec) -> MemoryImage:
        """Start ``guest``, let it boot, capture its RAM and end it."""
        hypervisor.start(guest)
        self.booted(guest)
        return self.freeze(hypervisor, guest)

    def freeze(self, hypervisor: Hypervisor, guest: GuestSpec) -> MemoryImage:
        """Capture the RAM of a guest that runs, and end it."""
        assert guest.memory_file
        memory_of(hypervisor).pause([guest.name])
        state = self.directory / f"{guest.name}-{secrets.token_hex(2)}.state"
        image = memory_of(hypervisor).save_memory(guest.name, guest.memory_file, state)
        hypervisor.stop(guest.name, force=True)
        return image

    def new_image(self) -> MemoryImage:
        """Where the memory of a guest can be copied to."""
        path = self.directory / f"copy-{secrets.token_hex(2)}"
        return MemoryImage(path.with_suffix(".ram"), path.with_suffix(".state"), MEMORY)

    def copy(
        self, hypervisor: Hypervisor, guest: GuestSpec, origin: MemoryImage | None
    ) -> MemoryImage:
        """Copy the memory of a guest that runs, and runs on."""
        memory = memory_of(hypervisor)
        memory.pause([guest.name])
        finish = memory.copy_memory(guest.name, origin, self.new_image())
        memory.resume([guest.name])
        return finish()


def states(hypervisor: Hypervisor) -> dict[str, str]:
    """State by name of all guests that the hypervisor shows."""
    return {name: guest.state for name, guest in hypervisor.guests().items()}


def free_port() -> int:
    """A port of the loopback that nobody has now."""
    return free_ports(1)[0]


def free_ports(count: int) -> list[int]:
    """Ports of the loopback that nobody has now: different ones, as they are drawn together."""
    with ExitStack() as stack:
        probes = [stack.enter_context(socket.socket()) for _ in range(count)]
        for probe in probes:
            probe.bind(("127.0.0.1", 0))
        return [int(probe.getsockname()[1]) for probe in probes]
