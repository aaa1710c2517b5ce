"""Images built in a guest: what the guest is given, and what is believed of what it says."""

from __future__ import annotations

import io
import json
import os
import shutil
import subprocess
import tarfile
import threading
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path

import pytest

from lab.errors import (
    CommandFailed,
    HostUnfit,
    Interrupted,
    InvalidSpec,
    LabError,
    NotFound,
    RecipeFailed,
)
from lab.fake import images
from lab.fake.hypervisor import FakeHypervisor
from lab.guest import nocloud
from lab.hypervisor import GuestSpec, memory_of
from lab.imagebuild import isolate, manifest
from lab.imagebuild.__main__ import as_data
from lab.imagebuild.in_guest.builder import Builder, check_cloud_image
from lab.imagebuild.recipe import load
from lab.lifecycle.core.release import lost_logs
from lab.paths import Home
from lab.progress import Progress
from lab.units import MIB
from lab.wait import Deadline, until
from tests.support.lifecycle_world import World

pytestmark = pytest.mark.rare

RECIPE = load("mariadb")
Play = Callable[[Path], None]
"""A builder: writes what it made over the disk at that path."""


class Watched(FakeHypervisor):
    """A fake that keeps what was started."""

    def __init__(self, directory: Path, home: str) -> None:
        super().__init__(directory, home)
        self.started: list[GuestSpec] = []

    def start(self, guest: GuestSpec) -> None:
        super().start(guest)
        self.started.append(guest)


def archive(directory: Path, **more: bytes) -> bytes:
    """What builder.sh writes of ``directory``, and other files."""
    buffer = io.BytesIO()
    with tarfile.open(fileobj=buffer, mode="w", format=tarfile.GNU_FORMAT) as tar:
        for path in sorted(directory.iterdir()) if directory.exists() else []:
            tar.add(path, path.name)
        for name, content in more.items():
            info = tarfile.TarInfo(name)
            info.size = len(content)
            tar.addfile(info, io.BytesIO(content))
    return buffer.getvalue()


def made(tmp_path: Path) -> Path:
    """A directory as a build in the guest leaves it."""
    there = tmp_path / "there"
    there.mkdir()
    log = there / "build.log"
    images.build(RECIPE, there, layout="single", progress=Progress(), log=log)
    with (there / "os.raw").open("r+b") as disk:
        disk.seek(3 * MIB)
        disk.write(b"in the middle")
    values = json.loads((there / "manifest.json").read_text())
    values["digests"]["os.raw"] = manifest.digest(there / "os.raw")
    (there / "manifest.json").write_text(json.dumps(values))
    (there / "status").write_text("0\n")
    return there


@pytest.fixture
def cloud(tmp_path: Path) -> Path:
    path = tmp_path / "cloud.raw"
    path.write_bytes(bytes(512) + b"EFI PART" + bytes(MIB))
    return path


@pytest.fixture
def hypervisor(tmp_path: Path) -> Watched:
    home = Home(tmp_path / "home")
    home.create()
    return Watched(tmp_path / "guests", home.id)


@contextmanager
def played(hypervisor: FakeHypervisor, play: Play) -> Iterator[None]:
    """Be the builder that is started in the block: it writes its disk and switches itself off."""

    def run() -> None:
        def there() -> GuestSpec | None:
            return hypervisor.started[0] if hypervisor.started else None  # type: ignore[attr-defined]

        guest = until(there, Deadline.after(20))
        assert guest
        play(guest.disks[1].path)
        hypervisor.stop(guest.name, force=True)

    thread = threading.Thread(target=run)
    thread.start()
    try:
        yield
    finally:
        thread.join()


def build(tmp_path: Path, hypervisor: Watched, cloud: Path, play: Play) -> manifest.BuiltImage:
    home = Home(tmp_path / "home")
    out = home.build("mariadb-0123456789abcdef")
    out.mkdir()
    log = home.image_log(out.name)
    with played(hypervisor, play):
        return Builder(cloud, home, hypervisor).build(
            RECIPE, out, layout="single", progress=Progress(), log=log
        )


