"""What every verb works with."""

from __future__ import annotations

import os
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import AbstractContextManager, ExitStack, contextmanager
from functools import partial
from pathlib import Path
from typing import TYPE_CHECKING, Protocol

from lab.config.profile import Layout
from lab.config.settings import Settings
from lab.distribution import extra
from lab.errors import HostUnfit
from lab.host import system
from lab.hypervisor import Hypervisor, Unanswered, silent
from lab.observe.account import Account
from lab.observe.dial import begin
from lab.observe.ways import Page, Rows, SqlAll, SqlText, Ways
from lab.paths import Home
from lab.progress import Listener, Progress, ignore
from lab.state import open_late
from lab.storage import Storage
from lab.values import dataclass
from lab.wait import Deadline

if TYPE_CHECKING:
    from lab.hypervisor.libvirt.driver import LibvirtHypervisor
    from lab.imagebuild.manifest import BuiltImage
    from lab.imagebuild.recipe import Recipe
    from lab.observe.sql import KeptConnections
    from lab.state.store import Store


class Build(Protocol):
    """Makes an image in an empty directory; see ``lab.imagebuild.build.build``."""

    def __call__(
        self, recipe: Recipe, out: Path, *, layout: Layout, progress: Progress, log: Path
    ) -> BuiltImage:
        """What was built."""


def _page(host: str, port: int, *, timeout: float) -> str:
    from lab.observe.page import status

    return status(host, port, timeout=timeout)


def _ask_text(
    account: Account, port: int, text: str, *, timeout: float, database: str = ""
) -> Iterator[Rows]:
    from lab.observe.sql import ask_text

    return ask_text(account, port, text, timeout=timeout, database=database)


Opener = Callable[..., AbstractContextManager["Context"]]
"""Opens a context from settings and a listener, as ``open_context`` does."""

SLOWER = 3.0
"""How many times ``ready_timeout`` nodes may take that make progress: three of Galera took 1250 s
in an emulated machine on a busy host, 180 s on a calm one."""
RunAs = tuple[int, int] | None
"""User and group (ids) that QEMU runs as; None if that is us."""


@dataclass(frozen=True)
class Origin:
    """The origin of a lab in its record; empty for labs not created by the service."""

    project: str = ""
    job: str = ""
    protected: bool = False
    heartbeat: float | None = None
    """Heartbeat timeout in seconds; None: no heartbeats are needed."""
    pool: str = ""
    """The warm pool that it is created for."""
    idle: float | None = None
    """Seconds without use after which its lease ends."""
    asleep_after: float | None = None
    """Seconds without use after which it sleeps; see ``LabRecord``."""


UNKNOWN = Origin()
"""The origin of labs that are not created by the service."""


@dataclass(frozen=True)
class Context:
    """The record, the seams, and the receiver of progress. Built by ``open_context``."""

    settings: Settings
    store: Store
    storage: Storage
    hypervisor: Hypervisor
    progress: Progress
    sql_all: SqlAll
    """Asks a server through a published port."""
    build: Build
    """Makes an image from a recipe."""
    origin: Origin = UNKNOWN
    templates: int | None = None
    """How many templates there may be that were made for the origin's project; None: no limit."""
    data: Callable[[int], None] | None = None
    """Called with the bytes of SQL that were read; raises LimitReached if a dataset must not have
    so many. None: no limit."""
    above: int = 0
    """New versions of datasets get numbers above it: those that other hosts of a fleet have."""
    warm: float = 900.0
    """Seconds for queries that read a dataset's data into memory."""
    page: Page = _page
    """Asks what serves pages."""
    kept: Callable[[], KeptConnections] | None = None
    """Makes connections to servers that are kept; None where a question needs none."""
    sql_text: SqlText = _ask_text
    """Runs what a user wrote, through a published port."""
    unanswered: Unanswered | None = None
    """Why the hypervisor cannot be asked, in a context that was opened for reading all the same."""

    def sql(
        self, account: Account, port: int, statement: str, *, timeout: float, whole: bool = False
    ) -> Rows:
        """Run one statement as ``account`` through a port of this host; see ``SqlAll``."""
        return self.sql_all(account, port, [statement], timeout=timeout, whole=whole)[0]

    @property
    def ways(self) -> Ways:
        """How nodes are asked what they are."""
        return Ways(self.sql_all, self.page, self.hypervisor)

    @property
    def home(self) -> Home:
        """Where everything is kept."""
        return self.settings.home

    def ready_by(self, timeout: float) -> Deadline:
        """When nodes that were just started must be ready.

        ``timeout`` seconds from now. If these are the setting's, nobody said how long this host
        may take: nodes that get on, but slowly, have ``SLOWER`` times as long.
        """
        patient = timeout == self.settings.ready_timeout
        return Deadline.after(timeout, slower=SLOWER if patient else 1.0)


