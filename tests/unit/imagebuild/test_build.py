"""The errors of a build that fails, and its parts that need no root."""

from __future__ import annotations

import dataclasses
import hashlib
import io
import lzma
import struct
import zlib
from pathlib import Path

import pytest

from lab.errors import CommandFailed, HostUnfit, InvalidSpec, RecipeFailed
from lab.imagebuild import bootstrap, disk, kernel, manifest
from lab.imagebuild.build import TOOLS, build, engine_version
from lab.imagebuild.manifest import BuiltImage
from lab.imagebuild.recipe import load
from lab.progress import Event, Progress
from lab.units import GIB, MIB

FAILED = CommandFailed(["mmdebstrap"], 1)

NO_NETWORK = """\
I: running apt-get update...
Err:1 http://mirror/debian trixie InRelease
  Temporary failure resolving 'mirror'
E: Failed to fetch http://mirror/InRelease  Temporary failure resolving 'mirror'
E: apt-get update --error-on=any failed
"""
REFUSED = "E: Failed to fetch http://m/x  Could not connect to m:80 (1.2.3.4). - connect (111)"
GONE = "E: Failed to fetch http://m/pool/x.deb  404  Not Found [IP: 1.2.3.4 80]"
UNSIGNED = "W: GPG error: http://m trixie InRelease: NO_PUBKEY 0123456789ABCDEF"
FULL = "dpkg: error: failed to write: No space left on device\nE: Failed to fetch x"
BROKEN = "E: Unable to locate package galera-5"


@pytest.mark.parametrize(
    ("output", "kind", "said"),
    [
        (NO_NETWORK, HostUnfit, "cannot reach a Debian mirror"),
        (REFUSED, HostUnfit, "cannot reach a Debian mirror"),
        (GONE, HostUnfit, "lacks a file"),
        (UNSIGNED, HostUnfit, "not signed"),
        (FULL, CommandFailed, "mmdebstrap"),
        (BROKEN, CommandFailed, "mmdebstrap"),
    ],
)
def test_bootstrap_failures_have_their_own_errors(output: str, kind: type, said: str) -> None:
    error = bootstrap.explain(FAILED, output)
    assert type(error) is kind
    assert said in error.what
    assert set(error.details) <= set(output.splitlines())
    assert error.details


def test_unknown_package_is_not_blamed_on_the_network() -> None:
    assert bootstrap.explain(FAILED, BROKEN).details == (BROKEN,)


@pytest.mark.parametrize("said", ["timed out after 1800 s", ""], ids=["time", "kill"])
def test_a_slow_line_and_a_kill_are_the_hosts(said: str) -> None:
    """They are not recorded as the recipe's fault, and the reason is shown."""
    error = bootstrap.explain(CommandFailed(["mmdebstrap"], -9, stderr=said), "I: installing...")
    assert type(error) is HostUnfit
    assert said in error.what
    assert error.details == ("I: installing...",)


OWN = ("http://own/pxc/apt", "http://own/more/apt")
OWN_GONE = "E: Failed to fetch http://own/pxc/apt/pool/x.deb  404  Not Found [IP: 1.2.3.4 80]"
OWN_REFUSED = REFUSED.replace("http://m/x", "http://own/more/apt/dists/trixie/InRelease")
OWN_UNSIGNED = "W: GPG error: http://own/pxc/apt trixie InRelease: NO_PUBKEY 0123456789ABCDEF"


@pytest.mark.parametrize(
    ("output", "said"),
    [
        (OWN_GONE, "http://own/pxc/apt lacks a file"),
        (OWN_REFUSED, "cannot reach http://own/pxc/apt"),
        (OWN_UNSIGNED, "http://own/pxc/apt is not signed"),
    ],
)
def test_the_recipes_own_repository_is_distinguished_from_debians(output: str, said: str) -> None:
    """Another recipe can be built where just one recipe's repository fails."""
    error = bootstrap.explain(FAILED, output, OWN)
    assert type(error) is RecipeFailed
    assert said in error.what
    assert error.details


@pytest.mark.parametrize("debian", [NO_NETWORK, REFUSED, GONE, UNSIGNED])
def test_where_debians_mirror_fails_as_well_it_is_the_host(debian: str) -> None:
    both = f"{OWN_GONE}\n{OWN_UNSIGNED}\n{debian}"
    assert type(bootstrap.explain(FAILED, both, OWN)) is HostUnfit
    assert type(bootstrap.explain(FAILED, OWN_REFUSED.replace("own", "owner"), OWN)) is HostUnfit


def test_bootstrap_command() -> None:
    argv = bootstrap.command(Path("/x"), "trixie", ["a", "b"], setup=["true"])
    assert argv[-2:] == ["trixie", "/x"]
    assert "--include=a,b" in argv
    assert "--setup-hook=true" in argv
    argv = bootstrap.command(Path("/x"), "trixie", ["a"], mirror="http://m/debian")
    assert argv[-1] == "http://m/debian"


