"""Snapshots of labs go to another installation, and labs there have what was in them."""

from __future__ import annotations

import io
import json
import time
from contextlib import suppress
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest

from lab.errors import Busy, Conflict, HostUnfit, InvalidSpec, LabError, NotFound, RestoreFailed
from lab.exchange.frames import FrameReader, Sink
from lab.exchange.header import Header
from lab.exchange.receiving import begin
from lab.exchange.talk import Speaker
from lab.fake.hypervisor import FakeHypervisor
from lab.hypervisor import Capabilities
from lab.lifecycle.archives.snapshot_archive import export_snapshot, import_snapshot
from lab.lifecycle.captures import template
from lab.lifecycle.core.context import Context
from lab.lifecycle.host.catalog import templates
from lab.lifecycle.host.gc import gc
from lab.lifecycle.images import image
from lab.lifecycle.labs import power
from lab.lifecycle.labs.branch import branch
from lab.lifecycle.labs.down import down
from lab.lifecycle.labs.query import query
from lab.lifecycle.labs.rollback import rollback
from lab.lifecycle.labs.start import start
from lab.lifecycle.labs.up import up
from lab.lifecycle.nodes.inspect import lab
from lab.lifecycle.snapshots import snapshot
from lab.names import CaptureRef, GuestName, Owner, template_ref
from lab.progress import Event, Progress
from lab.requests.archives import Destination, ExportArchive, ImportOptions, ImportSnapshot
from lab.requests.host import CollectGarbage
from lab.requests.labs import BranchLab, RollBack
from lab.requests.snapshots import TakeSnapshot
from lab.storage.overwrite import GRAIN, overwrite
from lab.units import MIB
from lab.views.labs import LabView
from tests.support import mixed
from tests.support.exchange_world import Side, as_it_was, import_options, read, rewritten
from tests.support.lifecycle_world import Hook, at, ignore, named, nothing, raising
from tests.unit.lifecycle.archives.test_exchange import STORES
from tests.unit.lifecycle.promises.test_killed import sweep

UNUSED = CollectGarbage(unused=True)

LATER = 1000.0


@pytest.fixture
def here(tmp_path: Path) -> Side:
    side = Side(tmp_path / "here")
    with side.open() as ctx:
        up(ctx, named("shop"))
        query(ctx, "shop", "n1", "CREATE TABLE t (a INT)")
        write(ctx, "shop", 1)
    return side


@pytest.fixture
def there(tmp_path: Path) -> Side:
    return Side(tmp_path / "there")


RESUMED = ImportSnapshot(how=ImportOptions(resume=True))


def write(ctx: Context, name: str, value: int) -> None:
    query(ctx, name, "n1", f"INSERT INTO t VALUES ({value})")


def rows(ctx: Context, name: str) -> list[int]:
    return [int(str(row[0])) for row in query(ctx, name, "n2", "SELECT a FROM t").rows]


def taken(side: Side, name: str = "mine", **how: Any) -> str:
    """A snapshot of shop; its label."""
    with side.open() as ctx:
        return snapshot.take(ctx, TakeSnapshot(lab="shop", name=name, **how)).label


def of_shop(label: str, to: Sink, **more: Any) -> ExportArchive:
    """The request of an archive of a snapshot."""
    sent = Destination(sink=to)
    return ExportArchive(**{"kind": "snapshot", "lab": "shop", "which": label, "to": sent, **more})


def exported(side: Side, label: str = "mine", name: str = "shop", **options: Any) -> bytes:
    """The archive of a snapshot."""
    to = io.BytesIO()
    with side.open() as ctx:
        export_snapshot(ctx, of_shop(label, to, lab=name, **options))
    return to.getvalue()


def imported(
    side: Side,
    archive: bytes,
    name: str = "",
    hook: Hook = ignore,
    speaker: Speaker | None = None,
    **options: Any,
) -> LabView:
    """The lab that is made of it; ``options``: of the import and of the lab."""
    with side.open(hook) as ctx:
        how = import_options(options)
        asked = ImportSnapshot(how=how, name=name, **options)
        return import_snapshot(ctx, io.BytesIO(archive), asked, timeout=20.0, speaker=speaker)


def header_of(archive: bytes) -> Header:
    return begin(FrameReader(io.BytesIO(archive)))


