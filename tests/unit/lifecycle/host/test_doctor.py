"""``lab doctor``: what it asks of the host, and how it says what it found."""

from __future__ import annotations

import json
from pathlib import Path

import pytest

from lab.cli import main
from lab.config.settings import load
from lab.host.finding import Finding
from lab.hypervisor import Capabilities
from lab.lifecycle.host.doctor import committed_memory, doctor, home_path, of_hypervisor
from lab.lifecycle.labs import power
from lab.lifecycle.labs.up import up
from tests.support.lifecycle_world import World, make_template, named
from tests.unit.cli.test_fake_lifecycle import FakeLifecycle

WHY = Finding(
    "zfs cache flush", "warn", "disabled: x=1", "sysctl x=0", "a power loss damages the pool"
)


def test_zfs_is_looked_at(tmp_path: Path) -> None:
    """Protects from a doctor that forgets ZFS, and from one that fails without it."""
    settings = load({"home": tmp_path / "home", "hypervisor": "fake"}, env={}, files=[])
    found = [one for one in doctor(settings) if one.topic.startswith("zfs")]
    assert found
    assert all(one.level != "fail" for one in found)
    if not Path("/sys/module/zfs").exists() and len(found) == 1:
        assert found == [Finding("zfs", "ok", "not installed: volumes are qcow2 files")]


@pytest.mark.parametrize(
    ("name", "hypervisor", "level", "text"),
    [
        ("plain", "libvirt", "ok", "bytes, of 84 at most"),
        ("a b", "libvirt", "ok", "bytes, of 84 at most"),
        ("x" * 84, "libvirt", "fail", "84 is the limit"),
        ("x" * 84, "fake", "ok", "x" * 84),
        ("a\nb", "fake", "fail", "has the character"),
        ('a"b', "libvirt", "fail", "has the character"),
    ],
)
def test_the_path_of_the_home(name: str, hypervisor: str, level: str, text: str) -> None:
    """Protects from an error of QEMU, libvirt or apt in the middle of a command."""
    home = str(Path("/var/lib") / name)  # only looked at; a test's own path may be too long
    settings = load({"home": home, "hypervisor": hypervisor}, env={}, files=[])
    (found,) = home_path(settings)
    assert (found.level, text in found.value) == (level, True)
    assert found.value.isprintable()
    assert bool(found.advice) == (level == "fail")


@pytest.mark.parametrize("builder", [False, True])
def test_what_a_bhyve_host_needs_for_builders(tmp_path: Path, *, builder: bool) -> None:
    """Protects hosts that build in a guest: the seed is written by mtools, on FreeBSD as well."""
    given = {"home": str(tmp_path / "home"), "hypervisor": "bhyve", "storage": "qcow2"}
    if builder:
        given["builder"] = str(tmp_path / "cloud.raw")
    topics = {one.topic for one in doctor(load(given, env={}, files=[]))}
    assert topics & {"mformat", "mcopy", "mmdebstrap"} == (
        {"mformat", "mcopy"} if builder else set()
    )


def test_memory_of_running_labs(tmp_path: Path) -> None:
    """Protects the ARC's figure: stopped labs take no memory, and without a record none does."""
    world = World(tmp_path)
    with world.open() as ctx:
        make_template(ctx)
        up(ctx, named("a"))
        view = up(ctx, named("b"))
        each = len(view.nodes) * view.memory
        assert committed_memory(ctx.settings) == 2 * each
        power.stop(ctx, "a")
        assert committed_memory(ctx.settings) == each
    other = load({"home": tmp_path / "other"}, env={}, files=[])
    assert committed_memory(other) == 0
    other.home.create()
    other.home.database.write_bytes(b"no database" * 100)
    assert committed_memory(other) is None


def test_emulation_is_noted_with_its_reason() -> None:
    """Protects who wonders why guests are slow."""
    facts = {"qemu": "7.2", "accelerator": "TCG"}
    found = of_hypervisor(Capabilities("x", "tcg", why_emulated="no", facts=facts))
    advice = "guests are emulated: many times slower than with KVM"
    assert [*found] == [
        Finding("qemu", "ok", "7.2"),
        Finding("accelerator", "note", "TCG (no KVM: no)", advice),
    ]
    facts["accelerator"] = "KVM"
    found = of_hypervisor(Capabilities("x", "kvm", facts=facts))
    assert {one.level for one in found} == {"ok"}


def test_reasons_are_told(capsys: pytest.CaptureFixture[str]) -> None:
    """Protects people from orders without a reason, and programs from having to parse."""
    world = FakeLifecycle()
    world.findings = [WHY]
    assert main(["doctor"], lifecycle=world) == 0
    assert capsys.readouterr().out.splitlines()[1:] == [
        "warn   zfs cache flush  disabled: x=1",
        "       -> sysctl x=0",
        "          (a power loss damages the pool)",
    ]
    assert main(["doctor", "-o", "json"], lifecycle=world) == 0
    (one,) = json.loads(capsys.readouterr().out)
    assert one == {
        "topic": "zfs cache flush",
        "level": "warn",
        "value": "disabled: x=1",
        "advice": "sysctl x=0",
        "why": "a power loss damages the pool",
    }
