"""A template that QEMU refuses to restore: the lab is created nevertheless, on real clusters."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest

from lab.config.settings import load
from lab.hypervisor import Disk, GuestSpec, Memory, MemoryImage
from lab.lifecycle.captures import manifests, template
from lab.lifecycle.core.context import Context, open_context
from lab.lifecycle.labs.down import down
from lab.lifecycle.labs.query import query
from lab.lifecycle.labs.rollback import rollback
from lab.lifecycle.labs.up import up
from lab.names import template_ref
from lab.requests.labs import CreateLab, RollBack
from tests.e2e.e2e_site import PXC, Site

pytestmark = pytest.mark.e2e

SIZE = "SHOW STATUS LIKE 'wsrep_cluster_size'"


class Odd:
    """The real hypervisor, which restores into guests that have one disk more: QEMU refuses."""

    def __init__(self, real: Any, directory: Path) -> None:
        self._real = real
        self._directory = directory
        self.refused = 0

    def __getattr__(self, name: str) -> Any:
        return getattr(self._real, name)

    @property
    def memory(self) -> Memory:
        return self

    def restore(self, guest: GuestSpec, memory: MemoryImage) -> None:
        """Raises RestoreFailed."""
        self.refused += 1
        path = self._directory / f"{guest.name}.more"
        path.write_bytes(bytes(1 << 20))
        path.chmod(0o666)
        more = Disk(path, "raw", "lab-more")
        self._real.restore(replace(guest, disks=(*guest.disks, more)), memory)


@contextmanager
def opened(site: Site, notes: list[str]) -> Iterator[Context]:
    """The installation, in this process; its notes are in ``notes``."""
    env = {name: value for name, value in site.env.items() if name.startswith("LAB_")}

    def hear(event: Any) -> None:
        if event.state == "note":
            notes.append(event.text)

    with open_context(load({}, env=env, files=[]), hear) as ctx:
        yield ctx


def spoil(site: Site, key: str) -> None:
    """Damage a device state so that only QEMU can detect it: the manifest has its new hash."""
    path = site.home.device_state(template_ref(key), "n2")
    content = path.read_bytes()
    path.chmod(0o600)
    path.write_bytes(content[: len(content) // 2])
    manifest = manifests.read(site.home.manifest(template_ref(key)))
    nodes = tuple(
        replace(node, state=manifests.facts(path)) if node.name == "n2" else node
        for node in manifest.nodes
    )
    manifests.write(site.home.manifest(template_ref(key)), replace(manifest, nodes=nodes))


@pytest.mark.rare  # three clusters are formed; what real QEMU refuses is tested in the contract
def test_what_qemu_refuses_is_formed_again_and_then_booted(image: Site) -> None:
    """First one damaged template, then a QEMU that has other devices whatever is formed."""
    site, name = image, image.name("odd")
    image.lab("template", "build", *PXC, "--nodes", "2", timeout=600)
    spoil(site, site.template(2)["key"])
    done = site.lab("up", *PXC, "--nodes", "2", "--name", name, timeout=900)
    assert "(warm)" in done.stdout
    assert "is broken and is not used: its RAM was not restored" in done.stderr
    assert "the previous template is broken: forming a cluster" in done.stderr
    formed = site.template(2)
    assert (formed["state"], formed["warm"], formed["why"]) == ("ready", True, "")
    site.lab("down", name)

    notes: list[str] = []
    directory = site.root / "odd"
    directory.mkdir(mode=0o755)
    with opened(site, notes) as real:
        odd = Odd(real.hypervisor, directory)
        ctx = replace(real, hypervisor=odd)
        asked = CreateLab(blueprint="pxc", name=name, nodes=2, engine="mariadb")
        view = up(ctx, asked, timeout=400.0)
        assert (view.state, view.started) == ("ready", "cold")
        assert "could not be restored" in view.why_cold
        assert odd.refused == 4, "two nodes of each of two templates"
        assert query(ctx, name, "n2", SIZE).rows[0][1] == "2"
        listed = [one for one in template.templates(ctx) if one.blueprint == PXC[0]]
        (found,) = (one for one in listed if one.nodes == 2)
        assert (found.state, found.warm) == ("ready", False)
        assert len([note for note in notes if "was not restored" in note]) == 2
        # A rollback would fail as well if the RAM were still considered good.
        ctx.store.templates.update(found.key, warm=True, why="")
        query(ctx, name, "n1", "CREATE DATABASE later")
        back = rollback(ctx, RollBack(lab=name), timeout=400.0)
        assert (back.state, back.started) == ("ready", "cold")
        assert ["later"] not in [list(row) for row in query(ctx, name, "n2", "SHOW DATABASES").rows]
        assert query(ctx, name, "n1", SIZE).rows[0][1] == "2"
        assert odd.refused == 6
        assert ctx.store.templates.get(found.key).state == "broken"
        down(ctx, name)
    for path in directory.iterdir():
        path.unlink()
    directory.rmdir()
    site.lab("gc")
    assert site.settled() == []