def test_a_lab_continues_elsewhere(here: Side, there: Side) -> None:
    """Its data, warm; password, ports and lease are its own."""
    label = taken(here)
    with here.open() as ctx:
        write(ctx, "shop", 2)
        before = lab(ctx, "shop")
    archive = exported(here)
    view = imported(there, archive, warm_only=True, ttl=3600.0)
    assert (view.name, view.state, view.started, view.why_cold) == ("shop", "ready", "warm", "")
    assert view.password != before.password
    assert view.expires_at is not None
    assert view.expires_at > time.time() + LATER
    with there.open() as ctx:
        assert rows(ctx, "shop") == [1]
        write(ctx, "shop", 3)
        assert rows(ctx, "shop") == [1, 3]
        (found,) = templates(ctx)
        assert (found.key, found.warm, found.source) == (view.template, True, f"shop@{label}")
        assert {r.state for r in ctx.store.resources.of(Owner("template", found.key))} == {"made"}
        assert list(ctx.home.imports.iterdir()) == []
    with here.open() as ctx:
        assert rows(ctx, "shop") == [1, 2]


def test_no_request_for_a_fresh_cluster_is_given_data(here: Side, there: Side) -> None:
    taken(here)
    view = imported(there, exported(here))
    with there.open() as ctx:
        fresh = up(ctx, named("fresh"))
        assert fresh.template != view.template
        assert not ctx.store.templates.get(fresh.template or "").source
        with pytest.raises(LabError):
            rows(ctx, "fresh")


def test_it_is_a_lab_like_any_other(here: Side, there: Side) -> None:
    """Rollback to its origin and to a snapshot, branches, and on to a third host."""
    taken(here)
    imported(there, exported(here))
    with there.open() as ctx:
        write(ctx, "shop", 2)
        snapshot.take(ctx, TakeSnapshot(lab="shop", name="second"))
        write(ctx, "shop", 3)
        assert rollback(ctx, RollBack(lab="shop", to="second"), timeout=20.0).started == "warm"
        assert rows(ctx, "shop") == [1, 2]
        (child,) = branch(ctx, BranchLab(lab="shop", at="second"), timeout=20.0)
        assert child.started == "warm"
        assert rollback(ctx, RollBack(lab=child.name), timeout=20.0).started == "warm"
        assert rows(ctx, child.name) == [1, 2]
        for cold in (False, True):
            view = rollback(ctx, RollBack(lab="shop", cold=cold), timeout=20.0)
            assert view.started == ("cold" if cold else "warm")
            assert rows(ctx, "shop") == [1]
        power.stop(ctx, "shop")
        assert start(ctx, "shop", timeout=20.0).state == "ready"
    third = Side(there.root / "third")
    assert imported(third, exported(there, "second"), warm_only=True).started == "warm"
    with third.open() as ctx:
        assert rows(ctx, "shop") == [1, 2]


@pytest.mark.rare
def test_ram_that_is_relative_to_nothing(here: Side, there: Side) -> None:
    """Of nodes that were booted, and of a snapshot after that which is relative to it."""
    with here.open() as ctx:
        power.stop(ctx, "shop")
        start(ctx, "shop", timeout=20.0)
        snapshot.take(ctx, TakeSnapshot(lab="shop", name="whole"))
        rollback(ctx, RollBack(lab="shop", to="whole"), timeout=20.0)
        write(ctx, "shop", 2)
        snapshot.take(ctx, TakeSnapshot(lab="shop", name="relative"))
    for name, expected in {"whole": [1], "relative": [1, 2]}.items():
        assert imported(there, exported(here, name), name, warm_only=True).started == "warm"
        with there.open() as ctx:
            assert rows(ctx, name) == expected


@pytest.mark.rare
def test_a_lab_that_was_booted(here: Side, there: Side) -> None:
    """It has no template, and seeds of its own."""
    with here.open() as ctx:
        down(ctx, "shop")
        up(ctx, named("shop", cold=True))
        query(ctx, "shop", "n1", "CREATE TABLE t (a INT)")
        write(ctx, "shop", 1)
    taken(here)
    assert imported(there, exported(here), warm_only=True).started == "warm"
    with there.open() as ctx:
        assert rows(ctx, "shop") == [1]
    with pytest.raises(Conflict, match="origin of shop") as caught:
        exported(here, "origin")
    assert "lab snapshot take shop" in caught.value.hint


