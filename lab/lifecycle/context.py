"""What every verb works with."""

from __future__ import annotations

import os
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from typing import TYPE_CHECKING

from lab.errors import HostUnfit
from lab.hypervisor import Hypervisor
from lab.paths import Home
from lab.progress import Listener, Progress, ignore
from lab.settings import Settings
from lab.state.store import Store
from lab.storage import Storage

if TYPE_CHECKING:
    from lab.hypervisor.libvirt.driver import LibvirtHypervisor


@dataclass(frozen=True)
class Context:
    """The record, the seams, and whom to tell. Built by ``open_context``."""

    settings: Settings
    store: Store
    storage: Storage
    hypervisor: Hypervisor
    progress: Progress

    @property
    def home(self) -> Home:
        """Where everything is kept."""
        return self.settings.home


@contextmanager
def open_context(settings: Settings, listener: Listener = ignore) -> Iterator[Context]:
    """The context that ``settings`` ask for; raises HostUnfit if the host cannot do it."""
    settings.home.create()
    with Store(settings.home) as store:
        if settings.hypervisor == "fake":
            from lab.hypervisor.fake import FakeHypervisor
            from lab.storage.fake import FakeStorage

            fake = FakeHypervisor(settings.home.root / "fake-guests", settings.home.id)
            storage: Storage = FakeStorage(settings.home.storage, settings.home.id)
            yield Context(settings, store, storage, fake, Progress(listener))
            return
        hypervisor = open_libvirt(settings)
        try:
            from lab.storage.qcow2 import Qcow2Storage

            owner = hypervisor.run_as
            _give_sockets(settings.home, owner)
            storage = Qcow2Storage(settings.home.storage, settings.home.id, owner)
            yield Context(settings, store, storage, hypervisor, Progress(listener))
        finally:
            hypervisor.close()


def _give_sockets(home: Home, owner: tuple[int, int] | None) -> None:
    """QEMU makes sockets there, so its user must own the directory."""
    if owner is not None and home.sockets.stat().st_uid != owner[0]:
        os.chown(home.sockets, *owner)


def open_libvirt(settings: Settings) -> LibvirtHypervisor:
    """The hypervisor of Linux hosts; raises HostUnfit."""
    try:
        from lab.hypervisor.libvirt.driver import LibvirtHypervisor
    except ImportError as error:
        raise HostUnfit(
            "libvirt's Python binding is not installed", hint="run `make setup`"
        ) from error
    return LibvirtHypervisor(
        home=settings.home.id,
        sockets=settings.home.sockets,
        uri=settings.libvirt_uri,
        accelerator=settings.accelerator,
    )
