"""What the verbs of the command line can ask for, on this host or of a service elsewhere.

``Session`` is what both offer (``lab.cli.backend.local``, ``lab.cli.backend.remote``). A verb whose
request needs the host of the labs itself opens it by ``App.open_here``, which refuses before
anything is sent to a service.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from contextlib import AbstractContextManager
from dataclasses import field
from pathlib import Path
from typing import IO, TYPE_CHECKING, Protocol, overload

from lab.values import dataclass

if TYPE_CHECKING:
    from lab.cli.backend.programs import Program, SqlClient
    from lab.observe.ways import NodeResults, Rows
    from lab.requests.archives import ExportArchive, ImportArchive, ImportSnapshot
    from lab.requests.benches import CompareBench, RunBench
    from lab.requests.datasets import CreateDataset, DeleteDataset, RefreshDataset
    from lab.requests.host import AddEngine, CollectGarbage, RemoveEngine
    from lab.requests.images import BuildImage, BuildTemplate, DeleteImage, DeleteTemplate
    from lab.requests.labs import (
        BranchLab,
        ChangeLab,
        CreateLab,
        DeleteLab,
        DropAhead,
        DropStandby,
        MakeAhead,
        MakeStandby,
        Promote,
        ResetLab,
        RollBack,
        SleepLab,
        StartLab,
        StopLab,
        UpgradeLab,
        WakeLab,
    )
    from lab.requests.snapshots import (
        ChangeSnapshot,
        DeleteSnapshots,
        PruneSnapshots,
        TakeSnapshot,
    )
    from lab.views.archives import ExportView, ImportView
    from lab.views.benches import BenchView, CompareView
    from lab.views.catalog import EngineView, ImageView, TemplateView
    from lab.views.datasets import DatasetView, PersonalColumn
    from lab.views.host import GcReport
    from lab.views.labs import LabStatus, LabView, Preview
    from lab.views.snapshots import SnapshotView
    from lab.views.upgrades import UpgradeView


@dataclass(frozen=True)
class Recorded:
    """Names that Tab offers: labs with their nodes, images by recipe and key, templates.

    ``snapshots``: their labels, by lab; ``datasets``: by name and by version; ``engines``: added
    ones, with their families.
    """

    labs: Mapping[str, Sequence[str]] = field(default_factory=dict)
    snapshots: Mapping[str, Sequence[str]] = field(default_factory=dict)
    images: Sequence[str] = ()
    templates: Sequence[str] = ()
    datasets: Sequence[str] = ()
    engines: Mapping[str, str] = field(default_factory=dict)


class Session(Protocol):
    """The verbs that work on this host and against a service.

    ``run`` performs a request; the other methods look at something, or into a node. They raise as
    the functions of ``lab.lifecycle`` and the methods of ``lab.client.Client`` do. Timeouts are
    in seconds; ``run`` has that of the settings, or none against a service, unless one is given. A
    removal returns whether all of it is gone, that of snapshots a line about each. The standby
    after a reset is made in the background, on this host by a process that it starts.
    """

    @overload
    def run(self, request: BranchLab, *, timeout: float | None = None) -> list[LabView]: ...
    @overload
    def run(
        self,
        request: CreateLab
        | StartLab
        | StopLab
        | SleepLab
        | WakeLab
        | Promote
        | RollBack
        | ResetLab
        | MakeStandby
        | DropStandby,
        *,
        timeout: float | None = None,
    ) -> LabView: ...
    @overload
    def run(self, request: DeleteLab | DeleteDataset) -> bool: ...
    @overload
    def run(
        self, request: MakeAhead | DropAhead, *, timeout: float | None = None
    ) -> list[LabView]: ...
    @overload
    def run(self, request: ChangeLab) -> LabView: ...
    @overload
    def run(self, request: TakeSnapshot | ChangeSnapshot) -> SnapshotView: ...
    @overload
    def run(self, request: PruneSnapshots) -> list[str]: ...
    @overload
    def run(self, request: BuildImage) -> ImageView: ...
    @overload
    def run(self, request: BuildTemplate) -> TemplateView: ...
    @overload
    def run(self, request: CreateDataset | RefreshDataset) -> DatasetView: ...
    @overload
    def run(self, request: DeleteImage | DeleteTemplate | DeleteSnapshots) -> None: ...
    @overload
    def run(self, request: CollectGarbage) -> GcReport: ...
    @overload
    def run(self, request: AddEngine) -> EngineView: ...
    @overload
    def run(self, request: RemoveEngine) -> None: ...
    @overload
    def run(self, request: ImportSnapshot, *, timeout: float) -> LabView: ...
    @overload
    def run(self, request: ExportArchive) -> ExportView: ...
    @overload
    def run(self, request: ImportArchive) -> ImportView: ...
    @overload
    def run(self, request: UpgradeLab, *, timeout: float | None = None) -> UpgradeView: ...
    @overload
    def run(self, request: RunBench) -> BenchView: ...
    @overload
    def run(self, request: CompareBench, *, timeout: float | None = None) -> CompareView: ...

    def preview(self, request: CreateLab) -> Preview:
        """What the request would create, and from which image and template."""

    def take(self, request: CreateLab) -> LabView | None:
        """A lab that was made ahead and is what the request asks for, if there is one."""

    def make_ahead(self, request: CreateLab) -> None:
        """Have the next labs like a new one made ahead, in a process that outlives this one.

        Where the settings of this host ask for that; it fails with a note.
        """

    def names(self, *, waiting: bool = False) -> list[str]:
        """The names of all labs, including those that are not in the state database.

        ``waiting``: also of those that wait until somebody takes them.
        """

    def labs(self) -> list[LabView]:
        """All labs."""

    def lab(self, name: str) -> LabView:
        """One lab."""

    def status(self, name: str) -> LabStatus:
        """One lab, and which requirements its nodes meet now."""

    def wait(self, name: str, *, timeout: float) -> LabView:
        """Wait until a lab is ready."""

    def snapshots(self, name: str) -> list[SnapshotView]:
        """The snapshots of a lab, oldest first."""

    def execute(
        self, name: str, node: str, argv: Sequence[str], *, stdin: bytes, timeout: float
    ) -> bytes:
        """Run a program in a node, as root, and return its output."""

    def ssh(self, name: str, node: str) -> AbstractContextManager[Program]:
        """The program that opens a shell in a node; usable for as long as the block lasts."""

    def console(self, name: str, node: str) -> Program:
        """The program that connects to a node's console."""

    def bundle(self, name: str, to: IO[bytes], *, with_lab: bool = False, why: str = "") -> str:
        """Write what is known of a lab as a bundle; ``to`` stays open.

        ``with_lab``: with the lab itself; returns why that is not in it, else an empty text.
        """

    def logs(self, name: str, node: str, source: str, *, follow: bool, lines: int) -> Iterator[str]:
        """The last lines of a node's log; with ``follow`` also each new one."""

    def ca(self) -> Path:
        """The file with the certificate that clients check database servers with."""

    def query(
        self, name: str, node: str | None, statement: str, seconds: float | None = None
    ) -> Rows:
        """Run one statement; within ``seconds`` its answer may have a mebibyte at most."""

    def results(self, name: str, node: str | None, text: str, *, database: str) -> Iterator[Rows]:
        """Run statements; each of their results as it comes."""

    def everywhere(self, name: str, text: str, *, database: str) -> list[NodeResults]:
        """Run statements on all nodes with a server, at the same time."""

    def client(self, name: str, node: str | None, *, database: str) -> SqlClient:
        """The client program for a lab."""

    def engines(self) -> list[EngineView]:
        """All engines, each with its series."""

    def images(self) -> list[ImageView]:
        """All images."""

    def image(self, which: str) -> ImageView:
        """One image, by key or recipe."""

    def templates(self) -> list[TemplateView]:
        """All templates."""

    def datasets(self) -> list[DatasetView]:
        """All versions of all datasets."""

    def dataset(self, which: str) -> DatasetView:
        """One version, the latest unless ``which`` says which."""

    def scan_dataset(self, which: str) -> list[PersonalColumn]:
        """The columns that look personal and that no rule covers."""
