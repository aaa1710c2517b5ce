"""A lab in a bundle: captured where it failed, opened elsewhere."""

from __future__ import annotations

import errno
import io
import json
from contextlib import ExitStack
from dataclasses import replace
from pathlib import Path

import pytest

from lab.bundle.packing import Parts
from lab.errors import CommandFailed, Conflict, InvalidSpec
from lab.lifecycle.archives.bundled_lab import bundle_with_lab, open_bundle
from lab.lifecycle.archives.snapshot_archive import export_snapshot
from lab.lifecycle.core.context import Context
from lab.lifecycle.labs import power
from lab.lifecycle.labs.bundle import bundle
from lab.lifecycle.labs.down import down
from lab.lifecycle.labs.query import query
from lab.lifecycle.labs.up import up
from lab.lifecycle.nodes.inspect import lab
from lab.lifecycle.snapshots import snapshot
from lab.locks.named import lock
from lab.names import GuestName
from lab.requests.archives import Destination, ExportArchive, ImportOptions, OpenBundle
from lab.views.labs import LabView
from tests.support.exchange_world import Side
from tests.support.lifecycle_world import named, nothing
from tests.unit.lifecycle.labs.test_bundle import unpacked
from tests.unit.lifecycle.promises.test_killed import sweep
from tests.unit.lifecycle.views.test_truth import KINDS


