"""Which verb performs a request: for a command on this host, and for the jobs of a service.

Each verb is imported when it is called: a command does not wait for what only others need.
"""

from __future__ import annotations

import sys
from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager
from typing import TYPE_CHECKING, Any, BinaryIO

from lab.lifecycle.core.context import Context
from lab.lifecycle.core.waiting import refuse_waiting
from lab.request import Request
from lab.requests.archives import ExportArchive, ImportArchive, ImportSnapshot, OpenBundle
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
    EnsureLab,
    ExpireLab,
    FillPool,
    LabRequest,
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
    DeleteSnapshot,
    DeleteSnapshots,
    PruneSnapshots,
    TakeSnapshot,
)

if TYPE_CHECKING:
    from lab.exchange.talk import Speaker
    from lab.views.archives import ExportView, ImportView
    from lab.views.benches import BenchView, CompareView
    from lab.views.catalog import EngineView, ImageView, TemplateView
    from lab.views.datasets import DatasetView
    from lab.views.host import GcReport
    from lab.views.labs import LabView
    from lab.views.snapshots import SnapshotView
    from lab.views.upgrades import UpgradeView


def perform(ctx: Context, request: Request, *, timeout: float | None = None) -> Any:
    """Perform a request, and return what its verb does; raises as that.

    ``timeout``: seconds that nodes may take to get ready; None: those of the settings.
    """
    if isinstance(request, LabRequest):
        if not isinstance(request, DeleteLab | ExpireLab):
            refuse_waiting(ctx, request.lab)
        _wake_for(ctx, request)
    return VERBS[type(request)](ctx, request, timeout or ctx.settings.ready_timeout)


def _wake_for(ctx: Context, request: LabRequest) -> None:
    """Wake a lab that is asleep for a request that needs its nodes; what ends them waits for that.

    A snapshot wakes it itself, also for others than this request.
    """
    from lab.lifecycle.nodes.asleep import awake, let_wake

    match request:
        case StartLab() | Promote() | UpgradeLab():
            awake(ctx, request.lab)
        case RollBack(node=node) if node:
            awake(ctx, request.lab)
        case StopLab(force=False):
            awake(ctx, request.lab, clocks=False)
        case StopLab() | DeleteLab() | RollBack() | ResetLab():
            let_wake(ctx, request.lab)


def _create(ctx: Context, asked: CreateLab, timeout: float) -> LabView:
    from lab.lifecycle.labs.up import up

    return up(ctx, asked, timeout=timeout)


def _ensure(ctx: Context, asked: EnsureLab, timeout: float) -> LabView:
    from lab.lifecycle.labs.ensure import ensure

    return ensure(ctx, asked, timeout=timeout)


def _change(ctx: Context, asked: ChangeLab, _: float) -> LabView:
    from lab.lifecycle.labs.lease import change

    return change(ctx, asked)


def _delete(ctx: Context, asked: DeleteLab, _: float) -> bool:
    from lab.lifecycle.labs.down import down

    return down(ctx, asked.lab, force=asked.force, defer=asked.defer)


def _start(ctx: Context, asked: StartLab, timeout: float) -> LabView:
    from lab.lifecycle.labs.start import start, start_node

    if asked.node:
        return start_node(ctx, asked.lab, asked.node, timeout=timeout)
    return start(ctx, asked.lab, timeout=timeout)


def _stop(ctx: Context, asked: StopLab, _: float) -> LabView:
    from lab.lifecycle.labs.power import stop

    return stop(ctx, asked.lab, node=asked.node or None, force=asked.force)


def _sleep(ctx: Context, asked: SleepLab, _: float) -> LabView:
    from lab.lifecycle.labs.sleep import sleep

    return sleep(ctx, asked.lab)


def _wake(ctx: Context, asked: WakeLab, _: float) -> LabView:
    from lab.lifecycle.labs.sleep import wake

    return wake(ctx, asked.lab)


def _promote(ctx: Context, asked: Promote, timeout: float) -> LabView:
    from lab.lifecycle.labs.promote import promote

    return promote(ctx, asked.lab, asked.node, force=asked.force, timeout=timeout)


