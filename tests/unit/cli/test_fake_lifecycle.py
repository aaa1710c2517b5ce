"""A lifecycle that remembers and runs nothing: what the CLI's tests put into its seam.

As a program (``python test_cli_support.py VERB ...``) it is `lab` over that fake, for the
tests that need a process: FAKE_* variables set delays and failures of the fake.
"""

from __future__ import annotations

import inspect
import os
import signal
import sys
import time
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import AbstractContextManager, contextmanager, nullcontext
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import IO, Any

from lab.cli import program
from lab.cli.backend.benches import Benches
from lab.cli.backend.local import Lifecycle
from lab.cli.backend.programs import Program
from lab.cli.backend.session import Recorded, Session
from lab.cli.backend.tokens import Kept, Tokens
from lab.config.settings import Settings
from lab.errors import CommandFailed, HostUnfit, LabError, NotFound
from lab.lifecycle.bench import results
from lab.lifecycle.core.context import open_recorded
from lab.observe.states import Requirement
from lab.observe.ways import NodeResults, Rows
from lab.paths import Home
from lab.progress import Event, Listener
from lab.request import Request
from lab.requests.archives import ExportArchive, ImportArchive, ImportSnapshot, OpenBundle
from lab.requests.benches import CompareBench, RunBench
from lab.requests.datasets import CreateDataset, DeleteDataset, RefreshDataset
from lab.requests.host import CollectGarbage
from lab.requests.images import BuildImage, BuildTemplate
from lab.requests.labs import (
    BranchLab,
    ChangeLab,
    CreateLab,
    DeleteLab,
    DropAhead,
    Power,
    Promote,
    RollBack,
    UpgradeLab,
    WakeLab,
)
from lab.requests.snapshots import ChangeSnapshot, PruneSnapshots, TakeSnapshot
from lab.undo import Undo
from lab.views.archives import ExportView, ImportView
from lab.views.benches import BenchView, CompareView
from lab.views.catalog import EngineView, ImageView, TemplateView
from lab.views.datasets import DatasetView, PersonalColumn
from lab.views.host import Finding, GcReport, HostView
from lab.views.labs import LabStatus, LabView, Preview
from lab.views.snapshots import SnapshotView
from lab.views.upgrades import UpgradeView
from tests.support.cli_views import (
    bench_view,
    compare_view,
    engine_view,
    image_view,
    lab_view,
    preview_view,
    template_view,
)

HERE = Path(__file__)


class FakeClient:
    """A client program that tells where it was started."""

    def __init__(self, log: Callable[..., None]) -> None:
        self._log = log
        self.argv = (sys.executable, "-c", "import sys; sys.exit(4)")
        self.env: Mapping[str, str] = os.environ

    def __enter__(self) -> FakeClient:
        self._log("client file", "made")
        return self

    def __exit__(self, *_: object) -> None:
        self._log("client file", "removed")


def dataset_view(name: str, version: int = 1) -> DatasetView:
    table: dict[str, str | int] = {
        "database": "shop", "name": "customers", "engine": "InnoDB", "rows": 7, "size": 16384,
    }  # fmt: skip
    return DatasetView(
        name, version, "ready", f"mariadb-{name}.{version}", "mariadb 11.8", "shop.sql",
        3 << 20, 1 << 20, (table,), 0.0, 12.0,
    )  # fmt: skip


_ANSWERS: dict[type[Request], Callable[[Any], Any]] = {
    RollBack: lambda asked: lab_view(asked.lab),
    BranchLab: lambda asked: [
        lab_view(f"{asked.name}-{number}", parent=f"lab:{asked.lab}@origin")
        for number in range(asked.count)
    ],
    TakeSnapshot: lambda asked: SnapshotView(
        f"{asked.name}.20261121t110000",
        asked.name,
        1_795_258_800.0,
        warm=not asked.disks_only,
        why_cold="taken with disks only" if asked.disks_only else "",
        pause=0.128,
        ram=31 << 20,
    ),
    ChangeLab: lambda asked: lab_view(
        asked.lab, expires_at=None if asked.endless else time.time() + asked.ttl + 0.9
    ),
    ChangeSnapshot: lambda asked: SnapshotView(
        f"{asked.label}.20261121t110000", asked.label, 0.0, protected=asked.protected
    ),
    PruneSnapshots: lambda asked: [f"removed {asked.lab}@hourly.20261121t110000"],
    BuildImage: lambda asked: image_view(recipe=asked.recipe),
    BuildTemplate: lambda _: template_view(),
    CreateDataset: lambda asked: dataset_view(asked.name),
    RefreshDataset: lambda asked: dataset_view(asked.name, 2),
    DeleteDataset: lambda asked: not asked.defer,
    ImportSnapshot: lambda asked: lab_view(asked.name or "shop"),
    OpenBundle: lambda asked: lab_view(asked.name or "shop"),
    RunBench: lambda asked: bench_view(lab=asked.lab, workload=asked.workload),
    CompareBench: lambda asked: compare_view(workload=asked.workload),
}
"""What verbs return that do not look at the labs of the world."""


