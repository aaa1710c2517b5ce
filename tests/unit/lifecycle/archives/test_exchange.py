"""Images and templates go from one installation to another, complete, and are used there."""

from __future__ import annotations

import io
import json
import shutil
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
from msgspec import structs

from lab.config.profile import PROFILES
from lab.errors import Conflict, HostUnfit, InvalidSpec, NotFound
from lab.exchange.frames import FrameReader
from lab.exchange.receiving import begin
from lab.exchange.talk import Remote, Speaker
from lab.hypervisor import Capabilities
from lab.lifecycle.archives.fetch import Fetch, give, unfit
from lab.lifecycle.archives.import_archive import UNCHECKED
from lab.lifecycle.captures import template
from lab.lifecycle.host.gc import gc
from lab.lifecycle.images import image
from lab.lifecycle.images.provenance import Provenance, write_provenance
from lab.lifecycle.labs.down import down
from lab.lifecycle.labs.ensure import ensure
from lab.lifecycle.labs.power import stop
from lab.lifecycle.labs.start import start
from lab.lifecycle.labs.up import up
from lab.lifecycle.nodes.inspect import lab
from lab.names import Owner
from lab.units import MIB
from tests.support.builds import added_build
from tests.support.exchange_world import Build, Side, as_it_was, rewritten
from tests.support.lifecycle_world import REQUEST, named

needs_qemu = pytest.mark.skipif(not shutil.which("qemu-img"), reason="needs qemu-utils")
STORES = [
    pytest.param("fake", "fake"),
    pytest.param("qcow2", "qcow2", marks=needs_qemu),
    pytest.param("fake", "qcow2", marks=needs_qemu),
    pytest.param("qcow2", "fake", marks=needs_qemu),
]


@pytest.fixture
def here(tmp_path: Path) -> Side:
    return Side(tmp_path / "here")


@pytest.fixture
def there(tmp_path: Path) -> Side:
    return Side(tmp_path / "there")


def test_an_image_of_a_series_arrives(here: Side, there: Side) -> None:
    """Protects recipes with a dot in their names, such as mariadb-10.11."""
    with here.open() as ctx:
        key = image.build(ctx, "mariadb-10.11").key
    assert there.imported("image", here.exported("image", key)).outcome == "imported"


@pytest.mark.parametrize("layout", ["single", "split"])
@pytest.mark.parametrize(("one", "other"), STORES)
def test_an_image_arrives_as_it_was(here: Side, there: Side, one: str, other: str,
                                    layout: str) -> None:  # fmt: skip
    here.driver, there.driver = one, other
    here.layout = there.layout = layout  # type: ignore[assignment]
    key = here.make_image()
    done = there.imported("image", here.exported("image", "mariadb"))
    assert (done.kind, done.key, done.outcome, done.notes) == ("image", key, "imported", ())
    owner = Owner("image", key)
    assert there.disks(owner) == here.disks(owner)
    assert len(there.disks(owner)) == (3 if layout == "split" else 1)
    assert there.files(owner) == here.files(owner)
    with here.open() as ctx, there.open() as other_ctx:
        ours, theirs = image.find(ctx, key), image.find(other_ctx, key)
        assert (ours.engine, ours.volumes) == (theirs.engine, theirs.volumes)
        assert image.image(other_ctx, key).build_seconds == image.image(ctx, key).build_seconds
    # it is what `lab up` looks for: nothing is built
    there.build = Build(seed=99)
    assert there.make_image() == key
    assert there.disks(owner) == here.disks(owner)