def writes(content: bytes) -> Play:
    def play(disk: Path) -> None:
        with disk.open("r+b") as file:
            file.write(content)

    return play


def test_what_it_made_is_the_image(tmp_path: Path, hypervisor: Watched, cloud: Path) -> None:
    there = made(tmp_path)
    image = build(tmp_path, hypervisor, cloud, writes(archive(there)))
    (guest,) = hypervisor.started
    assert image.disks["os"].read_bytes() == (there / "os.raw").read_bytes()
    assert image.disks["os"].stat().st_blocks * 512 < 2 * MIB, "holes stay holes"
    assert manifest.read(image.kernel.parent) == image
    log = Home(tmp_path / "home").image_log("mariadb-0123456789abcdef")
    assert log.read_text() == "a fake build\n"
    assert hypervisor.guests() == {}
    assert not guest.console_log.exists()


def test_what_it_is_given(tmp_path: Path, hypervisor: Watched, cloud: Path) -> None:
    """Protects the builder: a fresh disk with room, cloud-init's seed, a way to the mirrors."""
    build(tmp_path, hypervisor, cloud, writes(archive(made(tmp_path))))
    (guest,) = hypervisor.started
    own, result, seed = guest.disks
    assert guest.network.uplink
    with own.path.open("rb") as disk:
        assert disk.read(cloud.stat().st_size) == cloud.read_bytes()
    assert own.path.stat().st_size >= 8 << 30
    assert result.path.stat().st_size > RECIPE.disk
    content = read_seed(seed.path)
    assert content["user-data"].startswith(b"#!/bin/sh")
    assert b"instance-id: " in content["meta-data"]
    assert content["job"] == b"RECIPE=mariadb\nLAYOUT=single\nMIRROR=\n"
    assert b"mmdebstrap mmdebstrap\n" in content["tools"]
    with tarfile.open(fileobj=io.BytesIO(content["lab.tar"])) as tar:
        names = tar.getnames()
    assert {"lab/imagebuild/__main__.py", "lab/recipes/mariadb/recipe.toml", "lab/run.py"} <= set(
        names
    )


def read_seed(path: Path) -> dict[str, bytes]:
    """The files of a seed, read by mtools."""
    assert read(path, "mlabel", "-s", "::").strip() == b"Volume label is CIDATA"
    names = ("user-data", "meta-data", "job", "tools", "lab.tar")
    return {name: read(path, "mcopy", f"::{name}", "-") for name in names}


def read(seed: Path, tool: str, *arguments: str) -> bytes:
    argv = [tool, "-i", str(seed), *arguments]
    return subprocess.run(argv, capture_output=True, check=True, timeout=60).stdout


def test_the_program_it_is_given_runs_alone(tmp_path: Path) -> None:
    """Protects builders, which have Python's standard library and nothing else."""
    import sys

    from lab.imagebuild.in_guest.builder import build_program

    with tarfile.open(fileobj=io.BytesIO(build_program())) as tar:
        for member in tar:
            path = tmp_path / member.name
            path.parent.mkdir(parents=True, exist_ok=True)
            content = tar.extractfile(member)
            assert content
            path.write_bytes(content.read())
    argv = [sys.executable, "-I", "-S", "-c"]
    argv.append(f"import sys; sys.path.insert(0, {str(tmp_path)!r}); ")
    argv[-1] += "import lab.imagebuild.__main__ as m"
    argv[-1] += "\nsys.exit(m.main(['no-such-recipe', sys.argv[1]]))"
    out = tmp_path / "out"
    out.mkdir()
    done = subprocess.run([*argv, out], check=False, capture_output=True, text=True)
    assert done.returncode == NotFound.exit_code, done.stderr
    assert "no-such-recipe" in json.loads((out / "failure.json").read_text())["what"]


def nothing(_: Path) -> None:
    """A builder that ends without a word."""


def test_one_that_ends_without_a_word(tmp_path: Path, hypervisor: Watched, cloud: Path) -> None:
    with pytest.raises(HostUnfit, match="without a result") as failure:
        build(tmp_path, hypervisor, cloud, nothing)
    assert "cloud-init" in failure.value.hint