@pytest.mark.rare
@pytest.mark.parametrize(("one", "other"), STORES)
def test_disks_arrive_as_they_were(tmp_path: Path, one: str, other: str) -> None:
    """All that the lab wrote, on whatever storage either host has; later writes are not in it."""
    here, there = Side(tmp_path / "here", driver=one), Side(tmp_path / "there", driver=other)
    with here.open() as ctx:
        up(ctx, named("shop"))
        power.stop(ctx, "shop", force=True)
        volumes = [v for v in ctx.storage.volumes() if v.name.owner == Owner("lab", "shop")]
        for number, volume in enumerate(volumes, 1):
            ctx.storage.rollback(volume.name, "origin")  # guests of the fake write no qcow2
            overwrite(volume, [(MIB, bytes([number]) * GRAIN), (7 * MIB, b"x" * 3 * GRAIN)])
        snapshot.take(ctx, TakeSnapshot(lab="shop", name="mine"))
        wanted = {}
        for volume in volumes:
            (taken_,) = [s for s in ctx.storage.snapshots(volume.name) if s.label != "origin"]
            wanted[f"{volume.name.node}/{volume.name.volume}"] = read(ctx.storage, taken_)
            ctx.storage.rollback(volume.name, "origin")
    done = there.imported("snapshot", exported(here))
    assert there.disks(Owner("template", done.key)) == wanted
    assert len(set(wanted.values())) == 2


