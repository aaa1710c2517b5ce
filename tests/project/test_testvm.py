"""The runner of the platform tests, as far as it needs no guest."""

from __future__ import annotations

import os
import sys
import threading
from collections.abc import Callable
from pathlib import Path

import pytest

from lab.errors import CommandFailed, NotReady
from lab.run import run
from testvm import cache, machine, runner
from testvm.machine import Accelerator
from testvm.release import RELEASES, ROOT, requirements, selected

BOOKWORM, TRIXIE = RELEASES
EMULATED = Accelerator(False, "max,cx16=off,erms=off,fsrm=off", "no vmx", 2_600_000)

PINS = """\
# by a tool
mypy==2.0 \\
    --hash=sha256:1
# via lab
pytest==9.0 \\
    --hash=sha256:2 \\
    --hash=sha256:3
libvirt-python==11.3.0 ; sys_platform == 'linux' \\
    --hash=sha256:4
"""


def test_guest_gets_the_pins_of_the_project_but_not_its_checkers() -> None:
    """Protects from a guest that tests with other versions, or without pytest."""
    assert requirements(PINS) == "pytest==9.0 \\\n    --hash=sha256:2 \\\n    --hash=sha256:3\n"
    real = requirements((ROOT / "packaging/requirements/dev.txt").read_text())
    for name in ("pytest", "sqlalchemy", "typer", "msgspec"):
        assert f"\n{name}==" in f"\n{real}"


def fill(out: Path) -> None:
    (out / "disk.raw").touch()


def no_waiting() -> None:
    raise AssertionError("nobody else builds")


def test_image_is_built_once_and_old_ones_go(tmp_path: Path) -> None:
    built: list[Path] = []

    def make(out: Path) -> None:
        built.append(out)
        fill(out)

    for _ in range(2):
        with cache.image(tmp_path, "trixie", "one", make, no_waiting) as image:
            assert (image / "disk.raw").exists()
    with cache.image(tmp_path, "bookworm", "other", make, no_waiting):
        pass
    assert len(built) == 2
    with cache.image(tmp_path, "trixie", "two", make, no_waiting):
        pass
    assert {path.name for path in tmp_path.iterdir() if path.is_dir()} == {
        "trixie-two",
        "bookworm-other",
    }


def test_image_in_use_stays(tmp_path: Path) -> None:
    """Protects a guest that is kept running while the checkout moves to a newer image."""
    with cache.image(tmp_path, "trixie", "one", fill, no_waiting) as old:
        with cache.image(tmp_path, "trixie", "two", fill, no_waiting):
            pass
        assert old.exists()


def test_failed_build_leaves_nothing(tmp_path: Path) -> None:
    def fail(out: Path) -> None:
        fill(out)
        raise NotReady("no")

    with pytest.raises(NotReady), cache.image(tmp_path, "trixie", "one", fail, no_waiting):
        pass
    assert not [path for path in tmp_path.iterdir() if path.is_dir()]


def test_leftover_of_a_killed_build_is_replaced(tmp_path: Path) -> None:
    left = tmp_path / "trixie-one.building"
    left.mkdir()
    (left / "half").touch()
    with cache.image(tmp_path, "trixie", "one", fill, no_waiting) as image:
        assert [path.name for path in image.iterdir()] == ["disk.raw"]
    assert not left.exists()


def test_two_at_once_build_once(tmp_path: Path) -> None:
    inside, go = threading.Event(), threading.Event()
    waited: list[bool] = []
    found: list[Path] = []

    def slow(out: Path) -> None:
        inside.set()
        assert go.wait(10)
        fill(out)

    def never(_: Path) -> None:
        raise AssertionError("built twice")

    def waits() -> None:
        waited.append(True)
        go.set()

    def take(make: Callable[[Path], None], waiting: Callable[[], None]) -> None:
        with cache.image(tmp_path, "trixie", "one", make, waiting) as image:
            found.append(image)

    first = threading.Thread(target=take, args=(slow, no_waiting))
    first.start()
    assert inside.wait(10)
    take(never, waits)
    first.join(10)
    assert waited == [True]
    assert len(found) == 2