def test_what_it_failed_with_is_told(tmp_path: Path, hypervisor: Watched, cloud: Path) -> None:
    said = {"code": 5, "what": "cannot reach a Debian mirror", "hint": "check", "details": ["x"]}
    files = {"failure.json": json.dumps(said).encode(), "status": b"5\n", "build.log": b"E: no\n"}
    with pytest.raises(HostUnfit, match="in the builder: cannot reach a Debian mirror") as failure:
        build(tmp_path, hypervisor, cloud, writes(archive(tmp_path / "none", **files)))
    assert (failure.value.hint, failure.value.details) == ("check", ("x",))
    assert not isinstance(failure.value, RecipeFailed)


def test_it_says_whether_another_recipe_could_be_built(
    tmp_path: Path, hypervisor: Watched, cloud: Path
) -> None:
    """Protects users who did not require this engine: the next one is used."""
    failed = as_data(CommandFailed(["sh"], 1, stderr="mysqld ended"))
    files = {"failure.json": json.dumps(failed).encode(), "status": b"6\n"}
    with pytest.raises(RecipeFailed, match="in the builder: sh") as failure:
        build(tmp_path, hypervisor, cloud, writes(archive(tmp_path / "none", **files)))
    assert failure.value.details == ("mysqld ended",)
    assert as_data(HostUnfit("no space"))["recipe"] is False


def test_one_that_is_paused_is_not_waited_for(
    tmp_path: Path, hypervisor: Watched, cloud: Path
) -> None:
    """Protects from an hour of silence: a guest whose disk is full is paused."""

    def stand_still(_: Path) -> None:
        (guest,) = hypervisor.guests()
        memory_of(hypervisor).pause([guest])
        until(lambda: not hypervisor.guests(), Deadline.after(20))

    with pytest.raises(HostUnfit, match="paused"):
        build(tmp_path, hypervisor, cloud, stand_still)
    assert hypervisor.guests() == {}


def test_one_that_is_called_off(tmp_path: Path, hypervisor: Watched, cloud: Path) -> None:
    """Protects who cancels a job of the service: it does not build for nobody."""

    def called_off() -> None:
        if hypervisor.started:
            raise Interrupted("cancelled")

    home = Home(tmp_path / "home")
    out = home.build("mariadb-0123456789abcdef")
    out.mkdir()
    with pytest.raises(Interrupted):
        Builder(cloud, home, hypervisor).build(
            RECIPE, out, layout="single", progress=Progress(halt=called_off),
            log=home.image_log(out.name),
        )  # fmt: skip
    assert hypervisor.guests() == {}


def test_gc_keeps_the_log_of_one_that_runs(tmp_path: Path, cloud: Path) -> None:
    """Protects the last lines of a builder that does not end; it is recorded nowhere."""
    lost: list[list[Path]] = []
    with World(tmp_path / "world").open() as ctx:
        out = ctx.home.build("mariadb-0123456789abcdef")
        out.mkdir()

        def look() -> None:
            if ctx.hypervisor.guests():
                assert list(ctx.home.console_log("x").parent.iterdir())
                lost.append(lost_logs(ctx))
                raise Interrupted("seen")

        with pytest.raises(Interrupted):
            Builder(cloud, ctx.home, ctx.hypervisor).build(
                RECIPE, out, layout="single", progress=Progress(halt=look),
                log=ctx.home.image_log(out.name),
            )  # fmt: skip
        assert lost == [[]]
        assert not list(ctx.home.console_log("x").parent.iterdir())


def test_one_that_could_not_begin(tmp_path: Path, hypervisor: Watched, cloud: Path) -> None:
    log = b"E: Unable to locate package mmdebstrap\n"
    content = archive(tmp_path / "none", **{"status": b"100\n", "build.log": log})
    with pytest.raises(HostUnfit, match="could not begin") as failure:
        build(tmp_path, hypervisor, cloud, writes(content))
    assert failure.value.details == ("E: Unable to locate package mmdebstrap",)


def with_manifest(there: Path, **values: object) -> bytes:
    path = there / "manifest.json"
    path.write_text(json.dumps({**json.loads(path.read_text()), **values}))
    return archive(there)