@pytest.mark.rare
def test_what_was_imported_is_used_again(here: Side, there: Side) -> None:
    taken(here)
    archive = exported(here)
    first, second = imported(there, archive), imported(there, exported(here), "other")
    assert (first.name, second.name) == ("shop", "other")
    assert first.template == second.template
    third = imported(there, archive[: len(archive) // 100 + 20_000])  # no more is read than needed
    assert (third.name, third.template) == ("shop-2", first.template)
    here.version = "2"  # its RAM is still of the QEMU that it was taken with
    assert imported(there, exported(here), "after", warm_only=True).template == first.template
    here.version = "1"
    taken(here, "later")
    assert imported(there, exported(here, "later")).template != first.template
    # where it came from, it is a lab like the others
    assert imported(here, archive).name == "shop-2"


@pytest.mark.rare
@pytest.mark.parametrize("why", ["version", "hypervisor", "option", "disks"])
def test_it_boots_where_ram_does_not_fit(here: Side, there: Side, why: str) -> None:
    said = {
        "version": "fake version 2 here, version 1 there",
        "hypervisor": "no RAM on this one",
        "option": "exported without RAM",
        "disks": "exported without RAM",
    }[why]
    if why == "version":
        there.version = "2"
    elif why == "hypervisor":
        there.capabilities = Capabilities("fake", "fake", why_cold="no RAM on this one")
    taken(here, disks_only=why == "disks")
    archive = exported(here, ram=why != "option")
    before = as_it_was(there)
    with pytest.raises(HostUnfit, match=said):
        imported(there, archive, warm_only=True)
    assert as_it_was(there) == before
    view = imported(there, archive)
    assert (view.state, view.started) == ("ready", "cold")
    assert said in view.why_cold
    assert any(said in note for note in there.notes)
    with there.open() as ctx:
        assert rows(ctx, "shop") == [1]
        write(ctx, "shop", 2)
        rollback(ctx, RollBack(lab="shop"), timeout=20.0)
        assert rows(ctx, "shop") == [1]


@pytest.mark.rare
def test_nodes_recover_as_those_of_a_lab_in_use(here: Side, there: Side) -> None:
    """Protects data: nodes that boot are given the remedies for a crash, at each rollback too."""
    taken(here, disks_only=True)
    archive, heard = exported(here), list[Event]()
    with there.open() as opened:
        ctx = replace(opened, progress=Progress(heard.append))
        import_snapshot(ctx, io.BytesIO(archive), timeout=20.0)
        rollback(ctx, RollBack(lab="shop"), timeout=20.0)
    begun = [event.text for event in heard if (event.step, event.state) == ("form", "begin")]
    assert begun == ["waiting until the nodes are a cluster again"] * 2


@pytest.mark.rare
def test_another_qemu_later_boots_it(here: Side, there: Side) -> None:
    """After an upgrade; that is no reason to call the template broken: its disks are needed."""
    taken(here)
    archive = exported(here)
    key = imported(there, archive).template
    there.version = "2"
    with there.open() as ctx:
        view = rollback(ctx, RollBack(lab="shop"), timeout=20.0)
        assert (view.started, "another QEMU" in view.why_cold) == ("cold", True)
        assert rows(ctx, "shop") == [1]
        assert ctx.store.templates.get(key or "").state == "ready"
    assert imported(there, archive).started == "cold"
    there.version = "1"
    assert imported(there, archive).started == "warm"


@pytest.mark.rare
def test_ram_that_is_refused_is_given_up(here: Side, there: Side) -> None:
    taken(here)
    refused = raising(RestoreFailed("lab-shop-n1 could not be restored", details=["QEMU quit"]))
    view = imported(there, exported(here), hook=at("hypervisor.restore", refused))
    assert (view.state, view.started) == ("ready", "cold")
    assert "QEMU quit" in view.why_cold
    with there.open() as ctx:
        assert rows(ctx, "shop") == [1]
        record = ctx.store.templates.get(view.template or "")
        assert (record.state, record.warm) == ("ready", False)
    with pytest.raises(HostUnfit, match=r"RAM of shop@mine\.\w+ is not restored here: .*QEMU quit"):
        imported(there, exported(here), warm_only=True)
    assert not any("forms a new template" in note for note in there.notes)


@pytest.mark.rare
@pytest.mark.parametrize("keep", [False, True])
def test_sessions_of_clients_are_ended(here: Side, there: Side, keep: bool) -> None:
    with here.open() as ctx:
        assert isinstance(ctx.hypervisor, FakeHypervisor)
        for node in ("n1", "n2"):
            ctx.hypervisor.servers.alter(
                GuestName(f"lab-shop-{node}"), lambda inside: inside.sessions.append("SELECT 1")
            )
    taken(here)
    imported(there, exported(here), keep_sessions=keep)
    with there.open() as ctx:
        assert isinstance(ctx.hypervisor, FakeHypervisor)
        found = ctx.hypervisor.servers.inside(GuestName("lab-shop-n1")).sessions
        assert bool(found) == keep
        rollback(ctx, RollBack(lab="shop"), timeout=20.0)
        assert not ctx.hypervisor.servers.inside(GuestName("lab-shop-n1")).sessions
    ended = [note for note in there.notes if "ended 2 client sessions" in note]
    assert len(ended) == (1 if keep else 2)


@pytest.mark.rare
def test_each_lab_of_it_is_reseeded(here: Side, there: Side) -> None:
    """The clock of a lab in use is right: that it is set renews nothing."""
    taken(here)
    archive = exported(here)
    seeds = []
    for name in ("one", "two"):
        view = imported(there, archive, name)
        with there.open() as ctx:
            assert isinstance(ctx.hypervisor, FakeHypervisor)
            seeds += [
                ctx.hypervisor.servers.inside(GuestName(node.guest)).seeds for node in view.nodes
            ]
    assert all(seeds)
    assert len(set(seeds)) == len(seeds)


@pytest.mark.rare
def test_nodes_may_differ(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    mixed.register(monkeypatch)
    here, there = Side(tmp_path / "here"), Side(tmp_path / "there")
    with here.open() as ctx:
        up(ctx, mixed_lab())
        query(ctx, "shop", "n1", "CREATE TABLE t (a INT)")
    taken(here)
    view = imported(there, exported(here), warm_only=True)
    assert (view.blueprint, view.started) == ("mixed", "warm")
    assert [node.memory for node in view.nodes] == [384 * MIB, 512 * MIB]
    with there.open() as ctx:
        assert query(ctx, "shop", "n1", "SELECT COUNT(*) FROM t").rows == ((0,),)


def mixed_lab() -> Any:
    return named("shop", blueprint="mixed", nodes=1)


@pytest.mark.rare
def test_it_can_go_without_its_image(here: Side, there: Side) -> None:
    taken(here)
    alone = exported(here, image=False)
    with pytest.raises(NotFound, match=r"a snapshot of the image mariadb-\w+, which is not here"):
        imported(there, alone)
    there.imported("image", here.exported("image", "mariadb"))
    assert imported(there, alone).started == "warm"


@pytest.mark.rare
def test_the_template_stays_as_long_as_its_lab(here: Side, there: Side) -> None:
    taken(here)
    key = imported(there, exported(here)).template or ""
    with there.open() as ctx:
        assert gc(ctx, UNUSED).removed == ()
        with pytest.raises(Conflict, match="is used by shop"):
            template.remove(ctx, key)
        down(ctx, "shop")
        assert [view.use for view in templates(ctx)] == ["unused"]
        assert any(f"template:{key}" in line for line in gc(ctx, UNUSED).removed)
        assert templates(ctx) == []


@pytest.mark.rare
def test_a_lost_record_is_made_again(here: Side, there: Side) -> None:
    """Protects data after the record was lost: it never becomes a template of fresh clusters."""
    taken(here)
    archive = exported(here)
    key = imported(there, archive).template or ""
    with there.open() as ctx:
        down(ctx, "shop")
        ctx.store.templates.remove(key)
    assert imported(there, archive).template == key
    with there.open() as ctx:
        assert ctx.store.templates.get(key).source


def test_the_wrong_verb(here: Side, there: Side) -> None:
    taken(here)
    with pytest.raises(InvalidSpec, match="archive of a snapshot, not of a template") as caught:
        there.imported("template", exported(here))
    assert "lab snapshot import" in caught.value.hint
    with here.open() as ctx:
        (key,) = [view.key for view in templates(ctx)]
    with pytest.raises(InvalidSpec, match="archive of a template, not of a snapshot") as caught:
        imported(there, here.exported("template", key))
    assert "lab template import" in caught.value.hint
    made = imported(there, exported(here)).template or ""
    with pytest.raises(Conflict, match=r"captured from shop@mine\.\w+, a lab in use"):
        there.exported("template", made)


@pytest.mark.rare
def test_earlier_versions_refuse_it(here: Side) -> None:
    """Protects their labs: to them it would be a template of a fresh cluster.

    They refuse all but version 1 of the format; archives of templates are still in that.
    """
    taken(here)
    archive = exported(here)
    assert archive.startswith(b"lab-archive 2\n")
    with here.open() as ctx:
        (key,) = [view.key for view in templates(ctx)]
    assert here.exported("template", key).startswith(b"lab-archive 1\n")
    with pytest.raises(InvalidSpec, match="a snapshot in version 1 of the format"):
        header_of(rewritten(archive, b'"form_seconds":0.0', b'"form_seconds":1.0', version=1))
    with pytest.raises(InvalidSpec, match="a template in version 2 of the format"):
        header_of(rewritten(archive, b'"source":"shop', b'"from":"shop'))


def test_a_name_that_is_taken_is_refused_first(here: Side, there: Side) -> None:
    taken(here)
    archive = exported(here)
    imported(there, archive)
    with pytest.raises(Conflict, match="shop exists"):
        imported(there, b"", "shop")
    with pytest.raises(InvalidSpec):
        imported(there, b"", "Shop")


def test_what_is_not_exported(here: Side) -> None:
    label = taken(here)
    with pytest.raises(Conflict, match="origin of shop") as caught:
        exported(here, "origin")
    with here.open() as ctx:
        assert f"lab template export {lab(ctx, 'shop').template}" in caught.value.hint
    with pytest.raises(NotFound, match="no snapshot 'absent'"):
        exported(here, "absent")
    with pytest.raises(NotFound, match="absent"):
        exported(here, label, "absent")
    with here.open() as ctx:
        ctx.home.device_state(CaptureRef(Owner("lab", "shop"), label), "n2").write_bytes(b"x")
    with pytest.raises(Conflict, match=r"shop@mine\.\w+ are damaged") as caught:
        exported(here)
    assert "--cold" in caught.value.hint
    assert not header_of(exported(here, ram=False)).part("n1/ram")


def test_a_snapshot_stays_while_it_is_exported(here: Side) -> None:
    taken(here)

    class Checking(io.BytesIO):
        tried = 0

        def write(self, data: Any) -> int:
            if not Checking.tried:
                Checking.tried = 1
                for verb in (lambda: snapshot.remove(ctx, "shop", ["mine"]),
                             lambda: down(ctx, "shop", force=True)):  # fmt: skip
                    with pytest.raises(Busy):
                        verb()
            return super().write(data)

    with here.open() as ctx:
        export_snapshot(ctx, of_shop("mine", Checking()))
        assert rows(ctx, "shop") == [1]
        snapshot.remove(ctx, "shop", ["mine"])
    assert Checking.tried


@pytest.mark.parametrize("what", ["seed", "ram", "state"])
def test_content_that_is_not_what_the_header_says(here: Side, there: Side, what: str) -> None:
    taken(here)
    archive = exported(here)
    header = header_of(archive)
    assert header.template
    digest = getattr(header.template.nodes[1], what).digest
    with pytest.raises(InvalidSpec, match="does not match its header"):
        imported(there, rewritten(archive, digest.encode(), b"0" * 32))
    with there.open() as ctx:
        assert ctx.store.templates.all() == []
        assert ctx.store.labs.all() == []
        assert list(ctx.home.imports.iterdir()) == []


def test_a_cut_or_a_flip_leaves_nothing(here: Side, there: Side) -> None:
    taken(here)
    archive = exported(here)
    with there.open():
        before = there.there()
    for at_ in (14, 2000, len(archive) // 2, len(archive) - 40):
        flipped = bytearray(archive)
        flipped[at_] ^= 1
        for damaged in (archive[:at_], bytes(flipped)):
            with pytest.raises(InvalidSpec):
                imported(there, damaged)
            assert there.there() == before
    with pytest.raises(InvalidSpec):
        imported(there, archive[: len(archive) // 2], resume=True)
    assert imported(there, archive, resume=True).started == "warm"


def test_the_other_host_says_which_lab_it_made(here: Side, there: Side) -> None:
    taken(here)
    to = io.BytesIO()
    imported(there, exported(here), "copy", speaker=Speaker(to))
    last = json.loads(to.getvalue().splitlines()[-1])
    assert (last["done"]["outcome"], last["done"]["lab"]) == ("imported", "copy")


def test_a_lab_that_fails_leaves_the_template(here: Side, there: Side) -> None:
    """Protects the line: the next import has it already."""
    taken(here)
    archive = exported(here)
    with pytest.raises(LabError, match="bad luck"):
        imported(there, archive, hook=at("hypervisor.personalise", raising(LabError("bad luck"))))
    with there.open() as ctx:
        assert ctx.store.labs.all() == []
        assert [view.state for view in templates(ctx)] == ["ready"]
    assert imported(there, archive).started == "warm"


def test_a_damaged_template_is_imported_again(here: Side, there: Side) -> None:
    taken(here)
    archive = exported(here)
    key = imported(there, archive).template or ""
    with there.open() as ctx:
        state = ctx.home.device_state(template_ref(key), "n1")
        state.chmod(0o600)
        state.write_bytes(b"x")
    with pytest.raises(Conflict, match="is damaged"):
        imported(there, archive)
    again = imported(there, archive)
    assert again.template == f"{key}.2"
    with there.open() as ctx:
        assert rows(ctx, again.name) == [1]
        assert rollback(ctx, RollBack(lab="shop"), timeout=20.0).started == "cold"
        assert rows(ctx, "shop") == [1]


@pytest.mark.rare
def test_an_import_that_is_killed(here: Side, there: Side) -> None:
    """Whatever is left is removed, or whole: an image, a template, a lab."""
    taken(here)
    archive = exported(here)
    steps = {
        "receive.begin", "storage.import_raw", "storage.clone", "storage.persist",
        "hypervisor.restore", "hypervisor.personalise", "state.commit",
    }  # fmt: skip
    sweep(
        there,
        nothing,
        lambda ctx: import_snapshot(ctx, io.BytesIO(archive), timeout=20.0),
        steps,
    )


@pytest.mark.rare
def test_a_killed_import_is_resumed(here: Side, there: Side) -> None:
    taken(here)
    archive = exported(here)
    step = 0
    while there.killed(
        lambda ctx: import_snapshot(ctx, io.BytesIO(archive), RESUMED, timeout=20.0), step
    ):
        with there.open() as ctx:
            again = ImportSnapshot(how=RESUMED.how, name="again")
            import_snapshot(ctx, io.BytesIO(archive), again, timeout=20.0)
            assert rows(ctx, "again") == [1]
            gc(ctx)
            for record in ctx.store.labs.all():
                assert record.state == "ready"
                down(ctx, record.name)
            for found in ctx.store.templates.all():
                template.remove(ctx, found.key)
            with suppress(NotFound):
                image.remove(ctx, "mariadb")
            assert gc(ctx).left == ()
            assert list(ctx.home.imports.iterdir()) == []
        step += 5
    assert step > 20
