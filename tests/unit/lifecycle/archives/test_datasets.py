"""A version of a dataset goes from one installation to another, complete, and is used there."""

from __future__ import annotations

import io
import json
from collections.abc import Iterator
from dataclasses import replace
from pathlib import Path

import pytest

from lab.errors import Conflict, InvalidSpec
from lab.lifecycle.archives.import_archive import import_archive
from lab.lifecycle.captures import template
from lab.lifecycle.core.context import Context
from lab.lifecycle.datasets import dataset
from lab.lifecycle.host.gc import gc
from lab.lifecycle.labs.up import up
from lab.names import Owner
from lab.requests.datasets import CreateDataset
from tests.support.exchange_world import Side, rewritten
from tests.support.lifecycle_world import named, nothing
from tests.unit.lifecycle.archives.test_killed import IMPORTING
from tests.unit.lifecycle.promises.test_killed import sweep

DUMP = (
    "CREATE TABLE people (id INT PRIMARY KEY, name TEXT);\nINSERT INTO people VALUES (1, 'Ada');\n"
)
OF_SHOP = named("", dataset="shop")


@pytest.fixture(scope="module")
def here(tmp_path_factory: pytest.TempPathFactory) -> Side:
    """An installation with the dataset ``shop``, whose source has a telling name."""
    side = Side(tmp_path_factory.mktemp("here"))
    dump = side.root / "telling-name.sql"
    dump.write_text(DUMP)
    with side.open() as ctx:
        dataset.create(
            ctx,
            CreateDataset(name="shop", source=str(dump), warm="SELECT name FROM people;\n", keep=3),
        )
    return side


@pytest.fixture(scope="module")
def archive(here: Side) -> bytes:
    return here.exported("dataset", "shop@1")


@pytest.fixture
def there(tmp_path: Path) -> Side:
    return Side(tmp_path / "there")


@pytest.fixture
def ctx(there: Side) -> Iterator[Context]:
    with there.open() as context:
        yield context


def test_it_arrives_as_it_was(here: Side, there: Side, archive: bytes) -> None:
    """Protects hosts that never saw the source, and have no image of the engine."""
    done = there.imported("dataset", archive)
    assert (done.kind, done.key, done.outcome) == ("dataset", "shop@1", "imported")
    with here.open() as ctx:
        ours = dataset.dataset(ctx, "shop")
    with there.open() as ctx:
        theirs = dataset.dataset(ctx, "shop@1")
        assert (theirs.tables, theirs.loaded, theirs.columns) == (
            ours.tables, ours.loaded, ours.columns)  # fmt: skip
        assert (theirs.source, theirs.state, theirs.keep) == ("imported", "ready", 0)
        view = up(ctx, named("a", dataset="shop"))
        assert (view.state, view.image) == ("ready", theirs.image)
        (node, *_) = ctx.store.nodes.of("a")
        rows = ctx.hypervisor.servers.execute(node.guest, "SELECT name FROM people").rows  # type: ignore[attr-defined]
        assert rows == (("Ada",),)
        with pytest.raises(InvalidSpec, match="was imported: its source is not known here"):
            dataset.refresh(ctx, "shop")
    owner = Owner("image", ours.image)
    assert there.disks(owner) == here.disks(owner)
    assert (there.home.image(theirs.image) / "dataset.json").stat().st_mode & 0o777 == 0o600
    # And on to a third one, by the same bytes.
    assert there.exported("dataset", "shop") == archive
    assert there.imported("dataset", archive).outcome == "exists"


def test_what_is_of_this_host_alone_stays(here: Side, archive: bytes) -> None:
    """Protects paths, rules and secrets."""
    assert b"telling-name" not in archive
    with here.open() as ctx:
        path = ctx.home.image(dataset.dataset(ctx, "shop").image) / "dataset.json"
        before = path.read_text()
        path.write_text(json.dumps({**json.loads(before), "mask": "secret = 1", "sql": "SECRET"}))
        try:
            masked = here.exported("dataset", "shop")
        finally:
            path.write_text(before)
    assert b"secret" not in masked.lower()
    assert b'"masked":true' in masked.replace(b" ", b"")