def _upgrade(ctx: Context, asked: UpgradeLab, timeout: float) -> UpgradeView:
    from lab.lifecycle.labs.upgrade import upgrade

    return upgrade(ctx, asked, timeout=timeout)


def _roll_back(ctx: Context, asked: RollBack, timeout: float) -> LabView:
    from lab.lifecycle.labs.rollback import rollback

    return rollback(ctx, asked, timeout=timeout)


def _reset(ctx: Context, asked: ResetLab, timeout: float) -> LabView:
    from lab.lifecycle.labs.rollback import reset

    return reset(ctx, asked, timeout=timeout)


def _make_standby(ctx: Context, asked: MakeStandby, timeout: float) -> LabView:
    from lab.lifecycle.labs import standby

    return standby.make(ctx, asked, timeout=timeout)


def _drop_standby(ctx: Context, asked: DropStandby, _: float) -> LabView:
    from lab.lifecycle.labs import standby

    return standby.drop(ctx, asked.lab)


def _make_ahead(ctx: Context, _: MakeAhead, timeout: float) -> list[LabView]:
    from lab.lifecycle.service import ahead

    return ahead.make(ctx, timeout=timeout)


def _drop_ahead(ctx: Context, _: DropAhead, timeout: float) -> list[LabView]:
    from lab.lifecycle.service import ahead

    return ahead.drop(ctx, timeout=min(timeout, ahead.UNDO))


def _branch(ctx: Context, asked: BranchLab, timeout: float) -> list[LabView]:
    from lab.lifecycle.labs.branch import branch

    return branch(ctx, asked, timeout=timeout)


def _take_snapshot(ctx: Context, asked: TakeSnapshot, _: float) -> SnapshotView:
    from lab.lifecycle.snapshots import snapshot

    return snapshot.take(ctx, asked)


def _change_snapshot(ctx: Context, asked: ChangeSnapshot, _: float) -> SnapshotView:
    from lab.lifecycle.snapshots import snapshot

    return snapshot.protect(ctx, asked.lab, asked.label, protected=asked.protected)


def _delete_snapshot(ctx: Context, asked: DeleteSnapshot, _: float) -> None:
    from lab.lifecycle.snapshots import snapshot

    snapshot.remove(ctx, asked.lab, [asked.label], force=asked.force)


def _delete_snapshots(ctx: Context, asked: DeleteSnapshots, _: float) -> None:
    from lab.lifecycle.snapshots import snapshot

    snapshot.remove(ctx, asked.lab, asked.labels, force=asked.force)


def _prune_snapshots(ctx: Context, asked: PruneSnapshots, _: float) -> list[str]:
    from lab.lifecycle.snapshots import snapshot

    return snapshot.prune(ctx, asked.lab)


def _build_image(ctx: Context, asked: BuildImage, _: float) -> ImageView:
    from lab.lifecycle.images import image

    return image.build(ctx, asked.recipe, rebuild=asked.rebuild)


def _delete_image(ctx: Context, asked: DeleteImage, _: float) -> None:
    from lab.lifecycle.images import image

    image.remove(ctx, asked.which)


def _build_template(ctx: Context, asked: BuildTemplate, _: float) -> TemplateView:
    from lab.lifecycle.captures import template

    return template.build(ctx, asked, with_ram=asked.with_ram)


def _delete_template(ctx: Context, asked: DeleteTemplate, _: float) -> None:
    from lab.lifecycle.captures import template

    template.remove(ctx, asked.key)


def _create_dataset(ctx: Context, asked: CreateDataset, _: float) -> DatasetView:
    from lab.lifecycle.datasets import dataset

    return dataset.create(ctx, asked)


def _refresh_dataset(ctx: Context, asked: RefreshDataset, _: float) -> DatasetView:
    from lab.lifecycle.datasets import dataset

    return dataset.refresh(ctx, asked.name, engine=asked.engine, keep=asked.keep, force=asked.force)