_KEYS = {"image": image_view().key, "template": template_view().key, "dataset": "crm@1"}


def exported(asked: ExportArchive) -> ExportView:
    """What comes of an export, as if all worked."""
    key, lab = asked.which, ""
    if asked.kind == "snapshot":
        key = f"{asked.lab}@{asked.which}.20261121t110000"
        lab = asked.lab if asked.to.host else ""
    done = "imported" if asked.to.host else "written"
    return ExportView(asked.kind, key, asked.to.host or asked.to.where, done, 3 << 20, 1.25, lab)


class FakeSession:
    """Answers with fixed views; ``fails`` maps a method's name to what it raises."""

    def __init__(self, world: FakeLifecycle, listener: Listener) -> None:
        self._world = world
        self._tell = listener

    def _called(self, method: str, *args: object, **options: object) -> None:
        self._world.log(method, *args, **options)
        if error := self._world.fails.get(method):
            raise error

    def run(self, request: Request, *, timeout: float | None = None) -> Any:
        """What the verb of a request returns, of fixed views."""
        self._called(
            type(request).__name__, request, **({} if timeout is None else {"timeout": timeout})
        )
        found = _ANSWERS[type(request)](request) if type(request) in _ANSWERS else None
        if isinstance(request, ExportArchive):
            return exported(request)
        if type(request) is ImportArchive:
            return ImportView(request.kind, _KEYS[request.kind], self._world.import_outcome)
        return self._changed(request) or found

    def _changed(self, request: Request) -> Any:
        """What a request returns that changes the labs, or None."""
        found: Any = None
        if isinstance(request, CreateLab):
            found = self._created(request)
        elif isinstance(request, DeleteLab):
            found = self._deleted(request.lab)
        elif isinstance(request, WakeLab):
            found = self._world.views[request.lab] = lab_view(request.lab)
        elif isinstance(request, Power | Promote):
            found = self._find(request.lab)
        elif isinstance(request, DropAhead):
            if appears := os.environ.get("FAKE_APPEARS"):
                self._world.views[appears] = lab_view(appears)
        elif isinstance(request, CollectGarbage):
            found = self._world.gc_report
        elif isinstance(request, UpgradeLab):
            if (refused := self._world.refused) is not None:
                raise refused
            found = self._world.upgraded
        return found

    def _deleted(self, name: str) -> bool:
        time.sleep(float(os.environ.get("FAKE_DOWN", "0")))
        self._find(name)
        del self._world.views[name]
        self._world.log("is down", name)
        return True

    def _created(self, asked: CreateLab) -> LabView:
        self._tell(Event("image", "note", "percona cannot be reached: using mariadb"))
        self._tell(Event("clone", "begin", "cloning"))
        with Undo() as undo:
            undo.push("lab", lambda: slowly_undo(self._world))
            self._world.log("making", asked.blueprint)
            time.sleep(float(os.environ.get("FAKE_UP", "0")))
            if os.environ.get("FAKE_UP_FAILS"):
                raise HostUnfit("no memory", hint="free some")
            undo.keep()
        self._tell(Event("clone", "end", "cloning", 0.1))
        name = asked.name or asked.blueprint
        view = lab_view(name, nodes=asked.node_count, blueprint=asked.blueprint)
        self._world.views[name] = view
        return self._world.views[name]

    def preview(self, request: CreateLab) -> Preview:
        self._called("preview", request)
        return preview_view(template=None if request.cold else "feedfacefeedface")

    def take(self, request: CreateLab) -> LabView | None:
        """The lab of FAKE_AHEAD, after FAKE_TAKE seconds."""
        del request
        if (name := os.environ.get("FAKE_AHEAD")) is None:
            return None
        self._world.log("taking", name)
        time.sleep(float(os.environ.get("FAKE_TAKE", "0")))
        if not name:  # it did not answer
            return None
        self._world.views[name] = lab_view(name)
        return self._world.views[name]

    def make_ahead(self, request: CreateLab) -> None:
        """Nothing; with FAKE_LATE an interrupt comes meanwhile."""
        del request
        if os.environ.get("FAKE_LATE"):
            os.kill(os.getpid(), signal.SIGINT)
            time.sleep(0.1)

    def names(self, *, waiting: bool = False) -> list[str]:
        self._called("names")
        return sorted(self._world.views.keys() - (set() if waiting else self._world.pooled))

    def labs(self) -> list[LabView]:
        self._called("labs")
        return list(self._world.views.values())

    def lab(self, name: str) -> LabView:
        self._called("lab", name)
        return self._find(name)

    def status(self, name: str) -> LabStatus:
        self._called("status", name)
        return LabStatus(
            self._find(name),
            (
                Requirement("n1", "SQL", "SQL answers", True),
                Requirement("n1", "size 3", "wsrep_cluster_size is 3", True, "3"),
                Requirement("n2", "SQL", "SQL answers", False, "refused"),
                Requirement("n2", "size 3", "wsrep_cluster_size is 3", None),
            ),
        )

    def wait(self, name: str, *, timeout: float) -> LabView:
        self._called("wait", name, timeout=timeout)
        return self._find(name)

    def snapshots(self, name: str) -> list[SnapshotView]:
        self._called("snapshots", name)
        return self._world.snapshots

    def execute(
        self, name: str, node: str, argv: Sequence[str], *, stdin: bytes, timeout: float
    ) -> bytes:
        self._called("execute", name, node, list(argv), stdin=stdin, timeout=timeout)
        if argv[0] == "false":
            raise CommandFailed(["false"], 9, stderr="no luck", where=f"lab-{name}-{node}")
        return b"said\xff\n"

    def ssh(self, name: str, node: str) -> AbstractContextManager[Program]:
        self._called("ssh", name, node)
        if self._world.way:
            return nullcontext(Program(self._world.way))
        code = "import sys; print(*sys.argv[1:]); sys.exit(5)"
        return nullcontext(Program([sys.executable, "-c", code]))

    def console(self, name: str, node: str) -> Program:
        self._called("console", name, node)
        return Program(["true"])

    def bundle(self, name: str, to: IO[bytes], *, with_lab: bool = False, why: str = "") -> str:
        self._called("bundle", name, with_lab=with_lab, why=why)
        to.write(b"packed")
        return self._world.lacks_lab if with_lab else ""

    def logs(self, name: str, node: str, source: str, *, follow: bool, lines: int) -> Iterator[str]:
        self._called("logs", name, node, source, follow=follow, lines=lines)
        yield from ("one", "two\n")
        while follow:
            time.sleep(0.01)
            yield "more"

    def ca(self) -> Path:
        self._called("ca")
        return HERE

    def query(
        self, name: str, node: str | None, statement: str, seconds: float | None = None
    ) -> Rows:
        self._called("query", name, node, statement, *([] if seconds is None else [seconds]))
        return self._world.rows

    def results(self, name: str, node: str | None, text: str, *, database: str) -> Iterator[Rows]:
        self._called("results", name, node, text, database=database)
        yield from self._world.results or [self._world.rows]
        if error := self._world.fails.get("result"):
            raise error

    def everywhere(self, name: str, text: str, *, database: str) -> list[NodeResults]:
        self._called("everywhere", name, text, database=database)
        return self._world.everywhere

    def client(self, name: str, node: str | None, *, database: str) -> FakeClient:
        self._called("client", name, node, database=database)
        return FakeClient(self._world.log)

    def engines(self) -> list[EngineView]:
        self._called("engines")
        return [
            engine_view(),
            engine_view("percona:8.0", server="Percona Server 8.0", default=False, tested="",
                        packages=("Debian bookworm", "http://percona/ps-80/apt"),
                        build="unreachable", why="http://percona/ps-80/apt did not answer"),
            engine_view("mariadb:10.11", server="MariaDB 10.11", default=False, templates=("feed",),
                        formed_at=1795305600.0),
            engine_view("mysql:8.4", server="MySQL 8.4", default=False, tested="",
                        formed_at=1795305600.0),
        ]  # fmt: skip

    def images(self) -> list[ImageView]:
        self._called("images")
        return [image_view()]

    def image(self, which: str) -> ImageView:
        self._called("image", which)
        return image_view()

    def templates(self) -> list[TemplateView]:
        self._called("templates")
        return [template_view()]

    def datasets(self) -> list[DatasetView]:
        self._called("datasets")
        return [dataset_view("shop"), dataset_view("shop", 2)]

    def dataset(self, which: str) -> DatasetView:
        self._called("dataset", which)
        return dataset_view(which)

    def scan_dataset(self, which: str) -> list[PersonalColumn]:
        self._called("scan_dataset", which)
        return [PersonalColumn("shop.customers.mail", "an e-mail address", "email")]

    def _find(self, name: str) -> LabView:
        if name not in self._world.views:
            raise NotFound(f"there is no lab {name!r}", hint="`lab ls` lists them")
        return self._world.views[name]