def without_manifest(there: Path) -> bytes:
    (there / "manifest.json").unlink()
    return archive(there)


SPOILED: dict[str, Callable[[Path], bytes]] = {
    "a file above": lambda there: archive(there, **{"../escaped": b"x"}),
    "a file of its own": lambda there: archive(there, passwd=b"x"),
    "too large": lambda there: archive(there, status=bytes(2048)),
    "cut": lambda there: archive(there)[: 4 * MIB],
    "another recipe": lambda there: with_manifest(there, recipe="percona-xtradb-cluster"),
    "a kernel elsewhere": lambda there: with_manifest(there, kernel="/etc/passwd"),
    "other bytes": lambda there: archive(there).replace(b"in the middle", b"IN THE MIDDLE"),
    "no manifest": without_manifest,
}


@pytest.mark.parametrize("how", SPOILED)
def test_what_makes_no_sense_is_refused(
    how: str, tmp_path: Path, hypervisor: Watched, cloud: Path
) -> None:
    """Protects the host from a guest, whose output comes from outside."""
    content = SPOILED[how](made(tmp_path))
    with pytest.raises(LabError):
        build(tmp_path, hypervisor, cloud, writes(content))
    assert not list(tmp_path.rglob("escaped"))
    assert hypervisor.guests() == {}


@pytest.mark.parametrize(
    ("content", "why"),
    [
        (b"QFI\xfb" + bytes(1024), "qcow2"),
        (b"\x1f\x8b" + bytes(1024), "GPT"),
        (b"", "GPT"),
        (None, "cannot be read"),
    ],
)
def test_what_cannot_be_a_cloud_image(tmp_path: Path, content: bytes | None, why: str) -> None:
    path = tmp_path / "cloud.img"
    if content is not None:
        path.write_bytes(content)
    with pytest.raises(InvalidSpec, match=why):
        check_cloud_image(path)


def test_what_a_first_boot_finds(tmp_path: Path) -> None:
    """Protects cloud-init, which looks for a file system by its type, its label and its names."""
    seed = tmp_path / "seed.img"
    program = os.urandom(3 * MIB + 1)
    files = {"job": b"", "tools": b"a b\n", "lab.tar": program}
    nocloud.write(seed, b"#!/bin/sh\n", files, instance="i")
    found = read_seed(seed)
    assert found["lab.tar"] == program
    assert (found["job"], found["tools"], found["user-data"]) == (b"", b"a b\n", b"#!/bin/sh\n")
    assert found["meta-data"] == b"instance-id: i\nlocal-hostname: builder\n"
    listed = read(seed, "mdir", "-b", "::").decode().split()  # long names keep their case
    assert sorted(listed) == sorted(f"::/{name}" for name in found)
    assert seed.stat().st_size % MIB == 0
    assert seed.read_bytes()[510:512] == b"\x55\xaa"


@pytest.mark.skipif(not shutil.which("blkid"), reason="needs blkid")
def test_a_seed_is_what_blkid_calls_vfat(tmp_path: Path) -> None:
    """Protects the first boot: cloud-init finds the disk by blkid's type and label."""
    seed = tmp_path / "seed.img"
    nocloud.write(seed, b"#!/bin/sh\n", {}, instance="i")
    argv = ["blkid", "-p", "-o", "export", str(seed)]
    said = subprocess.run(argv, capture_output=True, text=True, check=True, timeout=60).stdout
    assert {"TYPE=vfat", "LABEL=CIDATA"} <= set(said.split())


@pytest.mark.skipif(os.geteuid() != 0, reason="users who are not root need Linux for that")
def test_what_a_build_left_is_removed_by_any_system(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Protects FreeBSD, which has neither setpriv nor unshare."""
    monkeypatch.setenv("PATH", "")
    left = tmp_path / "left"
    (left / "rootfs/etc").mkdir(parents=True)
    (left / "rootfs/loop").symlink_to(tmp_path)
    isolate.remove_tree(left)
    isolate.remove_tree(left)
    assert list(tmp_path.iterdir()) == []