@pytest.mark.parametrize(("one", "other"), STORES)
def test_a_template_arrives_warm(here: Side, there: Side, one: str, other: str) -> None:
    """The point of it all: a host that formed nothing starts a lab in a moment."""
    here.driver, there.driver = one, other
    key = here.make_template()
    archive = here.exported("template", key[:6])
    done = there.imported("template", archive, warm_only=True)
    assert (done.kind, done.outcome, done.notes) == ("template", "imported", (UNCHECKED,))
    assert done.key != key  # it is known by the home, too
    ours, theirs = Owner("template", key), Owner("template", done.key)
    assert there.disks(theirs) == here.disks(ours)
    assert len(set(there.disks(theirs).values())) == 2
    assert there.files(theirs) == here.files(ours)
    with there.open() as ctx:
        made = lab(ctx, up(ctx, named("shop")).name)
        assert (made.started, made.template) == ("warm", done.key)
        record = ctx.store.templates.get(done.key)
        assert (record.state, record.warm, record.node_count) == ("ready", True, 2)
        assert record.form_seconds > 0
        assert {r.state for r in ctx.store.resources.of(theirs)} == {"made"}
        assert len(ctx.store.templates.all()) == 1
    # and on to a third one
    assert there.exported("template", done.key)


def test_a_template_is_small_beside_its_image(here: Side, there: Side) -> None:
    """Protects transfers: what the nodes have of the image is sent once, or not at all."""
    key = here.make_template()
    whole = here.exported("template", key)
    alone = here.exported("template", key, image=False)
    assert len(here.exported("image", "mariadb")) > 2 * MIB
    assert len(alone) < MIB
    assert len(whole) < len(alone) + 2 * MIB + 100_000
    with pytest.raises(NotFound, match=r"image mariadb-\w+, which is not here"):
        there.imported("template", alone)
    there.imported("image", here.exported("image", "mariadb"))
    assert there.imported("template", alone).outcome == "imported"


def test_disks_are_clones_of_the_image(here: Side, there: Side) -> None:
    """Protects the disk and the page cache of the host: blocks are shared as in one made here."""
    if not shutil.which("qemu-img"):
        pytest.skip("needs qemu-utils")
    here.driver = there.driver = "qcow2"
    there.imported("template", here.exported("template", here.make_template()))
    with there.open() as ctx:
        (record,) = ctx.store.templates.all()
        assert record.size < MIB
        with pytest.raises(Conflict, match="is used by"):
            image.remove(ctx, record.image)


def test_what_is_here_is_not_imported_again(here: Side, there: Side) -> None:
    key = here.make_template()
    archive = here.exported("template", key)
    first = there.imported("template", archive)
    before = there.there()
    again = there.imported("template", archive)
    assert (again.outcome, again.key) == ("exists", first.key)
    pictured = here.exported("image", "mariadb")
    assert there.imported("image", pictured).outcome == "exists"
    assert there.there() == before
    # where it came from, it is also known
    assert here.imported("template", archive).key == key
    assert here.imported("template", archive).outcome == "exists"


def test_only_what_is_missing_is_asked_for(here: Side, there: Side) -> None:
    """Protects the line: an image that is here, and RAM that does not fit, are not sent."""

    def wanted(host: Side) -> set[str]:
        to = io.BytesIO()
        host.imported("template", archive, speaker=Speaker(to))
        lines = [json.loads(line) for line in to.getvalue().splitlines()]
        assert lines[0] == {"hello": {"archive": 1, "storage": "fake"}}
        assert lines[-1]["done"]["outcome"] == "imported"
        assert all(set(line) <= {"doing", "note", "wanted"} for line in lines[1:-1])
        (found,) = [line["wanted"] for line in lines if "wanted" in line]
        assert set(found.values()) == {0}
        return set(found)

    archive = here.exported("template", here.make_template())
    every = {part.name for part in begin(FrameReader(io.BytesIO(archive))).parts}
    assert wanted(there) == every
    ram = {name for name in every if name.endswith(("/ram", "/state"))}
    assert wanted(Side(there.root / "other", version="2")) == every - ram
    with there.open() as ctx:
        template.remove(ctx, ctx.store.templates.all()[0].key)
    assert wanted(there) == {name for name in every if not name.startswith("image/")}