def hypervisor_of(settings: Settings) -> str:
    """What guests run under, by name: what ``settings`` ask for, or the usual one here."""
    if settings.hypervisor == "auto":
        return system.hypervisor(system.system())
    return settings.hypervisor


@contextmanager
def open_context(settings: Settings, listener: Listener = ignore) -> Iterator[Context]:
    """The context that ``settings`` ask for; raises HostUnfit if the host cannot do it."""
    settings.home.create()
    opened = _HYPERVISORS[hypervisor_of(settings)]
    with open_late(settings.home) as store, opened(settings, store, Progress(listener)) as context:
        yield context


@contextmanager
def open_for_reading(
    settings: Settings, listener: Listener = ignore, *, opener: Opener = open_context
) -> Iterator[Context]:
    """Open a context that also works, from the record, while the hypervisor does not answer.

    The context has its ``unanswered`` set then.
    """
    with ExitStack() as stack:
        try:
            context = stack.enter_context(opener(settings, listener))
        except Unanswered as why:
            context = stack.enter_context(_recorded(settings, Progress(listener), why))
        yield context


def open_recorded(settings: Settings) -> AbstractContextManager[Context]:
    """What is recorded and stored: no hypervisor is needed for it, and none is asked."""
    settings.home.create()
    return _recorded(settings, Progress(ignore), Unanswered("the hypervisor was not asked"))


@contextmanager
def _recorded(settings: Settings, progress: Progress, why: Unanswered) -> Iterator[Context]:
    hypervisor = silent(why)
    with open_late(settings.home) as store:
        storage = open_storage(settings, None)  # it is read only
        build = _build(settings, hypervisor)
        yield Context(settings, store, storage, hypervisor, progress, _ask, build, unanswered=why)


@contextmanager
def _libvirt(settings: Settings, store: Store, progress: Progress) -> Iterator[Context]:
    hypervisor = open_libvirt(settings)
    try:
        storage = open_storage(settings, hypervisor.run_as)
        build = _build(settings, hypervisor)
        yield Context(settings, store, storage, hypervisor, progress, _ask, build, kept=_kept)
    finally:
        hypervisor.close()


@contextmanager
def _bhyve(settings: Settings, store: Store, progress: Progress) -> Iterator[Context]:
    from lab.hypervisor.bhyve.driver import BhyveHypervisor

    if settings.storage == "qcow2":
        raise HostUnfit(
            "bhyve reads no qcow2 files: volumes must be on ZFS",
            hint="`lab host init --pool zroot/lab`, with a dataset of yours",
        )
    hypervisor = BhyveHypervisor(home=settings.home.id)
    storage = open_storage(settings, hypervisor.run_as)
    build = _build(settings, hypervisor)
    yield Context(settings, store, storage, hypervisor, progress, _ask, build, kept=_kept)


def _ask(
    account: Account, port: int, statements: Sequence[str], *, timeout: float, whole: bool = False
) -> list[Rows]:
    begun = begin(account.host, port)
    from lab.observe.sql import ask_all

    return ask_all(account, port, statements, timeout=timeout, whole=whole, begun=begun)


def _kept() -> KeptConnections:
    from lab.observe.sql import KeptConnections

    return KeptConnections()


