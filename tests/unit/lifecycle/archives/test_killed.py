"""Protects both ends from bad luck: kill -9 at each step, cuts and flips at each place."""

from __future__ import annotations

import io
import os
from collections.abc import Iterator
from pathlib import Path

import pytest

from lab.errors import InvalidSpec, LabError
from lab.exchange.frames import FrameReader
from lab.lifecycle.archives.export import export
from lab.lifecycle.archives.import_archive import import_archive
from lab.lifecycle.captures import template
from lab.lifecycle.core.context import Context
from lab.lifecycle.host.gc import gc
from lab.lifecycle.images import image
from lab.lifecycle.labs.up import up
from lab.names import Owner
from lab.requests.archives import Destination, ExportArchive, ImportOptions
from tests.support.exchange_world import Side, as_it_was
from tests.support.lifecycle_world import REQUEST, Counter, Verb, nothing, raising
from tests.unit.lifecycle.promises.test_killed import sweep

IMPORTING = {
    "receive.begin", "receive.end", "storage.import_raw", "storage.snapshot", "storage.persist",
    "state.commit",
}  # fmt: skip
"""Steps of each import before which a kill leaves something."""


@pytest.fixture(scope="module")
def here(tmp_path_factory: pytest.TempPathFactory) -> Side:
    side = Side(tmp_path_factory.mktemp("here"))
    side.make_template()
    return side


@pytest.fixture(scope="module")
def image_archive(here: Side) -> bytes:
    return here.exported("image", "mariadb")


@pytest.fixture(scope="module")
def template_archive(here: Side) -> bytes:
    with here.open() as ctx:
        (record,) = ctx.store.templates.all()
    return here.exported("template", record.key)


@pytest.fixture
def there(tmp_path: Path) -> Side:
    return Side(tmp_path / "there")


def importing(kind: str, archive: bytes, *, resume: bool = False) -> Verb:
    """The verb."""
    return lambda ctx: import_archive(ctx, kind, io.BytesIO(archive), ImportOptions(resume))  # type: ignore[arg-type]


def boundaries(archive: bytes) -> Iterator[int]:
    """The bytes at which frames begin."""
    source = io.BytesIO(archive)
    reader = FrameReader(source)
    kind = b""
    while kind != b"Z":
        yield source.tell()
        kind = reader.get()[0]


@pytest.mark.rare
def test_image_import_is_killed(there: Side, image_archive: bytes) -> None:
    sweep(there, nothing, importing("image", image_archive), IMPORTING)


@pytest.mark.rare
def test_template_import_is_killed(there: Side, template_archive: bytes) -> None:
    """The image may have become one of ours by then: it is complete, and is used."""
    steps = {*IMPORTING, "storage.clone"}
    sweep(there, nothing, importing("template", template_archive), steps)


@pytest.mark.rare
def test_template_import_beside_its_image_is_killed(
    there: Side, image_archive: bytes, template_archive: bytes
) -> None:
    before = importing("image", image_archive)
    steps = {*IMPORTING, "storage.clone"} - {"storage.import_raw"}
    sweep(there, before, importing("template", template_archive), steps)


@pytest.mark.rare
def test_a_killed_import_is_gone_on_with(there: Side, template_archive: bytes) -> None:
    """Protects --resume: whenever it died, the next one ends well, and nothing is left over."""
    verb = importing("template", template_archive, resume=True)
    step, seen = 0, set()
    while name := there.killed(verb, step):
        seen.add(name)
        with there.open() as ctx:
            done = import_archive(
                ctx, "template", io.BytesIO(template_archive), ImportOptions(resume=True)
            )
            assert list(ctx.home.imports.iterdir()) == []
            template.remove(ctx, done.key)
            image.remove(ctx, "mariadb")
            assert gc(ctx).left == ()
        step += 3
    assert seen & {"storage.import_raw", "storage.clone", "storage.persist"}


