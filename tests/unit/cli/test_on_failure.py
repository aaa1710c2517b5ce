"""``lab run --on-failure``, ``lab bundle --with-lab``, ``lab open``."""

from __future__ import annotations

import os
from pathlib import Path

import pytest

from lab.cli import main
from lab.cli.verbs.on_failure import OnFailure, parse
from lab.errors import HostUnfit, InvalidSpec
from lab.requests.archives import ImportOptions, OpenBundle
from lab.requests.labs import ChangeLab
from tests.unit.cli.test_fake_lifecycle import FakeLifecycle

Capture = pytest.CaptureFixture[str]

FAILS = ["--", "sh", "-c", "exit 3"]


@pytest.fixture(autouse=True)
def here(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    (tmp_path / "out").mkdir()
    monkeypatch.chdir(tmp_path)
    return tmp_path


def asked_of(world: FakeLifecycle) -> list[str]:
    return [call[0] for call in world.calls]


@pytest.mark.parametrize("wanted", ["bundle", "bundle=out", "capture", "capture=out"])
def test_a_bundle_of_the_lab_whose_command_failed(here: Path, wanted: str, capsys: Capture) -> None:
    """Protects who was not there: the evidence is written before the lab is removed."""
    world = FakeLifecycle()
    assert main(["run", "pxc", "--on-failure", wanted, *FAILS], lifecycle=world) == 3
    (path,) = (here / "out" if "=" in wanted else here).glob("run-*.tar.zst")
    assert path.read_bytes() == b"packed"
    assert path.stat().st_mode & 0o777 == 0o600
    name, said = world.called("bundle")
    assert said == {"with_lab": "capture" in wanted, "why": "sh ended with exit code 3"}
    assert path.name in capsys.readouterr().err
    asked = asked_of(world)
    assert asked.index("bundle") < asked.index("DeleteLab")
    assert name not in world.views


@pytest.mark.parametrize(("wanted", "ttl"), [("keep", 1800.0), ("keep=2h", 7200.0)])
def test_the_lab_is_kept(wanted: str, ttl: float, capsys: Capture) -> None:
    """Protects the user of the evidence: its name is said, and its lease ends."""
    world = FakeLifecycle()
    assert main(["run", "pxc", "--on-failure", wanted, *FAILS], lifecycle=world) == 3
    (asked,) = [found for found in world.called("ChangeLab") if isinstance(found, ChangeLab)]
    assert asked.ttl == ttl
    assert f"`lab down {asked.lab}`" in capsys.readouterr().err
    assert asked.lab in world.views


@pytest.mark.parametrize("wanted", ["bundle", "capture", "keep"])
def test_nothing_of_that_if_it_succeeds(here: Path, wanted: str) -> None:
    """Protects disks and memory."""
    world = FakeLifecycle()
    assert main(["run", "pxc", "--on-failure", wanted, "--", "true"], lifecycle=world) == 0
    assert "bundle" not in asked_of(world)
    assert "ChangeLab" not in asked_of(world)
    assert not world.views
    assert not list(here.glob("*.zst"))


def test_the_lab_goes_though_the_bundle_fails(here: Path, capsys: Capture) -> None:
    """Protects the host, and the exit code of the command."""
    world = FakeLifecycle()
    world.fails["bundle"] = HostUnfit("the disk is full")
    assert main(["run", "pxc", "--on-failure", "bundle", *FAILS], lifecycle=world) == 3
    assert "the disk is full" in capsys.readouterr().err
    assert not world.views
    assert not list(here.glob("*.zst*"))


@pytest.mark.parametrize("wanted", ["bundle", "keep"])
def test_the_lab_goes_whatever_is_raised(wanted: str) -> None:
    """Protects the host: stderr may be a pipe that nobody reads."""
    world = FakeLifecycle()
    world.fails["bundle"] = world.fails["ChangeLab"] = ValueError("a defect")
    assert main(["run", "pxc", "--on-failure", wanted, *FAILS], lifecycle=world) == 3
    assert not world.views


def test_a_report_that_cannot_be_written_is_no_failure_of_the_command() -> None:
    """Protects from a lab that is kept for nothing, and from a reason that is wrong."""
    world = FakeLifecycle()
    words = ["run", "pxc", "--report", "missing/r", "--on-failure", "keep", "--", "true"]
    assert main(words, lifecycle=world) == 5
    assert not world.views


def test_what_was_done_is_said_with_quiet_too(capsys: Capture) -> None:
    """Protects who has to find the lab: its name is a random one."""
    world = FakeLifecycle()
    assert main(["-q", "run", "pxc", "--on-failure", "keep", *FAILS], lifecycle=world) == 3
    assert f"kept the lab {next(iter(world.views))}" in capsys.readouterr().err


def test_a_service_writes_none_with_the_lab() -> None:
    """Protects hours of tests: it is refused before, not after them."""
    with pytest.raises(InvalidSpec, match="by the host of the lab"):
        parse("-x", "capture", url="https://db1.example")
    assert parse("-x", "bundle", url="https://db1.example").what == "bundle"


def test_a_file_that_is_none(here: Path) -> None:
    """Protects pipes and links: they are written to, and not replaced."""
    world = FakeLifecycle("shop")
    (here / "link").symlink_to(here / "target")
    assert main(["bundle", "shop", "-o", "link"], lifecycle=world) == 0
    assert (here / "link").is_symlink()
    assert (here / "target").read_bytes() == b"packed"
    os.mkfifo(here / "pipe")
    reading = os.open(here / "pipe", os.O_RDONLY | os.O_NONBLOCK)
    try:
        assert main(["bundle", "shop", "-o", "pipe"], lifecycle=world) == 0
        assert os.read(reading, 100) == b"packed"
    finally:
        os.close(reading)
    assert sorted(path.name for path in here.iterdir()) == ["link", "out", "pipe", "target"]


@pytest.mark.parametrize(
    ("value", "why"),
    [
        ("burn", "not one of bundle, capture, keep"),
        ("keep=soon", "soon"),
        ("keep=", "not one of"),
        ("bundle=missing", "no directory missing"),
    ],
)
def test_what_is_wrong_is_said_before_a_lab_is_made(value: str, why: str, capsys: Capture) -> None:
    """Protects minutes: a flag that could not be followed is refused at once."""
    world = FakeLifecycle()
    assert main(["run", "pxc", "--on-failure", value, *FAILS], lifecycle=world) == 2
    assert why in capsys.readouterr().err
    assert "CreateLab" not in asked_of(world)


def test_the_value_of_the_flag() -> None:
    assert parse("-x", "keep=90s") == OnFailure("keep", ttl=90.0)
    assert parse("-x", "capture=out") == OnFailure("capture", Path("out").absolute())
    with pytest.raises(InvalidSpec, match="-x"):
        parse("-x", "")


def test_a_bundle_with_the_lab_is_asked_about(here: Path, capsys: Capture) -> None:
    """Protects the data: off a terminal nobody can agree, so `--yes` does."""
    world = FakeLifecycle("shop")
    assert main(["bundle", "shop", "--with-lab", "-o", "x"], lifecycle=world) == 2
    assert "--yes" in capsys.readouterr().err
    assert "bundle" not in asked_of(world)
    assert main(["bundle", "shop", "--with-lab", "--yes", "-o", "x"], lifecycle=world) == 0
    assert world.called("bundle") == ["shop", {"with_lab": True, "why": ""}]
    assert (here / "x").read_bytes() == b"packed"


def test_a_bundle_that_lacks_the_lab(here: Path, capsys: Capture) -> None:
    """Protects who sends it: the file is there, and the exit code says that it is not all."""
    world = FakeLifecycle("shop")
    world.lacks_lab = "the lab shop is busy"
    assert main(["bundle", "shop", "--with-lab", "-y", "-o", "x"], lifecycle=world) == 5
    said = capsys.readouterr()
    assert said.out.startswith("x: ")
    assert "x was written without the lab: the lab shop is busy" in said.err
    assert (here / "x").exists()


@pytest.mark.parametrize(
    ("line", "asked", "timeout"),
    [
        ("open f", OpenBundle(where="f"), 77.0),
        ("open - look --no-ram --ttl 2h --keep-sessions --timeout 1m",
         OpenBundle(name="look", how=ImportOptions(ram=False), ttl=7200.0, keep_sessions=True),
         60.0),
    ],
)  # fmt: skip
def test_open_passes_on_every_flag(line: str, asked: OpenBundle, timeout: float) -> None:
    world = FakeLifecycle()
    assert main(line.split(), lifecycle=world) == 0
    assert world.called("OpenBundle") == [asked, {"timeout": timeout}]