def test_an_image_that_was_built_apart_is_another_one(here: Side, there: Side) -> None:
    """Protects templates from disks that they were not made on: keys are of what went in."""
    there.build = Build(seed=2)
    key = there.make_image()
    before = there.there()
    done = there.imported("image", here.exported("image", here.make_image()))
    assert (done.key, done.outcome) == (key, "exists")
    assert "built separately" in done.notes[0]
    with pytest.raises(Conflict, match="built separately"):
        there.imported("template", here.exported("template", here.make_template()))
    assert there.there() == before
    with there.open() as ctx:
        image.remove(ctx, key)
    assert there.imported("template", here.exported("template", here.make_template()))


def test_ram_of_another_hypervisor_is_left_out(here: Side, there: Side) -> None:
    there.version = "2"
    archive = here.exported("template", here.make_template())
    before = as_it_was(there)
    with pytest.raises(HostUnfit, match=r"restored here: .*fake version 2 here, version 1 there"):
        there.imported("template", archive, warm_only=True)
    assert as_it_was(there) == before
    done = there.imported("template", archive)
    assert "will boot" in done.notes[0]
    assert "version 2 here, version 1 there" in done.notes[0]
    assert done.notes[0] in there.notes
    assert not list(there.home.template(done.key).glob("*.ram"))
    with there.open() as ctx:
        assert not ctx.store.templates.get(done.key).warm
        made = lab(ctx, up(ctx, named("shop")).name)
        assert made.started == "cold"
        assert "another hypervisor" in made.why_cold


def test_data_of_another_project_are_not_given(here: Side) -> None:
    """Protects data: whatever another host says, it is given for the project that owns them."""
    key = here.make_image()
    with here.open() as ctx:
        ctx.store.images.update(key, dataset="own", version=1, project="p")
        write_provenance(ctx, key, Provenance("lab:shop", "galera"))

        def given(**said: Any) -> bool:
            talk = Silent()
            try:
                give(ctx, Fetch("dataset", "own@1", **said), Remote(talk, "h2", ctx.progress))
            except NotFound:
                return False
            except EOFError:  # it got to what is wanted
                return True
            raise AssertionError

        assert given(project="p", owner="p")
        assert given(project=None, owner="p")
        assert not given(project="q", owner="p")
        assert not given(project=None, owner=""), "it would be for all there"
        with pytest.raises(NotFound):
            give(ctx, Fetch("image", key, project="p"), Remote(Silent(), "h2", ctx.progress))


class Silent:
    """Another host that says nothing."""

    def write(self, data: bytes, /) -> object:
        return len(data)

    def flush(self) -> None:
        pass

    def close(self) -> None:
        pass

    def line(self, limit: int) -> bytes:
        raise EOFError(limit)


def test_a_cluster_is_formed_again_beside_what_serves(here: Side, there: Side) -> None:
    """Protects labs on a host of another kind: they start from disks first, then with RAM."""
    there.version = "2"
    key = there.imported("template", here.exported("template", here.make_template())).key
    with there.open() as ctx:
        up(ctx, named("shop"))
        assert [record.key for record in unfit(ctx)] == [key]
        assert unfit(ctx, [key]) == []
        made = template.build(ctx, REQUEST, with_ram=True)
        assert (made.key, made.warm) == (f"{key}.2", True)
        assert unfit(ctx) == []
        assert lab(ctx, up(ctx, named("later")).name).started == "warm"
        assert template.build(ctx, REQUEST, with_ram=True).key == made.key, "once"
        down(ctx, "shop")
        template.remove(ctx, key)
        assert lab(ctx, up(ctx, named("last")).name).started == "warm"


def test_what_only_one_of_the_hosts_knows_is_a_difference(here: Side, there: Side) -> None:
    """Protects who looks for the reason: why guests are emulated is none."""
    there.version = "2"
    there.capabilities = Capabilities(
        "fake", "fake", facts={"counter": "2600 MHz"}, why_emulated="the test says so"
    )
    done = there.imported("template", here.exported("template", here.make_template()))
    assert (
        "(fake unknown here, version 1 there; counter 2600 MHz here, unknown there)"
        in done.notes[0]
    )