def argv(
    image: Path = Path("/cache/trixie-1"),
    *,
    once: bool = True,
    accelerator: machine.Accelerator = EMULATED,
    given: Path | None = None,
) -> list[str]:
    return machine.argv(
        image,
        Path("/initrd"),
        accelerator,
        "socket,path=x,abstract=on",
        console="stdio",
        memory=3 << 30,
        once=once,
        given=given,
    )


def test_guest_leaves_nothing_behind() -> None:
    """Protects cached images and the host: all writes are discarded, QEMU dies with us."""
    words = argv()
    assert words[:3] == ["setpriv", "--pdeathsig", "KILL"]
    drives = [words[at + 1] for at, word in enumerate(words) if word == "-drive"]
    assert len(drives) == 3
    assert all("snapshot=on" in drive for drive in drives)
    assert "-no-reboot" in words


@pytest.mark.parametrize(
    ("accelerator", "given", "cpus", "emulated"),
    [
        (EMULATED, None, "1", True),
        (EMULATED, Path("/a/template.lab"), "2", True),
        (machine.Accelerator(True, "host"), None, "2", False),
    ],
    ids=["emulated", "with guests in it", "KVM"],
)
def test_what_only_emulation_needs_is_only_there(
    accelerator: machine.Accelerator, given: Path | None, cpus: str, *, emulated: bool
) -> None:
    """Protects CI's time where there is no KVM, and what a true machine shows where there is."""
    words = argv(accelerator=accelerator, given=given)
    assert words[words.index("-smp") + 1] == cpus
    cmdline = words[words.index("-append") + 1].split()
    for word in ("norandmaps", "tsc=reliable", "tsc_early_khz=2600000"):
        assert (word in cmdline) == emulated


def test_all_platform_tests_run_unless_files_are_named() -> None:
    assert runner.pytest_options(["-x", "-k", "clone"])[-4:] == [runner.TESTS, "-x", "-k", "clone"]
    assert runner.TESTS not in runner.pytest_options(["tests/project/test_testvm.py::test_x"])


SLOW_TEST = """
import pathlib, pytest, signal, time
@pytest.fixture
def pool():
    yield
    pathlib.Path({done!r}).touch()
def test_it(pool):
    # The time is over now: on a busy host it could be before there is a pool.
    left, _ = signal.setitimer(signal.ITIMER_REAL, 0.1)
    assert 0 < left <= 100
    time.sleep(60)
"""


def test_late_tests_on_the_host_still_clean_up(tmp_path: Path) -> None:
    """Protects hosts with ZFS: tests that are cut off there must remove their pools."""
    done = tmp_path / "done"
    slow = tmp_path / "test_slow.py"
    slow.write_text(SLOW_TEST.format(done=str(done)))
    program = (
        f"from testvm import runner; raise SystemExit(runner.on_host([{str(slow)!r}], timeout=100))"
    )
    # Plugins take longer to load than the tests may take.
    env = {**os.environ, "PYTEST_DISABLE_PLUGIN_AUTOLOAD": "1"}
    with pytest.raises(CommandFailed) as failed:
        run([sys.executable, "-c", program], cwd=ROOT, env=env, timeout=60)
    assert failed.value.status == pytest.ExitCode.INTERRUPTED
    assert done.exists()


@pytest.mark.parametrize("version", ["", "2.2.1", "2.30.1"])
def test_guest_with_another_zfs_is_refused(version: str) -> None:
    """Protects the claim of two OpenZFS versions: a guest without ZFS would only skip."""
    with pytest.raises(NotReady, match="ZFS"):
        runner.check({"zfs": version}, TRIXIE)
    runner.check({"zfs": "2.3.9-0+deb13u1"}, TRIXIE)


def test_what_one_version_is_enough_for_runs_once() -> None:
    """Protects CI's time; and no test is left out, however many releases are tested."""
    old, new = RELEASES
    assert selected(new, RELEASES, ["-x"]) == ["-m", "not oldest", "-x"]
    assert selected(old, RELEASES, ["-x"]) == ["-m", "not newest", "-x"]
    for alone in RELEASES:
        assert selected(alone, [alone], ["-x"]) == ["-x"]
    assert selected(old, RELEASES, ["-m", "slow"]) == ["-m", "slow"], "who chooses, chooses"