def _delete_dataset(ctx: Context, asked: DeleteDataset, _: float) -> bool:
    from lab.lifecycle.datasets import dataset

    return dataset.remove(ctx, asked.which, defer=asked.defer)


def _export(ctx: Context, asked: ExportArchive, _: float) -> ExportView:
    from lab.lifecycle.archives import export, snapshot_archive

    if asked.kind == "snapshot":
        return snapshot_archive.export_snapshot(ctx, asked)
    return export.export(ctx, asked)


def _import(ctx: Context, asked: ImportArchive, _: float) -> ImportView:
    from lab.lifecycle.archives.import_archive import import_archive

    with _arriving(asked) as (source, speaker):
        return import_archive(ctx, asked.kind, source, asked.how, speaker=speaker)


def _import_snapshot(ctx: Context, asked: ImportSnapshot, timeout: float) -> LabView:
    from lab.lifecycle.archives.snapshot_archive import import_snapshot

    with _arriving(asked) as (source, speaker):
        return import_snapshot(ctx, source, asked, timeout=timeout, speaker=speaker)


def _open(ctx: Context, asked: OpenBundle, timeout: float) -> LabView:
    from lab.lifecycle.archives.bundled_lab import open_bundle

    with _arriving(asked) as (source, _):
        return open_bundle(ctx, source, asked, timeout=timeout)


@contextmanager
def _arriving(asked: ImportArchive) -> Iterator[tuple[BinaryIO, Speaker | None]]:
    """The archive, and who hears what becomes of it."""
    from lab.exchange import files, talk

    with files.source(asked.where) as source:
        yield source, talk.Speaker(sys.stdout.buffer) if asked.talk else None


def _collect_garbage(ctx: Context, asked: CollectGarbage, _: float) -> GcReport:
    from lab.lifecycle.host.gc import gc

    return gc(ctx, asked)


def _add_engine(ctx: Context, asked: AddEngine, _: float) -> EngineView:
    from lab.lifecycle.host import builds

    return builds.add(ctx, asked)


def _remove_engine(ctx: Context, asked: RemoveEngine, _: float) -> None:
    from lab.lifecycle.host import builds

    builds.remove(ctx, asked)


def _run_bench(ctx: Context, asked: RunBench, _: float) -> BenchView:
    from lab.lifecycle.bench.run import run

    return run(ctx, asked)


def _compare_benches(ctx: Context, asked: CompareBench, timeout: float) -> CompareView:
    from lab.lifecycle.bench.compare import compare

    return compare(ctx, asked, timeout=timeout)


VERBS: Mapping[type[Request], Callable[[Context, Any, float], Any]] = {
    CreateLab: _create,
    EnsureLab: _ensure,
    FillPool: _create,
    ChangeLab: _change,
    DeleteLab: _delete,
    StartLab: _start,
    StopLab: _stop,
    SleepLab: _sleep,
    WakeLab: _wake,
    Promote: _promote,
    UpgradeLab: _upgrade,
    RollBack: _roll_back,
    ResetLab: _reset,
    MakeStandby: _make_standby,
    DropStandby: _drop_standby,
    MakeAhead: _make_ahead,
    DropAhead: _drop_ahead,
    BranchLab: _branch,
    TakeSnapshot: _take_snapshot,
    ChangeSnapshot: _change_snapshot,
    DeleteSnapshot: _delete_snapshot,
    DeleteSnapshots: _delete_snapshots,
    PruneSnapshots: _prune_snapshots,
    BuildImage: _build_image,
    DeleteImage: _delete_image,
    BuildTemplate: _build_template,
    DeleteTemplate: _delete_template,
    CreateDataset: _create_dataset,
    RefreshDataset: _refresh_dataset,
    DeleteDataset: _delete_dataset,
    CollectGarbage: _collect_garbage,
    AddEngine: _add_engine,
    RemoveEngine: _remove_engine,
    ExportArchive: _export,
    ImportArchive: _import,
    ImportSnapshot: _import_snapshot,
    OpenBundle: _open,
    RunBench: _run_bench,
    CompareBench: _compare_benches,
}
"""The verb of each request, with the seconds that nodes may take to get ready."""