@pytest.fixture(autouse=True)
def one_round(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("lab.bundle.questions.APART", 0.0)


@pytest.fixture
def here(tmp_path: Path) -> Side:
    side = Side(tmp_path / "here")
    with side.open() as ctx:
        up(ctx, named("shop"))
        query(ctx, "shop", "n1", "CREATE TABLE t (a INT)")
        query(ctx, "shop", "n1", "INSERT INTO t VALUES (1)")
    return side


@pytest.fixture
def there(tmp_path: Path) -> Side:
    return Side(tmp_path / "there")


def bundled(side: Side, lacks: str = "") -> bytes:
    to = io.BytesIO()
    with side.open() as ctx:
        view = bundle_with_lab(ctx, "shop", to, why="the test failed")
    assert lacks in view.lacks_lab
    assert bool(lacks) == bool(view.lacks_lab)
    return to.getvalue()


def opened(ctx: Context, content: bytes, timeout: float = 20.0, *, ram: bool = True) -> LabView:
    asked = OpenBundle(how=ImportOptions(ram=ram), ttl=3600.0)
    return open_bundle(ctx, io.BytesIO(content), asked, timeout=timeout)


def rows(ctx: Context, name: str) -> list[int]:
    return [int(str(row[0])) for row in query(ctx, name, "n2", "SELECT a FROM t").rows]


@pytest.mark.parametrize("ram", [True, False])
def test_it_continues_elsewhere(here: Side, there: Side, ram: bool) -> None:
    """Protects who looks for a cause: the cluster itself, as it was, and nothing stays of it."""
    content = bundled(here)
    with there.open() as ctx:
        view = opened(ctx, content, ram=ram)
        assert (view.name, view.state) == ("shop", "ready")
        assert view.started == ("warm" if ram else "cold")
        assert view.expires_at is not None
        assert rows(ctx, "shop") == [1]
    assert any("the lab shop as of" in note and "the test failed" in note for note in there.notes)
    with here.open() as ctx:
        assert [one.name for one in snapshot.snapshots(ctx, "shop")] == ["origin"]
        assert lab(ctx, "shop").state == "ready"


def test_one_with_a_node_that_is_stopped(here: Side, there: Side) -> None:
    """Protects the usual failure: a node is gone, so there is no RAM, and the disks are there."""
    with here.open() as ctx:
        power.stop(ctx, "shop", node="n2", force=True)
    content = bundled(here)
    with there.open() as ctx:
        view = opened(ctx, content)
        assert (view.started, view.state) == ("cold", "ready")
        assert "without RAM" in view.why_cold


def test_one_that_does_not_get_ready_stays(here: Side, there: Side, tmp_path: Path) -> None:
    """Protects a failed cluster from the removal of what fails: it is what was to be looked at."""
    content = bundled(here)
    slow = replace(there, own_seconds=500.0)
    with slow.open() as ctx:
        view = opened(ctx, content, timeout=5.0, ram=False)
        assert (view.name, view.state) == ("shop", "failed")
        assert view.expires_at is not None
        guests = ctx.hypervisor.guests()
        assert {GuestName("lab-shop-n1"), GuestName("lab-shop-n2")} <= set(guests)
        assert any("shop is kept as it is" in note for note in slow.notes)
        content = bundled_of_failed(ctx)
        down(ctx, "shop")
    with Side(tmp_path / "third").open() as ctx:
        assert opened(ctx, content).state == "ready"


def bundled_of_failed(ctx: Context) -> bytes:
    """One whose creation failed can be captured as well."""
    to = io.BytesIO()
    assert bundle_with_lab(ctx, "shop", to).lacks_lab == ""
    return to.getvalue()


def test_one_that_cannot_be_started_is_no_failed_lab(here: Side, there: Side) -> None:
    """Protects from a success without a guest: a host that cannot start QEMU says so."""
    content = bundled(here)

    def refuse(step: str) -> None:
        if step == "hypervisor.start":
            raise CommandFailed(["qemu"], 1, stderr="no memory")

    with there.open(refuse) as ctx:
        with pytest.raises(CommandFailed):
            opened(ctx, content, ram=False)
        assert ctx.store.labs.all() == []


def test_a_lab_that_cannot_be_exported_leaves_the_evidence(here: Side) -> None:
    """Protects who loses the lab with the next line: what can be written is."""
    to = io.BytesIO()

    def busy(step: str) -> None:
        if step == "bundle.end":
            held.enter_context(lock(ctx.home, "lab", "shop"))

    with ExitStack() as held, here.open(busy) as ctx:
        view = bundle_with_lab(ctx, "shop", to)
    assert "shop" in view.lacks_lab
    said = json.loads(unpacked(to.getvalue())["manifest.json"])
    assert said["missing"] == [{"what": "the lab", "why": view.lacks_lab}]


class Breaking:
    """Takes so many bytes of an archive, and fails."""

    def __init__(self, to: Parts, left: int, error: Exception) -> None:
        self._to = to
        self._left = left
        self._error = error

    def write(self, data: bytes, /) -> int:
        if len(data) > self._left:
            self._to.write(data[: self._left])
            raise self._error
        self._left -= len(data)
        return self._to.write(data)

    def flush(self) -> None:
        self._to.flush()


SENDING = CommandFailed(["zfs", "send"], 1, stderr="cannot send: I/O error")
READING = OSError(errno.EIO, "I/O error", "disk.qcow2")


@pytest.mark.parametrize(
    ("parts", "error", "why"),
    [
        (0, SENDING, "cannot send: I/O error"),
        (1, SENDING, "cannot send: I/O error"),
        (3, SENDING, "cannot send: I/O error"),
        (1, READING, "disk.qcow2"),
    ],
)
def test_an_export_that_fails_half_way_is_in_the_manifest(
    here: Side,
    there: Side,
    monkeypatch: pytest.MonkeyPatch,
    parts: int,
    error: Exception,
    why: str,
) -> None:
    """Protects who gets the file: it says itself that the lab is not all there, and why."""
    monkeypatch.setattr("lab.bundle.packing.PART", 1000)
    to = io.BytesIO()

    def add_lab(label: str, out: Parts) -> None:
        sink = Destination(sink=Breaking(out, parts * 1000 + 10, error))
        export_snapshot(ctx, ExportArchive(kind="snapshot", lab="shop", which=label, to=sink))

    with here.open() as ctx:
        view = bundle(ctx, "shop", to, add_lab=add_lab)
    assert why in view.lacks_lab
    packed = unpacked(to.getvalue(), but="lab/")
    said = json.loads(packed["manifest.json"])
    assert said["missing"][0]["what"] == "the lab"
    assert why in said["missing"][0]["why"]
    assert why in packed["index.html"]
    written = {path for path in said["files"] if path.startswith("lab/")}
    assert len(written) == parts
    assert set(said["files"]) - written == set(packed) - {"manifest.json", "index.html"}
    with there.open() as ctx:
        with pytest.raises(InvalidSpec, match=r"has no (complete )?lab in it: .*I/O error"):
            opened(ctx, to.getvalue())
        assert ctx.store.labs.all() == []


class Full(io.BytesIO):
    """A file on a file system that is full once, after 20,000 bytes."""

    full = False

    def write(self, data: bytes, /) -> int:  # type: ignore[override]
        if not self.full and self.tell() > 20_000:
            self.full = True
            raise OSError(errno.ENOSPC, "no space")
        return super().write(data)


def test_a_bundle_that_cannot_be_written_is_an_error(
    here: Side, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Protects from a file that says its lab could not be read, where it is the file that ends."""
    monkeypatch.setattr("lab.bundle.packing.PART", 1000)
    with here.open() as ctx, pytest.raises(OSError, match="no space"):
        bundle_with_lab(ctx, "shop", Full())


def test_what_a_kill_leaves_of_a_failed_lab_goes(here: Side) -> None:
    """Protects disks: the snapshot of a bundle ends also where the lab is never ready again."""
    with here.open() as ctx:
        ctx.store.labs.update("shop", state="failed")
    assert here.killed(lambda ctx: bundle_with_lab(ctx, "shop", io.BytesIO()), "bundle.begin")
    with here.open() as ctx:
        (left,) = [one for one in snapshot.snapshots(ctx, "shop") if one.name == "bundle"]
        snapshot.prolong(ctx, "shop", left.label, -1.0)
        assert snapshot.is_due(ctx, ctx.store.labs.get("shop"))
        assert snapshot.rotate(ctx, "shop") == [f"removed shop@{left.label}"]
        ctx.store.labs.update("shop", state="ready")


@pytest.mark.parametrize(
    "kind", [pytest.param(kind, marks=() if kind == "dr" else pytest.mark.rare) for kind in KINDS]
)
def test_of_each_topology(tmp_path: Path, there: Side, kind: str) -> None:
    """Protects proxies, arbiters and links: each node is in the bundle, and opened from it."""
    to = io.BytesIO()
    with Side(tmp_path / "here").open() as ctx:
        before = up(ctx, KINDS[kind])
        assert bundle_with_lab(ctx, "shop", to).lacks_lab == ""
    found = unpacked(to.getvalue(), but="lab/")
    nodes = {path.split("/")[1] for path in found if path.startswith("nodes/")}
    assert nodes == {node.name for node in before.nodes}
    with there.open() as ctx:
        view = opened(ctx, to.getvalue())
        assert (view.state, view.started, view.blueprint) == ("ready", "warm", before.blueprint)
        assert [(n.name, n.role) for n in view.nodes] == [(n.name, n.role) for n in before.nodes]


def test_where_it_cannot_be_captured_the_rest_is_there(here: Side, there: Side) -> None:
    """Protects the evidence: another command works on the lab."""
    with here.open() as ctx, lock(ctx.home, "lab", "shop"):
        to = io.BytesIO()
        view = bundle_with_lab(ctx, "shop", to)
    assert "shop" in view.lacks_lab
    assert "shop" in json.loads(unpacked(to.getvalue())["manifest.json"])["missing"][0]["why"]
    with there.open() as ctx, pytest.raises(InvalidSpec, match=r"has no lab in it: .*shop"):
        opened(ctx, to.getvalue())


def test_a_name_that_is_taken(here: Side) -> None:
    """Protects labs that are there: the lab of a bundle gets a number, or is refused by name."""
    content = bundled(here)
    with here.open() as ctx:
        assert opened(ctx, content).name == "shop-2"
        asked = OpenBundle(name="shop")
        with pytest.raises(Conflict, match="lab shop exists"):
            open_bundle(ctx, io.BytesIO(content), asked, timeout=5.0)


@pytest.mark.rare
def test_a_command_that_is_killed(here: Side) -> None:
    """Protects the host: the snapshot of a bundle expires, and nothing else stays."""

    def forget(ctx: Context) -> None:
        found = [one.label for one in snapshot.snapshots(ctx, "shop") if one.name == "bundle"]
        assert all(
            one.expires_at is not None
            for one in snapshot.snapshots(ctx, "shop")
            if one.label in found
        )
        snapshot.remove(ctx, "shop", found)

    sweep(
        here,
        nothing,
        lambda ctx: bundle_with_lab(ctx, "shop", io.BytesIO()),
        {"storage.snapshot", "storage.persist"},
        again=forget,
    )