def test_another_kernel_is_named(here: Side, there: Side) -> None:
    """Protects exchange between hosts with KVM: the kernel is part of the fingerprint."""
    there.version = "2"
    for side, kernel in ((here, "6.1.0-25"), (there, "6.1.0-26")):
        facts = {"kernel": f"{kernel}, kvm_intel nested=Y"}
        side.capabilities = Capabilities("fake", "fake", facts=facts)
    done = there.imported("template", here.exported("template", here.make_template()))
    assert (
        "(kernel 6.1.0-26, kvm_intel nested=Y here, 6.1.0-25, kvm_intel nested=Y there)"
        in done.notes[0]
    )


def test_ram_that_was_given_up_is_not_exported(here: Side, there: Side) -> None:
    """Protects other hosts from RAM that was refused where it was captured."""
    key = here.make_template()
    with here.open() as ctx:
        ctx.store.templates.update(key, warm=False, why="its RAM was not restored")
    archive = here.exported("template", key)
    assert begin(FrameReader(io.BytesIO(archive))).part("n1/ram") is None
    assert "without RAM" in there.imported("template", archive).notes[0]


def test_a_hypervisor_that_restores_nothing(here: Side, there: Side) -> None:
    there.capabilities = Capabilities("fake", "fake", why_cold="no RAM on this one")
    done = there.imported("template", here.exported("template", here.make_template()))
    assert "no RAM on this one" in done.notes[0]
    with there.open() as ctx:
        assert "no RAM on this one" in lab(ctx, up(ctx, named("shop")).name).why_cold


def test_disks_only(here: Side, there: Side) -> None:
    key = here.make_template()
    cold = here.exported("template", key, ram=False)
    assert begin(FrameReader(io.BytesIO(cold))).part("n1/ram") is None
    with pytest.raises(HostUnfit, match="exported without RAM"):
        there.imported("template", cold, warm_only=True)
    done = there.imported("template", cold)
    assert "exported without RAM" in done.notes[0]
    # and it stays without, wherever it goes
    again = there.exported("template", done.key)
    third = Side(there.root / "third")
    assert "exported without RAM" in third.imported("template", again).notes[0]


def test_ram_is_left_out(here: Side, there: Side) -> None:
    """Protects QEMU from the device states of an archive that nobody vouches for."""
    archive = here.exported("template", here.make_template())
    assert any("as they are" in note for note in there.imported("template", archive).notes)
    third = Side(there.root / "third")
    done = third.imported("template", archive, ram=False)
    assert done.notes[0].endswith("its RAM was left out at its import")
    assert not any("as they are" in note for note in done.notes)
    kept = third.home.template(done.key).rglob("*ram*")
    assert not [path for path in kept if path.is_file()]
    with third.open() as ctx:
        view = up(ctx, named("shop"))
        assert view.started == "cold"


def test_a_profile_of_ones_own(here: Side, there: Side) -> None:
    """The settings must be there, under whatever name."""
    mine = replace(PROFILES["balanced"], name="mine",
                   engine=replace(PROFILES["balanced"].engine, io_capacity=777))  # fmt: skip
    here.profiles = {"mine": mine}
    with here.open() as ctx:
        key = template.build(ctx, named("", profile="mine")).key
    archive = here.exported("template", key)
    with pytest.raises(InvalidSpec, match="no profile here has the settings"):
        there.imported("template", archive)
    there.profiles = {"other": replace(mine, name="other")}
    done = there.imported("template", archive)
    with there.open() as ctx:
        made = lab(ctx, up(ctx, named("shop", profile="other")).name)
        assert (made.started, made.template) == ("warm", done.key)