def tools(directory: Path, *names: str) -> Path:
    directory.mkdir()
    for name in names:
        (directory / name).write_text("#!/bin/sh\n")
        (directory / name).chmod(0o755)
    return directory


def test_a_missing_tool_is_reported_before_any_work(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    there = [tool for tool in TOOLS if tool != "mcopy"]
    monkeypatch.setenv("PATH", str(tools(tmp_path / "bin", *there)))
    monkeypatch.setattr("lab.run._SYSTEM", ())  # where this machine may have it
    out = tmp_path / "out"
    out.mkdir()
    heard: list[Event] = []
    with pytest.raises(HostUnfit, match="mcopy") as caught:
        build(
            load("mariadb"),
            out,
            layout="single",
            progress=Progress(heard.append),
            log=tmp_path / "log",
        )
    assert "mtools" in caught.value.hint
    assert not heard
    assert not list(out.iterdir())


def test_layout_leaves_room_for_the_backup_table() -> None:
    size = 8 * GIB
    end = disk.ROOT_START + disk.root_size(size)
    assert end % MIB == 0
    assert size - end >= 34 * disk.SECTOR
    assert disk.ROOT_START % MIB == 0


def test_copy_into_keeps_holes(tmp_path: Path) -> None:
    source, target = tmp_path / "source", tmp_path / "target"
    source.write_bytes(bytes(MIB) + b"x" * 10 + bytes(MIB))
    target.write_bytes(b"")
    with target.open("r+b") as file:
        file.truncate(64 * MIB)
    disk.copy_into(source, target, 32 * MIB)
    assert target.stat().st_size == 64 * MIB
    with target.open("rb") as file:
        file.seek(33 * MIB)
        assert file.read(11) == b"x" * 10 + b"\0"
    assert target.stat().st_blocks * 512 <= 2 * MIB


def test_digest_does_not_depend_on_holes(tmp_path: Path) -> None:
    """A sparse file and a full one of the same content have one digest."""
    content = bytes(5 * MIB) + b"data" + bytes(8 * MIB) + b"end"
    full, sparse = tmp_path / "full", tmp_path / "sparse"
    full.write_bytes(content)
    with sparse.open("wb") as file:
        file.seek(5 * MIB)
        file.write(b"data")
        file.seek(13 * MIB + 4)
        file.write(b"end")
    assert sparse.read_bytes() == content
    blocks = [content[at : at + 4 * MIB] for at in range(0, len(content), 4 * MIB)]
    expected = hashlib.sha256(b"".join(hashlib.sha256(b).digest() for b in blocks)).hexdigest()
    assert manifest.digest(full) == manifest.digest(sparse) == expected


def test_digest_sees_a_flipped_bit(tmp_path: Path) -> None:
    path = tmp_path / "file"
    path.write_bytes(bytes(9 * MIB))
    before = manifest.digest(path)
    with path.open("r+b") as file:
        file.seek(8 * MIB + 5)
        file.write(b"\1")
    assert manifest.digest(path) != before


def test_digest_of_nothing(tmp_path: Path) -> None:
    (tmp_path / "empty").write_bytes(b"")
    assert manifest.digest(tmp_path / "empty") == hashlib.sha256().hexdigest()


def an_image(directory: Path) -> BuiltImage:
    return BuiltImage(
        recipe="mariadb", disks={"os": directory / "os.raw", "data": directory / "data.raw"},
        kernel=directory / "kernel", initrd=directory / "initrd", cmdline="quiet", engine="mariadb",
        engine_version="11.8.6",
        size=8 * GIB, user="mysql", uid=100, gid=101, service="mariadb.service",
        config="/etc/my.cnf", packages={"a": "1"}, digests={"kernel": "x"},
    )  # fmt: skip


def test_manifest_survives_a_move(tmp_path: Path) -> None:
    """An image is built in one directory and used from another."""
    one, two = tmp_path / "one", tmp_path / "two"
    one.mkdir()
    manifest.write(an_image(one))
    one.rename(two)
    assert manifest.read(two) == an_image(two)


@pytest.mark.parametrize("text", ["", "{}", "[]", '{"disk": 1}', '{"disk"', "\xff"])
def test_a_spoilt_manifest_is_no_image(tmp_path: Path, text: str) -> None:
    (tmp_path / manifest.MANIFEST).write_text(text, encoding="latin-1")
    with pytest.raises(InvalidSpec, match="no image"):
        manifest.read(tmp_path)


def test_manifest_of_another_version(tmp_path: Path) -> None:
    values = dataclasses.asdict(an_image(tmp_path))
    assert set(values) == {field.name for field in dataclasses.fields(BuiltImage)}


def test_installed_packages(tmp_path: Path) -> None:
    status = tmp_path / "var/lib/dpkg/status"
    status.parent.mkdir(parents=True)
    status.write_text(
        "Package: a\nStatus: install ok installed\nVersion: 1:11.8.6-0+deb13u1\n"
        "Description: x\n Package: not-one\n\n"
        "Package: b\nStatus: deinstall ok config-files\nVersion: 2\n\n"
    )
    assert manifest.installed(tmp_path) == {"a": "1:11.8.6-0+deb13u1"}
    assert manifest.upstream("1:11.8.6-0+deb13u1") == "11.8.6"
    assert manifest.upstream("8.4.5-5-1.bookworm") == "8.4.5-5"
    assert manifest.upstream("1:11.4.12+maria~deb12") == "11.4.12"
    assert manifest.upstream("8.4.11-1debian13") == "8.4.11"
    assert manifest.upstream("26.10.0-1debian13") == "26.10.0"


def test_a_repository_that_moved_on_is_no_series() -> None:
    """Protects from a lab of mysql:26.10 that is 27.1, or 9.70 where 9.7 was requested."""
    recipe = load("mysql-26.10")
    assert engine_version(recipe, {recipe.version_package: "26.10.0-1debian13"}) == "26.10.0"
    for other in ("27.1.0-1debian13", "26.1.0-1debian13", "26.100.0-1debian13"):
        with pytest.raises(RecipeFailed, match=r"mysql-26\.10 is for the series 26\.10"):
            engine_version(recipe, {recipe.version_package: other})
    assert engine_version(load("haproxy"), {"haproxy": "3.0.11-1+deb13u1"}) == "3.0.11"


def test_account(tmp_path: Path) -> None:
    (tmp_path / "etc").mkdir()
    (tmp_path / "etc/passwd").write_text("root:x:0:0::/:\nmysql:x:100:101::/:\n")
    assert manifest.account(tmp_path, "mysql") == (100, 101)
    with pytest.raises(InvalidSpec):
        manifest.account(tmp_path, "postgres")


def elf(*, pvh: bool) -> bytes:
    """The least of an ELF file that has a note, Xen's PVH entry or another one."""
    note = struct.pack("<III4sQ", 4, 8, 18 if pvh else 6, b"Xen\0", 0x1000000)
    header = b"\x7fELF\x02\x01".ljust(0x20, b"\0") + struct.pack("<Q", 64)
    header = header.ljust(0x36, b"\0") + struct.pack("<HH", 56, 1)
    header = header.ljust(64, b"\0")
    segment = struct.pack("<IIQQQQQQ", 4, 4, 120, 0, 0, len(note), len(note), 4)
    return header + segment + note


def bzimage(payload: bytes) -> bytes:
    head = bytearray(1024)
    head[0x1F1] = 1
    head[0x202:0x206] = b"HdrS"
    struct.pack_into("<II", head, 0x248, 16, len(payload))
    return bytes(head) + bytes(16) + payload + b"rest"


def no_zstd(_: bytes) -> bytes:
    raise ValueError


def gzip(data: bytes) -> bytes:
    packer = zlib.compressobj(wbits=31)
    return packer.compress(data) + packer.flush()


def test_kernels_are_unpacked_whatever_packed_them() -> None:
    wanted = elf(pvh=True)
    xz = lzma.compress(wanted) + struct.pack("<I", len(wanted))
    zstd = b"\x28\xb5\x2f\xfd packed" + struct.pack("<I", len(wanted))
    assert kernel.pvh_kernel(bzimage(gzip(wanted)), no_zstd) == wanted
    assert kernel.pvh_kernel(bzimage(xz), no_zstd) == wanted
    assert kernel.pvh_kernel(bzimage(zstd), lambda _: wanted) == wanted


@pytest.mark.parametrize(
    "image",
    [
        b"",
        b"MZ" * 1000,
        bzimage(gzip(elf(pvh=False))),
        bzimage(gzip(b"not ELF")),
        bzimage(gzip(elf(pvh=True))[:-20]),
        bzimage(b"\x28\xb5\x2f\xfd packed 1234"),
        bzimage(b"\x28\xb5"),
        bzimage(lzma.compress(elf(pvh=True))[:40]),
    ],
)
def test_otherwise_the_bzimage_is_used(image: bytes) -> None:
    assert kernel.pvh_kernel(image, no_zstd) is None


def test_progress_hears_of_phases(tmp_path: Path) -> None:
    """What mmdebstrap announces is shown, its asides are not."""
    said = io.StringIO()
    progress = Progress(lambda event: print(event.text, file=said))
    log = tmp_path / "log"
    log.write_text("I: an older build...\n")
    with bootstrap.phases(log, log.stat().st_size, progress), log.open("a") as file:
        file.write("I: running apt-get update...\nGet:1 x\nI: running --setup-hook in shell\n")
        file.write("I: extracting archives...\n")
    assert said.getvalue() == "running apt-get update\nextracting archives\n"