def test_export_is_killed(here: Side, tmp_path: Path, template_archive: bytes) -> None:
    """Only a partial file is left, --resume makes it whole, and the template can be removed."""
    path = tmp_path / "x.lab"
    with here.open() as ctx:
        (record,) = ctx.store.templates.all()

    def verb(ctx: Context, *, resume: bool = False) -> None:
        to = Destination(str(path), resume=resume)
        export(ctx, ExportArchive(kind="template", which=record.key, to=to))

    before, step, partial = here.there(), 0, 0
    while here.killed(verb, step):
        assert here.there() == before
        if not path.exists():
            part = path.with_name("x.lab.part")
            partial += part.exists()
            with here.open() as ctx:
                verb(ctx, resume=True)
        assert path.read_bytes() == template_archive
        path.unlink()
        step += 3
    assert partial > 3


def test_every_cut_leaves_nothing_behind(there: Side, template_archive: bytes) -> None:
    with there.open():
        before = there.there()
    frames = list(boundaries(template_archive))
    assert len(frames) > 20
    for at in sorted({*frames, *(at + 3 for at in frames), *(at - 20 for at in frames[2:])}):
        with pytest.raises(InvalidSpec, match=f"ends too early, after byte {at},"):
            there.imported("template", template_archive[:at])
        assert there.there() == before
    assert there.imported("template", template_archive).outcome == "imported"


def test_every_flip_leaves_nothing_behind(there: Side, template_archive: bytes) -> None:
    with there.open():
        before = there.there()
    for at in [0, 13, *(at + 2 for at in boundaries(template_archive)), len(template_archive) - 1]:
        damaged = bytearray(template_archive)
        damaged[at] ^= 1
        with pytest.raises(InvalidSpec):
            there.imported("template", bytes(damaged))
        assert there.there() == before
    with pytest.raises(InvalidSpec, match="data after its end"):
        there.imported("template", template_archive + b"x")
    assert there.there() == before


def test_cuts_that_are_kept_add_up(there: Side, template_archive: bytes) -> None:
    """Protects those with a bad line: many cuts, each a little further, one good template."""
    for at in range(0, len(template_archive), len(template_archive) // 7):
        with pytest.raises(InvalidSpec):
            there.imported("template", template_archive[:at], resume=True)
    assert there.imported("template", template_archive, resume=True).outcome == "imported"
    with there.open() as ctx:
        assert up(ctx, REQUEST).started == "warm"


@pytest.mark.rare
def test_a_failing_storage_leaves_nothing(there: Side, template_archive: bytes) -> None:
    """Whatever step of storage or record fails, what was made is removed, at once."""
    with there.open():
        before = as_it_was(there)
    failed: set[str] = set()
    step = 0
    while True:
        hook = Counter(step, raising(LabError("bad luck")))
        try:
            with there.open(hook) as ctx:
                import_archive(ctx, "template", io.BytesIO(template_archive))
        except LabError:
            failed.add(hook.done)
        if not hook.done:
            break
        with there.open() as ctx:
            gc(ctx)
            for record in ctx.store.templates.all():
                assert record.state == "ready"
                template.remove(ctx, record.key)
            for picture in ctx.store.images.all():
                assert picture.state == "ready"
                image.remove(ctx, picture.key)
        assert as_it_was(there) == before, hook.done
        step += 2
    assert failed & {"storage.clone", "storage.import_raw"}


def test_two_imports_at_once(there: Side, template_archive: bytes) -> None:
    """One of them makes it, the other one says that it is being made, or finds it."""
    pids = []
    for _ in range(3):
        child = os.fork()
        if not child:
            code = 1
            try:
                done = there.imported("template", template_archive)
                code = 0 if done.outcome in ("imported", "exists") else 1
            except LabError as error:
                code = error.exit_code
            finally:
                os._exit(code)
        pids.append(child)
    codes = [os.waitstatus_to_exitcode(os.waitpid(pid, 0)[1]) for pid in pids]
    assert set(codes) <= {0, 4}
    assert 0 in codes
    with there.open() as ctx:
        assert [r.state for r in ctx.store.templates.all()] == ["ready"]
        assert there.disks(Owner("template", ctx.store.templates.all()[0].key))