def test_an_image_of_another_recipe_works_when_named(here: Side, there: Side) -> None:
    """Protects hosts with another version of lab: nothing of the recipe is needed any more."""
    key = here.make_template()
    archive = _renamed(here, key)
    done = there.imported("template", archive)
    assert any("--image mariadb-0123456789abcdef" in note for note in done.notes)
    with there.open() as ctx:
        asked = named("shop", image="mariadb-0123456789abcdef")
        made = lab(ctx, up(ctx, asked).name)
        assert (made.started, made.template) == ("warm", done.key)
        assert ensure(ctx, asked).template == done.key
        with pytest.raises(Conflict, match="different configuration"):
            ensure(ctx, structs.replace(asked, image=image.build(ctx, "mariadb").key))
        stop(ctx, "shop", node=None, force=False)
        assert start(ctx, "shop", timeout=20.0).state == "ready"
        # without it, the image of this version of the recipe is used
        assert up(ctx, named("plain")).image != "mariadb-0123456789abcdef"
        with pytest.raises(NotFound):
            up(ctx, named("none", image="absent"))
        with pytest.raises(InvalidSpec, match="cannot use the image"):
            up(ctx, structs.replace(asked, name="pxc", engine="percona", blueprint="pxc"))


def test_labs_of_an_added_engine_where_it_is_not(here: Side, there: Side) -> None:
    """Protects hosts that were given a template, and not the build: its image is all they need."""
    with here.open() as ctx:
        added_build(ctx.home.engines, "mine", features=("galera",))
        key = template.build(ctx, named("", engine="mine")).key
        name = ctx.store.templates.get(key).image
    done = there.imported("template", here.exported("template", key))
    assert any(f"--image {name}" in note for note in done.notes), done.notes
    with there.open() as ctx:
        made = lab(ctx, up(ctx, named("shop", image=name)).name)
        assert (made.started, made.template) == ("warm", done.key)
        stop(ctx, "shop", node=None, force=False)
        assert start(ctx, "shop", timeout=20.0).state == "ready"
        with pytest.raises(InvalidSpec, match="cannot run on the engine 'mine'"):
            up(ctx, named("other", engine="mine"))


def _renamed(here: Side, key: str) -> bytes:
    """The archive of a template whose image has another key, as of another version of lab."""
    with here.open() as ctx:
        record = ctx.store.templates.get(key)
    archive = here.exported("template", key)
    return rewritten(archive, record.image.encode(), b"mariadb-0123456789abcdef")


def test_what_was_cut_off_is_gone_on_with(here: Side, there: Side) -> None:
    key = here.make_template()
    archive = here.exported("template", key)
    with pytest.raises(InvalidSpec, match="ends too early"):
        there.imported("template", archive[: len(archive) // 2], resume=True)
    with there.open() as ctx:
        report = gc(ctx)
        assert report.removed == ()
        assert "--resume" in report.left[0]
        assert not ctx.store.templates.all()
        assert not ctx.store.images.all()
    done = there.imported("template", archive, resume=True)
    assert there.disks(Owner("template", done.key)) == here.disks(Owner("template", key))
    with there.open() as ctx:
        assert gc(ctx).left == ()


def test_old_images_without_the_option_file(here: Side) -> None:
    """Protects labs of images that were built before manifests had it."""
    key = here.make_image()
    path = here.home.image(key) / "manifest.json"
    fields = json.loads(path.read_text())
    text = fields.pop("option_file")
    path.write_text(json.dumps(fields))
    with here.open() as ctx:
        assert image.find(ctx, key).engine.config == text
    assert here.exported("image", key)
    fields["digests"] = {}
    path.write_text(json.dumps(fields))
    with pytest.raises(Conflict, match="digests"):
        here.exported("image", key)


def test_archives_of_earlier_versions_are_imported(here: Side, there: Side) -> None:
    """Protects archives that were kept: in them nodes have no image and no size of their own.

    All nodes were requested.
    """
    archive = here.exported("template", here.make_template())
    now = FrameReader(io.BytesIO(archive)).get()[1]
    header = json.loads(now)
    assert header.pop("others") == []
    assert header["template"].pop("requested_nodes") == len(header["template"]["nodes"])
    assert header["template"].pop("source") == ""
    for node in header["template"]["nodes"]:
        for name in ("image", "size", "fingerprint"):
            assert node.pop(name)
    before = json.dumps(header, separators=(",", ":")).encode()
    done = there.imported("template", rewritten(archive, now, before), warm_only=True)
    with there.open() as ctx:
        made = up(ctx, REQUEST)
        assert (made.started, made.template) == ("warm", done.key)