def _build(settings: Settings, hypervisor: Hypervisor) -> Build:
    """How images are built: on this host, or in a guest."""

    def build(
        recipe: Recipe, out: Path, *, layout: Layout, progress: Progress, log: Path
    ) -> BuiltImage:
        from lab.imagebuild.build import build as build_here
        from lab.imagebuild.in_guest.builder import Builder

        make: Build = build_here
        if settings.builder is not None:
            make = Builder(settings.builder, settings.home, hypervisor).build
        return make(recipe, out, layout=layout, progress=progress, log=log)

    return build


@contextmanager
def _fake(settings: Settings, store: Store, progress: Progress) -> Iterator[Context]:
    """No guests, but fakes that behave like them: for trials and tests."""
    from lab.fake.hypervisor import FakeHypervisor
    from lab.fake.images import build

    fake = FakeHypervisor(settings.home.root / "fake-guests", settings.home.id)
    storage = _fake_storage(settings, None)

    def ask(
        account: Account,
        port: int,
        statements: Sequence[str],
        *,
        timeout: float,
        whole: bool = False,
    ) -> list[Rows]:
        del timeout, whole  # the fake answers at once, and little
        ask_one = partial(
            fake.servers.sql, port, account.user, account.password,
            host=account.host, tls=account.tls, plugin=account.plugin,
        )  # fmt: skip
        found = map(ask_one, statements)
        return [Rows(result.columns, result.rows, result.affected) for result in found]

    def ask_text(
        account: Account, port: int, text: str, *, timeout: float, database: str = ""
    ) -> Iterator[Rows]:
        del database  # the fake has one
        for statement in filter(str.strip, text.split(";")):
            yield from ask(account, port, [statement], timeout=timeout)

    yield Context(
        settings,
        store,
        storage,
        fake,
        progress,
        ask,
        build,
        page=fake.servers.page,
        sql_text=ask_text,
    )


_HYPERVISORS: Mapping[str, Callable[..., AbstractContextManager[Context]]] = {
    "libvirt": _libvirt,
    "bhyve": _bhyve,
    "fake": _fake,
}


def open_storage(settings: Settings, run_as: RunAs) -> Storage:
    """The storage that ``settings`` name."""
    return _STORAGES[settings.storage](settings, run_as)


def _qcow2(settings: Settings, run_as: RunAs) -> Storage:
    from lab.storage.qcow2 import Qcow2Storage

    home = settings.home
    return Qcow2Storage(home.storage, home.id, run_as, floor=settings.space_floor)


def _zfs(settings: Settings, run_as: RunAs) -> Storage:
    from lab.storage.zfs.driver import ZfsStorage

    del run_as  # the hypervisor lets QEMU's user to the devices when it starts a guest
    return ZfsStorage(settings.pool, settings.home.id, settings.home.storage / "zfs")


def _fake_storage(settings: Settings, run_as: RunAs) -> Storage:
    from lab.fake.storage import FakeStorage

    del run_as  # nobody else opens its files
    return FakeStorage(settings.home.storage, settings.home.id)


_STORAGES: Mapping[str, Callable[[Settings, RunAs], Storage]] = {
    "qcow2": _qcow2,
    "zfs": _zfs,
    "fake": _fake_storage,
}


def open_libvirt(settings: Settings, *, uid: int | None = None) -> LibvirtHypervisor:
    """The hypervisor of Linux hosts, for the user ``uid`` (default: the effective user).

    Raises HostUnfit.
    """
    with extra("host", "a host of labs"):
        from lab.hypervisor.libvirt import connection
        from lab.hypervisor.libvirt.driver import LibvirtHypervisor
    if (os.geteuid() if uid is None else uid) != 0 and settings.libvirt_uri.endswith("/system"):
        # Connecting may work, but files for QEMU's user and sockets of guests would be refused.
        raise HostUnfit(f"only root can use {settings.libvirt_uri}", hint=connection.USE_SESSION)
    settings.home.check_sockets()
    return LibvirtHypervisor(
        home=settings.home.id,
        sockets=settings.home.sockets,
        uri=settings.libvirt_uri,
        accelerator=settings.accelerator,
    )