class FakeLifecycle(Lifecycle):
    """Labs in memory; ``calls`` is what was asked of it, also written to FAKE_LOG."""

    def __init__(self, *names: str) -> None:
        self.views = {name: lab_view(name) for name in names}
        self.calls: list[tuple[Any, ...]] = []
        self.fails: dict[str, BaseException] = {}
        self.gc_report = GcReport(("lab old",), ("guest lab-x-n1: not recorded",))
        self.snapshots = [SnapshotView("origin", "origin", None)]
        self.rows = Rows(("a", "b"), ((1, None), (b"\xff", "x\ny")), 2)
        self.results: Sequence[Rows] = ()
        self.way: Sequence[str] = ()
        self.everywhere: list[NodeResults] = []
        self.findings = [Finding("kvm", "warn", "no", "TCG is used"), Finding("qemu", "ok", "7.2")]
        self.default_ttl: float | None = None
        self.pool = ""
        self.pooled: set[str] = set()
        """The labs that wait in pools of a service."""
        self.import_outcome = "imported"
        self.lacks_lab = ""
        self.refused: LabError | None = None
        self.kept_benches: list[BenchView | CompareView] = []
        self.upgraded = UpgradeView("a", "mariadb:11.8", (), 1.0, 2, 0, 0)
        self.host = HostView("tank/lab", "2.3.9", 3 << 30, 4 << 30, ("zfs create x",), (), "/c")

    def log(self, method: str, *args: object, **options: object) -> None:
        """Remember a call."""
        self.calls.append((method, *args, *([options] if options else [])))
        if path := os.environ.get("FAKE_LOG"):
            words = [a.lab if isinstance(a, DeleteLab) else a for a in args]
            with Path(path).open("a") as file:
                file.write(" ".join([method, *(a for a in words if isinstance(a, str))]) + "\n")

    def called(self, method: str) -> list[Any]:
        """What the method was called with, the last time."""
        return list([call for call in self.calls if call[0] == method][-1][1:])

    def settings(self, flags: Mapping[str, object]) -> Settings:
        home = Home(Path(str(flags.get("home") or "/nonexistent")))
        return Settings(
            home=home,
            owner="me",
            default_ttl=self.default_ttl,
            ready_timeout=77.0,
            pool=self.pool,
        )

    @contextmanager
    def open(self, settings: Settings, listener: Listener) -> Iterator[Session]:
        self.log("open", home=settings.home.root)
        yield FakeSession(self, listener)

    def init_host(self, settings: Settings, pool: str) -> HostView:
        self.log("init_host", pool, home=settings.home.root)
        return self.host

    def doctor(self, settings: Settings) -> list[Finding]:
        self.log("doctor", home=settings.home.root)
        return self.findings

    @contextmanager
    def benches(self, settings: Settings) -> Iterator[Benches]:
        """Those of ``kept_benches``."""
        self.log("benches", home=settings.home.root)
        with (
            TemporaryDirectory() as root,
            open_recorded(Settings(home=Home(Path(root)), owner="")) as context,
        ):
            for view in self.kept_benches:
                if isinstance(view, CompareView):
                    results.add_comparison(context, view, "a/b")
                else:
                    results.add_run(context, view)
            yield Benches(context)

    @contextmanager
    def tokens(self, settings: Settings) -> Iterator[Tokens]:
        """Those of an empty record."""
        self.log("tokens", home=settings.home.root)
        with (
            TemporaryDirectory() as root,
            open_recorded(Settings(home=Home(Path(root)), owner="")) as context,
        ):
            yield Kept(context)

    def recorded(self, settings: Settings) -> Recorded:
        self.log("recorded", home=settings.home.root)
        labs = {name: [n.name for n in view.nodes] for name, view in self.views.items()}
        snapshots = {name: [one.label for one in self.snapshots] for name in labs}
        return Recorded(
            labs, snapshots, ["mariadb", "mariadb-0123456789abcdef"], ["feedfacefeedface"]
        )


def slowly_undo(world: FakeLifecycle) -> None:
    """An undo step that takes FAKE_UNDO seconds."""
    world.log("undoing")
    time.sleep(float(os.environ.get("FAKE_UNDO", "0")))
    if os.environ.get("FAKE_UNDO_FAILS"):
        raise LabError("it does not go away")
    world.log("undone")


def test_the_fake_answers_to_every_call() -> None:
    """Protects the other tests from reaching the real lifecycle by a method added later."""
    for real, fake in ((Session, FakeSession), (Lifecycle, FakeLifecycle)):
        public = {
            name for name, _ in inspect.getmembers(real, inspect.isfunction) if name[0] != "_"
        }
        missing = {name for name in public if name not in vars(fake)}
        assert not missing


if __name__ == "__main__":
    if os.environ.get("FAKE_IGNORES_HUP"):
        signal.signal(signal.SIGHUP, signal.SIG_IGN)
    program(lifecycle=FakeLifecycle(*os.environ.get("FAKE_LABS", "").split()))
