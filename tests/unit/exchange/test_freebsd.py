"""What a Linux host made, on a host like FreeBSD: no RAM, no kernel without firmware, no ports."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path

import pytest

from lab.errors import HostUnfit
from lab.guest.network import own_address
from lab.hypervisor import Capabilities
from lab.lifecycle.labs import power
from lab.lifecycle.labs.query import query
from lab.lifecycle.labs.start import start
from lab.lifecycle.labs.up import up
from tests.support.exchange_world import Side
from tests.support.lifecycle_world import named

BHYVE = Capabilities(
    "fake", "bhyve", why_cold="bhyve cannot", direct=False, forwards=False,
)  # fmt: skip


@pytest.fixture
def linux(tmp_path: Path) -> Side:
    return Side(tmp_path / "linux")


@pytest.fixture
def freebsd(tmp_path: Path) -> Side:
    return Side(tmp_path / "freebsd", capabilities=BHYVE, redirects=True)


@pytest.mark.parametrize("ram", [True, False], ids=["warm", "--cold"])
def test_a_template_from_linux_starts_labs_there(linux: Side, freebsd: Side, ram: bool) -> None:
    """The way of docs/freebsd.md: its disks are of a cluster that had formed; RAM is left out."""
    archive = linux.exported("template", linux.make_template(), ram=ram)
    done = freebsd.imported("template", archive)
    assert "will boot" in done.notes[0]
    assert not list(freebsd.home.template(done.key).glob("*.ram"))
    with freebsd.open() as ctx:
        assert not ctx.store.templates.get(done.key).warm
        view = up(ctx, named("shop"))
        assert (view.started, view.template) == ("cold", done.key)
        assert ("bhyve cannot" if ram else "without RAM") in view.why_cold
        power.stop(ctx, "shop")
        view = start(ctx, "shop", timeout=20.0)
        segment = ctx.store.labs.get("shop").segment
        for number, node in enumerate(view.nodes, 1):
            assert node.host == own_address(segment, number)
            assert query(ctx, "shop", node.name, "SHOW GLOBAL STATUS LIKE 'wsrep_%'").rows


def test_a_request_for_ram_is_refused_with_the_reason(linux: Side, freebsd: Side) -> None:
    archive = linux.exported("template", linux.make_template())
    with pytest.raises(HostUnfit, match="bhyve cannot"):
        freebsd.imported("template", archive, warm_only=True)
    with freebsd.open() as ctx:
        assert ctx.store.images.all() == []
        assert ctx.store.templates.all() == []


def test_an_image_from_linux_makes_a_template_there(linux: Side, freebsd: Side) -> None:
    done = freebsd.imported("image", linux.exported("image", linux.make_image()))
    with replace(freebsd, forms=True).open() as ctx:
        view = up(ctx, named("shop"))
        assert view.image == done.key
        assert not any(record.warm for record in ctx.store.templates.all())
