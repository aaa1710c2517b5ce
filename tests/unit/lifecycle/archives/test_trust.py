"""Protects both hosts: what does not fit, or is not what it says, goes nowhere."""

from __future__ import annotations

import io
from pathlib import Path

import pytest

from lab.errors import Conflict, HostUnfit, InvalidSpec, NotFound
from lab.exchange.frames import FrameReader
from lab.exchange.receiving import begin
from lab.names import Owner, template_ref
from lab.units import MIB
from tests.support.exchange_world import Side, as_it_was, rewritten


@pytest.fixture
def here(tmp_path: Path) -> Side:
    return Side(tmp_path / "here")


@pytest.fixture
def there(tmp_path: Path) -> Side:
    return Side(tmp_path / "there")


@pytest.mark.parametrize(
    ("kind", "what", "old", "new"),
    [
        ("image", "image/os", "os", "0" * 64),
        ("image", "image/kernel", "kernel", "0" * 64),
        ("template", "the seed of n2", "seed", "0" * 32),
        ("template", "the RAM of n1", "ram", "0" * 32),
        ("template", "the device state of n1", "state", "0" * 32),
    ],
)
def test_content_that_is_not_what_the_header_says(
    here: Side, there: Side, kind: str, what: str, old: str, new: str
) -> None:
    """Protects against an archive whose checksums are right and whose content is not."""
    key = here.make_template()
    archive = here.exported("template", key)
    header = begin(FrameReader(io.BytesIO(archive)))
    assert header.template
    if kind == "image":
        facts = header.image.disks["os"] if old == "os" else header.image.kernel
    else:
        facts = getattr(header.template.nodes[1], old)
    lied = rewritten(archive, facts.digest.encode(), new.encode())
    with pytest.raises(InvalidSpec, match=f"{what} in the archive does not match its header"):
        there.imported("template", lied)
    with there.open() as ctx:
        assert ctx.store.templates.all() == []
        assert list(ctx.home.imports.iterdir()) == []


def test_templates_that_nobody_would_use_are_not_exported(here: Side) -> None:
    key = here.make_template()
    here.version = "2"
    with pytest.raises(Conflict, match="is outdated"):
        here.exported("template", key)
    here.version = "1"
    with here.open() as ctx:
        state = ctx.home.device_state(template_ref(key), "n1")
        state.chmod(0o600)
        state.write_bytes(b"")
    with pytest.raises(Conflict, match="incomplete or damaged"):
        here.exported("template", key)
    with pytest.raises(NotFound):
        here.exported("template", "absent")
    with pytest.raises(NotFound):
        here.exported("image", "absent")
    assert [p.name for p in here.root.glob("exported*")] == []


def test_streams_of_the_storage(here: Side, there: Side) -> None:
    """As ZFS sends them: they go as they are, and their content is compared on arrival."""
    key = here.make_template()
    archive = here.exported("template", key, native=True)
    header = begin(FrameReader(io.BytesIO(archive)))
    assert (header.storage, header.parts[0].form) == ("fake", "stream")
    qcow2 = Side(there.root / "qcow2", driver="qcow2")
    with pytest.raises(InvalidSpec, match="streams of the storage fake, and here it is qcow2"):
        qcow2.imported("template", archive)
    done = there.imported("template", archive)
    with here.open() as ctx:
        owner = Owner("image", ctx.store.templates.get(key).image)
    assert there.disks(owner) == here.disks(owner)
    assert there.disks(Owner("template", done.key)) == here.disks(Owner("template", key))
    archive = here.exported("image", "mariadb", native=True)
    lied = rewritten(archive, header.image.disks["os"].digest.encode(), b"0" * 64)
    third = Side(there.root / "third")
    with pytest.raises(InvalidSpec, match="does not match the image's manifest"):
        third.imported("image", lied)
    assert as_it_was(third) == set()


def test_the_wrong_verb(here: Side, there: Side) -> None:
    key = here.make_template()
    with pytest.raises(InvalidSpec, match="archive of a template, not of an image") as caught:
        there.imported("image", here.exported("template", key))
    assert "lab template import" in caught.value.hint
    with pytest.raises(InvalidSpec, match="archive of an image, not of a template"):
        there.imported("template", here.exported("image", "mariadb"))


def test_other_rules(here: Side, there: Side) -> None:
    archive = here.exported("template", here.make_template())
    header = begin(FrameReader(io.BytesIO(archive)))
    assert header.template
    old = f'"version":{header.template.version},'.encode()
    with pytest.raises(InvalidSpec, match="formed by version 99"):
        there.imported("template", rewritten(archive, old, b'"version":99,'))
    with pytest.raises(InvalidSpec, match="other roles"):
        there.imported("template", rewritten(archive, b'"role":"member"', b'"role":"king"'))


def test_no_space_no_import(here: Side, there: Side) -> None:
    archive = here.exported("image", here.make_image())
    there.capacity = MIB
    with pytest.raises(HostUnfit, match=r"needs [\d.]+M of disk; 1M is free"):
        there.imported("image", archive)
    assert as_it_was(there) == set()
