"""The verbs on this host: the one place where the CLI calls the lifecycle.

Every method imports what it calls when it is called, so that ``lab ls`` does not import what
only ``lab up`` needs. Tests pass their own ``Lifecycle`` to
``lab.cli.main``.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from contextlib import AbstractContextManager, contextmanager, nullcontext
from pathlib import Path
from typing import IO, TYPE_CHECKING, Any

from lab.cli.backend.session import Recorded

if TYPE_CHECKING:
    from lab.cli.backend.benches import Benches
    from lab.cli.backend.programs import Program, SqlClient
    from lab.cli.backend.session import Session
    from lab.cli.backend.tokens import Tokens
    from lab.config.settings import Settings
    from lab.lifecycle.core.context import Context
    from lab.observe.ways import NodeResults, Rows
    from lab.progress import Listener
    from lab.request import Request
    from lab.requests.labs import CreateLab
    from lab.views.catalog import EngineView, ImageView, TemplateView
    from lab.views.datasets import DatasetView, PersonalColumn
    from lab.views.host import Finding, HostView
    from lab.views.labs import LabStatus, LabView, Preview
    from lab.views.snapshots import SnapshotView


class LocalSession:
    """The verbs of the lifecycle in one open context; a ``Session``.

    ``context`` may be one that is for reading only: other verbs raise Unanswered then, before they
    change anything.
    """

    def __init__(self, context: Context) -> None:
        self._opened = context
        self._said = False

    @property
    def _context(self) -> Context:
        if self._opened.unanswered is not None:
            raise self._opened.unanswered
        return self._opened

    @property
    def _reading(self) -> Context:
        why = self._opened.unanswered
        if why is not None and not self._said:
            self._said = True
            text = f"{why.what}: whether guests run is not known ({why.hint})"
            self._opened.progress.note("hypervisor", text)
        return self._opened

    def run(self, request: Request, *, timeout: float | None = None) -> Any:
        """See Session."""
        from lab.lifecycle.perform import perform
        from lab.request import check
        from lab.requests.labs import ResetLab

        ctx = self._context
        found = perform(ctx, check(request), timeout=timeout)
        if isinstance(request, ResetLab) and not request.once:
            # It forgets the former guests first.
            self._make_next(ctx.home.standby_log(request.lab), request.lab)
        return found

    def take(self, request: CreateLab) -> LabView | None:
        """See Session."""
        if not self._opened.settings.standby:
            return None
        from lab.lifecycle.labs.up import note_risks
        from lab.lifecycle.service import ahead
        from lab.request import check

        view = ahead.take(self._context, check(request))
        if view is not None:
            note_risks(self._context)
        return view

    def make_ahead(self, request: CreateLab) -> None:
        """See Session."""
        if not self._opened.settings.standby:
            return
        from lab.errors import LabError
        from lab.lifecycle.service import ahead

        ctx = self._context
        try:
            wanted = ahead.want(ctx, request)
        except LabError as error:  # what was asked for is done
            ctx.progress.note("standby", f"no labs are made ahead: {error}")
            return
        if wanted:
            self._make_next(ctx.home.ahead_log, "--ahead")

    def _make_next(self, log: Path, what: str) -> None:
        """Make the next standby of a lab, or labs ahead, in a process that outlives this one.

        What it prints, such as why there is none, is in ``log``.
        """
        import sys

        from lab.errors import HostUnfit
        from lab.run import start
        from lab.units import format_duration

        home, limit = self._context.home, self._context.settings.ready_timeout
        argv = [sys.executable, "-m", "lab", "--home", str(home.root), "standby", what]
        argv += ["--output", "name", "--timeout", format_duration(limit)]
        try:
            # Not from the working directory, which may have a directory `lab` of its own.
            start(argv, log=log, cwd=home.root, env={"PYTHONSAFEPATH": "1"})
        except HostUnfit as error:  # what was asked for is done
            self._context.progress.note("standby", f"the next standby is not made: {error}")

    def preview(self, request: CreateLab) -> Preview:
        """See Session."""
        from lab.lifecycle.labs.preview import preview
        from lab.request import check

        return preview(self._context, check(request))

    def names(self, *, waiting: bool = False) -> list[str]:
        """See Session."""
        from lab.lifecycle.core.waiting import members
        from lab.lifecycle.labs.down import names

        ctx = self._reading
        others = set() if waiting else {record.name for record in members(ctx)}
        return [name for name in names(ctx) if name not in others]

    def _used(self, name: str) -> Context:
        """The context for a verb that uses a lab; raises Conflict if that waits to be taken."""
        from lab.lifecycle.core.waiting import refuse_waiting

        refuse_waiting(self._reading, name)
        return self._reading

    def labs(self) -> list[LabView]:
        """See Session."""
        from lab.lifecycle.nodes.inspect import labs

        return labs(self._reading)

    def lab(self, name: str) -> LabView:
        """See Session."""
        from lab.lifecycle.nodes.inspect import lab

        return lab(self._reading, name)

    def status(self, name: str) -> LabStatus:
        """See Session."""
        from lab.lifecycle.nodes.inspect import status

        return status(self._reading, name)

    def wait(self, name: str, *, timeout: float) -> LabView:
        """See Session."""
        from lab.lifecycle.labs.wait import wait

        return wait(self._used(name), name, timeout=timeout)

    def snapshots(self, name: str) -> list[SnapshotView]:
        """See Session."""
        from lab.lifecycle.snapshots import snapshot

        return snapshot.snapshots(self._used(name), name)

    def execute(
        self, name: str, node: str, argv: Sequence[str], *, stdin: bytes, timeout: float
    ) -> bytes:
        """See Session."""
        from lab.lifecycle.labs.node_access import execute

        return execute(self._used(name), name, node, argv, stdin=stdin, timeout=timeout)

    def ssh(self, name: str, node: str) -> AbstractContextManager[Program]:
        """See Session."""
        from lab.cli.backend.programs import Program
        from lab.lifecycle.labs.node_access import ssh_argv

        return nullcontext(Program(ssh_argv(self._used(name), name, node)))

    def console(self, name: str, node: str) -> Program:
        """See Session."""
        from lab.cli.backend.programs import Program
        from lab.lifecycle.labs.node_access import console_argv

        return Program(console_argv(self._context, name, node))

    def bundle(self, name: str, to: IO[bytes], *, with_lab: bool = False, why: str = "") -> str:
        """See Session."""
        if with_lab:
            from lab.lifecycle.archives.bundled_lab import bundle_with_lab

            return bundle_with_lab(self._context, name, to, why=why).lacks_lab
        from lab.lifecycle.labs.bundle import bundle

        return bundle(self._context, name, to, why=why).lacks_lab

    def logs(self, name: str, node: str, source: str, *, follow: bool, lines: int) -> Iterator[str]:
        """See Session."""
        from lab.lifecycle.labs import node_access

        if not follow:
            return node_access.logs(self._reading, name, node, source, lines=lines)
        found = node_access.follow(self._reading, name, node, source, lines=lines)
        return (line for line in found if line is not None)

    def ca(self) -> Path:
        """See Session."""
        from lab.lifecycle.nodes.home_ca import certificate

        return certificate(self._reading.home)

    def query(
        self, name: str, node: str | None, statement: str, seconds: float | None = None
    ) -> Rows:
        """See Session."""
        from lab.lifecycle.labs.query import query

        return query(self._used(name), name, node, statement, seconds)

    def results(self, name: str, node: str | None, text: str, *, database: str) -> Iterator[Rows]:
        """See Session."""
        from lab.lifecycle.labs.query import results

        return results(self._used(name), name, node, text, database=database)

    def everywhere(self, name: str, text: str, *, database: str) -> list[NodeResults]:
        """See Session."""
        from lab.lifecycle.labs.query import everywhere

        return everywhere(self._used(name), name, text, database=database)

    def client(self, name: str, node: str | None, *, database: str) -> SqlClient:
        """See Session."""
        from lab.lifecycle.labs.query import client

        return client(self._used(name), name, node, database=database)

    def engines(self) -> list[EngineView]:
        """See Session."""
        from lab.lifecycle.host.engines import engines

        return engines(self._context)

    def images(self) -> list[ImageView]:
        """See Session."""
        from lab.lifecycle.host import catalog

        return catalog.images(self._context)

    def image(self, which: str) -> ImageView:
        """See Session."""
        from lab.lifecycle.host import catalog

        return catalog.image(self._context, which)

    def datasets(self) -> list[DatasetView]:
        """See Session."""
        from lab.lifecycle.datasets import dataset

        return dataset.datasets(self._context)

    def dataset(self, which: str) -> DatasetView:
        """See Session."""
        from lab.lifecycle.datasets import dataset

        return dataset.dataset(self._context, which)

    def scan_dataset(self, which: str) -> list[PersonalColumn]:
        """See Session."""
        from lab.lifecycle.datasets import dataset

        return dataset.scan(self._context, which)

    def templates(self) -> list[TemplateView]:
        """See Session."""
        from lab.lifecycle.host import catalog

        return catalog.templates(self._context)


class Lifecycle:
    """What needs no open context, and what opens one; tests of the CLI pass their own."""

    def settings(self, flags: Mapping[str, object]) -> Settings:
        """The settings for these flags, the environment and the config files."""
        from lab.config.settings import load

        return load(flags)

    @contextmanager
    def open(self, settings: Settings, listener: Listener) -> Iterator[Session]:
        """A session, for as long as the block lasts."""
        from lab.lifecycle.core.context import open_for_reading

        with open_for_reading(settings, listener) as context:
            yield LocalSession(context)

    def doctor(self, settings: Settings) -> list[Finding]:
        """The capabilities of this host; works where no context can be opened."""
        from lab.lifecycle.host.doctor import doctor

        return doctor(settings)

    def init_host(self, settings: Settings, pool: str) -> HostView:
        """Keep volumes on ZFS from now on; no hypervisor is needed for that."""
        from lab.lifecycle.host.host_init import init

        return init(settings, pool)

    @contextmanager
    def tokens(self, settings: Settings) -> Iterator[Tokens]:
        """The tokens of this host's service: no hypervisor is needed."""
        from lab.cli.backend.tokens import Kept
        from lab.lifecycle.core.context import open_recorded

        with open_recorded(settings) as context:
            yield Kept(context)

    @contextmanager
    def benches(self, settings: Settings) -> Iterator[Benches]:
        """The results of benchmarks: no hypervisor is needed."""
        from lab.cli.backend.benches import Benches
        from lab.lifecycle.core.context import open_recorded

        with open_recorded(settings) as context:
            yield Benches(context)

    def recorded(self, settings: Settings) -> Recorded:
        """Recorded names, for completion; only the state database is read."""
        if not settings.home.database.exists():
            return Recorded()  # opening the store would create it, and Tab must not
        from lab.imagebuild.added import families
        from lab.schedule import ORIGIN
        from lab.state import open_store

        with open_store(settings.home) as store:
            images = store.images.all()
            labs = {
                found.lab.name: [n.name for n in found.nodes] for found in store.labs_with_nodes()
            }
            return Recorded(
                labs,
                {name: sorted({ORIGIN, *settings.home.captures(name)}) for name in labs},
                [*dict.fromkeys(image.recipe for image in images), *(i.key for i in images)],
                [template.key for template in store.templates.all()],
                [
                    *dict.fromkeys(image.dataset for image in images if image.dataset),
                    *(f"{i.dataset}@{i.version}" for i in images if i.dataset),
                ],
                families(settings.home.engines),
            )