def test_another_name(there: Side, archive: bytes) -> None:
    assert there.imported("dataset", archive, name="crm").key == "crm@1"
    with there.open() as ctx:
        assert [one.at for one in dataset.datasets(ctx)] == ["crm@1"]
        assert up(ctx, named("a", dataset="crm")).state == "ready"
    with pytest.raises(InvalidSpec, match="not a valid name"):
        there.imported("dataset", archive, name="../crm")


def test_a_version_with_other_data_is_not_replaced(
    there: Side, archive: bytes, tmp_path: Path
) -> None:
    """Protects the data that labs of this host have."""
    dump = tmp_path / "other.sql"
    dump.write_text(DUMP.replace("Ada", "Grace"))
    with there.open() as ctx:
        dataset.create(ctx, CreateDataset(name="shop", source=str(dump)))
    with pytest.raises(Conflict, match="a dataset shop@1 with different data") as refused:
        there.imported("dataset", archive)
    assert "--name" in refused.value.hint
    assert there.imported("dataset", archive, name="theirs").outcome == "imported"


def test_a_template_brings_its_dataset(here: Side, there: Side) -> None:
    """Protects labs with data that travel: their image has no key of a recipe."""
    with replace(here, forms=True).open() as ctx:
        key = template.build(ctx, OF_SHOP).key
    done = there.imported("template", here.exported("template", key))
    assert done.outcome == "imported"
    with there.open() as ctx:
        assert [one.at for one in dataset.datasets(ctx)] == ["shop@1"]
        assert up(ctx, named("a", dataset="shop")).template == done.key


def test_kinds_are_not_mixed_up(here: Side, there: Side, archive: bytes) -> None:
    with pytest.raises(InvalidSpec, match="the archive of a dataset, not of an image") as refused:
        there.imported("image", archive)
    assert refused.value.hint == "`lab dataset import`"
    with here.open() as ctx:
        key = dataset.dataset(ctx, "shop").image
    with pytest.raises(Conflict, match="is a dataset's"):
        here.exported("image", key)


@pytest.mark.parametrize(
    ("old", "new", "why"),
    [
        (b'"dataset":{"name":"shop"', b'"dataset":{"name":"Shop"', "not a valid name"),
        (b'"version":1,"info"', b'"version":0,"info"', "at .*image.dataset.version"),
        (b'"version":1,"info"', b'"version":2,"info"', "the key is not of the dataset"),
        (b'"dataset":{', b'"data":{', "the key is"),
    ],
)
def test_headers_that_lie(there: Side, archive: bytes, old: bytes, new: bytes, why: str) -> None:
    """Protects this host from an archive of a stranger."""
    with pytest.raises(InvalidSpec, match=why):
        there.imported("dataset", rewritten(archive, old, new))


@pytest.mark.parametrize(
    ("change", "why"),
    [
        ({"source": "/etc/passwd"}, "more than tables and columns"),
        ({"mask": "x = 1"}, "more than tables and columns"),
        ({"warm": "DROP TABLE people"}, "does not only read"),
        ({"loaded": "many"}, "Expected `int`"),
        ({"tables": [{"database": "a\x1b[2J", "name": "t", "engine": "", "rows": 1, "size": 1}]},
         "more than tables and columns"),
    ],
)  # fmt: skip
def test_descriptions_that_lie(
    here: Side, there: Side, monkeypatch: pytest.MonkeyPatch, change: dict[str, object], why: str
) -> None:
    """Protects terminals, and the host: what an archive says of its data is checked."""
    from lab.lifecycle.archives import describe, export
    from lab.lifecycle.images.provenance import exported

    def lie(made: object) -> bytes:
        return json.dumps({**json.loads(exported(made)), **change}).encode()  # type: ignore[arg-type]

    for module in (describe, export):
        monkeypatch.setattr(module, "exported", lie)
    lied = here.exported("dataset", "shop")
    with pytest.raises(InvalidSpec, match=why):
        there.imported("dataset", lied)
    with there.open() as ctx:
        assert dataset.datasets(ctx) == []
        assert gc(ctx).left == ()


@pytest.mark.rare
def test_an_import_is_killed(there: Side, archive: bytes) -> None:
    sweep(
        there,
        nothing,
        lambda ctx: import_archive(ctx, "dataset", io.BytesIO(archive)),
        IMPORTING,
    )
