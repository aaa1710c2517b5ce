"""Builds of servers as others pack them: what is found in them, and what is refused."""

from __future__ import annotations

import gzip
import io
import lzma
import os
import platform
import shutil
import struct
import subprocess
import tarfile
import time
import zipfile
from collections.abc import Callable
from contextlib import suppress
from pathlib import Path
from typing import IO

import pytest

from lab.errors import HostUnfit, InvalidSpec
from lab.imagebuild import added, isolate
from lab.imagebuild.added import Common
from lab.imagebuild.foreign import apart, libraries, unpack
from lab.imagebuild.foreign.programs import Found, both_names, look
from lab.imagebuild.recipe import RECIPES
from tests.support.builds import PROGRAM, mariadb_tree
from tests.support.tiny_root import tiny_root

KINDS = [added.common(RECIPES / name) for name in ("mariadb-build", "mysql-build")]


def packed(top: Path, target: Path, mode: str) -> Path:
    with tarfile.open(target, mode) as archive:  # type: ignore[call-overload]
        archive.add(top, top.name)
    return target


def as_zst(top: Path, target: Path) -> Path:
    zstandard = pytest.importorskip("zstandard")
    plain = packed(top, target.with_suffix(".plain"), "w")
    target.write_bytes(zstandard.ZstdCompressor().compress(plain.read_bytes()))
    return target


def as_zip(top: Path, target: Path) -> Path:
    with zipfile.ZipFile(target, "w") as archive:  # without modes, as jars are
        for path in sorted(top.rglob("*")):
            if path.is_file():
                archive.writestr(f"ch/linux/{path.relative_to(top)}", path.read_bytes())
    return target


def bundle(top: Path, target: Path) -> Path:
    """As Oracle's: an archive without compression, of archives; the name says nothing."""
    inner = packed(top, target.parent / "mysql-1-minimal.tar.xz", "w:xz")
    tests = target.parent / "router.tar.xz"
    with tarfile.open(tests, "w:xz") as archive:
        archive.addfile(tarfile.TarInfo("router/README"), io.BytesIO())
    with tarfile.open(target, "w") as archive:
        archive.add(inner, inner.name)
        archive.add(tests, tests.name)
    return target


def package(top: Path, target: Path) -> Path:
    """A directory of Debian packages: the server's, and the client's."""
    target.mkdir()
    for part, names in (("server", ("mariadbd", "mariadb-install-db")), ("client", ("mariadb",))):
        root = target.parent / part
        for name in names:
            path = root / "usr/bin" / name
            path.parent.mkdir(parents=True, exist_ok=True)
            shutil.copy(next(top.rglob(name)), path)
        (root / "DEBIAN").mkdir()
        text = f"Package: {part}\nVersion: 1\nArchitecture: amd64\nMaintainer: x\nDescription: x\n"
        (root / "DEBIAN/control").write_text(text)
        subprocess.run(["dpkg-deb", "-b", root, target / f"{part}.deb"], check=True,
                       capture_output=True)  # fmt: skip
    return target


FORMS: dict[str, Callable[[Path, Path], Path]] = {
    "tar": lambda top, target: packed(top, target, "w"),
    "gz": lambda top, target: packed(top, target, "w:gz"),
    "xz": lambda top, target: packed(top, target, "w:xz"),
    "bz2": lambda top, target: packed(top, target, "w:bz2"),
    "zst": as_zst,
    "zip": as_zip,
    "bundle": bundle,
    "directory": lambda top, _: top,
    "packages": package,
}


@pytest.fixture(scope="module", autouse=True)
def _namespaces() -> None:
    try:
        isolate.check()
    except Exception as error:  # noqa: BLE001  whatever it is, the tests cannot run
        pytest.skip(f"no namespaces here: {error}")


def unpacked(source: Path, tmp_path: Path, kinds: list[Common] = KINDS) -> Found:
    return apart.unpacked(source, tmp_path / "out", kinds)


@pytest.mark.parametrize("form", FORMS)
def test_each_form_is_found_out_by_its_bytes(tmp_path: Path, form: str) -> None:
    """No name of a file or a directory says what it is."""
    if form == "packages" and not shutil.which("dpkg-deb"):
        pytest.skip("needs dpkg-deb")
    top = mariadb_tree(tmp_path / "x")
    (tmp_path / "out").mkdir()
    found = unpacked(FORMS[form](top, tmp_path / "given"), tmp_path)
    assert Path(found.server).name == "mariadbd"
    assert found.machine == "x86_64"
    assert {"mariadbd", "mariadb", "mariadb-install-db"} <= set(found.programs)
    assert set(found.libraries) == {"libc.so.6"}
    if form != "packages":
        assert found.options == {
            "lc_messages_dir": "share", "character_sets_dir": "share/charsets",
            "plugin_dir": "lib/plugin",
        }  # fmt: skip
    server = tmp_path / "out" / apart.FOREIGN / apart.TREE / found.base / found.server
    assert server.read_bytes() == PROGRAM.read_bytes()
    assert os.access(server, os.X_OK)


def test_programs_of_older_series_have_the_names_of_newer_ones(tmp_path: Path) -> None:
    """Which family's they are is known once the server has said what it is."""
    found = look(mariadb_tree(tmp_path / "x", server="mysqld"), KINDS)
    programs = both_names(found, KINDS[0])
    assert programs["mariadbd"] == programs["mysqld"] == "bin/mysqld"
    assert programs["mariadb-install-db"] == "scripts/mysql_install_db"
    assert "mariadbd" not in both_names(found, KINDS[1])


def test_what_installs_itself_elsewhere_is_found(tmp_path: Path) -> None:
    """As `make install DESTDIR=`, and as Debian's packages lay it out."""
    top = mariadb_tree(tmp_path / "destdir/usr/local/mysql")
    assert look(tmp_path / "destdir", KINDS).base == "usr/local/mysql"
    (top / "sbin").mkdir()
    (top / "bin/mariadbd").rename(top / "sbin/mariadbd")
    found = look(tmp_path / "destdir", KINDS)
    assert (found.base, found.server) == ("usr/local/mysql", "sbin/mariadbd")


def test_programs_beside_the_server_are_found(tmp_path: Path) -> None:
    """Protects `lab dump` of a build that has all in one directory, without client."""
    for name in ("mysqld", "mysqldump"):
        shutil.copy(PROGRAM, tmp_path / name)
    assert look(tmp_path, KINDS).programs == {"mysqld": "mysqld", "mysqldump": "mysqldump"}


def hostile(tmp_path: Path, *members: tarfile.TarInfo) -> Path:
    target = packed(mariadb_tree(tmp_path / "x"), tmp_path / "given", "w")
    with tarfile.open(target, "a") as archive:
        for member in members:
            archive.addfile(member, io.BytesIO(b"x" * member.size))
    (tmp_path / "out").mkdir()
    return target


def member(name: str, kind: bytes = tarfile.REGTYPE, **values: object) -> tarfile.TarInfo:
    info = tarfile.TarInfo(name)
    info.type = kind
    for key, value in values.items():
        setattr(info, key, value)
    return info


@pytest.mark.parametrize("name", ["../evil", "x/../../evil", "/../evil"])
def test_paths_that_lead_out_are_refused(tmp_path: Path, name: str) -> None:
    with pytest.raises(InvalidSpec, match="cannot be unpacked"):
        unpacked(hostile(tmp_path, member(name, size=1)), tmp_path)


def test_what_could_reach_the_host_is_left_out(tmp_path: Path) -> None:
    """Devices, links outwards, writes through links, setuid bits: none is made."""
    given = hostile(
        tmp_path,
        member("x/dev", tarfile.CHRTYPE, devmajor=1, devminor=3),
        member("x/pipe", tarfile.FIFOTYPE),
        member("x/out", tarfile.SYMTYPE, linkname="/etc"),
        member("x/up", tarfile.SYMTYPE, linkname="../../../etc"),
        member("x/in", tarfile.SYMTYPE, linkname="bin"),
        member("x/out/through", size=1),
        member("x/bin/root", size=1, mode=0o6755),
    )
    found = unpacked(given, tmp_path)
    tree = tmp_path / "out" / apart.FOREIGN / apart.TREE / "x"
    assert not (tree / "dev").exists()
    assert not (tree / "pipe").exists()
    assert (tree / "out").is_dir()
    assert not (tree / "out").is_symlink()
    assert not (tree / "up").is_symlink()
    assert (tree / "in").is_symlink()
    assert (tree / "bin/root").stat().st_mode & 0o7777 == 0o755
    assert len(found.left_out) == 4
    assert not Path("/etc/through").exists()


class Swapped(unpack.Tree):
    """A tree that is filled from a directory whose owner changes it at a given moment."""

    def __init__(self, root: Path, before: str, swap: Callable[[], None]) -> None:
        super().__init__(root)
        self._before, self._swap = before, swap

    def place(self, name: str, below: Path) -> Path:
        if name == self._before:
            self._swap()
        return super().place(name, below)

    def file(self, path: Path, content: IO[bytes], mode: int) -> None:
        super().file(path, content, mode)
        if path.name == "big":
            self._swap()


def swapped(tmp_path: Path, before: str, replaced: str) -> tuple[Swapped, Path]:
    """A build, and the secrets of another user that a link leads to from that moment on."""
    source, secret = mariadb_tree(tmp_path / "x"), tmp_path / "secret"
    for top, text in ((source / "d", "mine"), (secret, "SECRET")):
        top.mkdir()
        for name in ("big", "z0", "z1"):
            (top / name).write_text(text)

    def swap() -> None:
        place = source / replaced
        if not place.is_symlink():
            place.rename(source / "former")
            place.symlink_to(secret / place.name if place.name != "d" else secret)

    (tmp_path / "out").mkdir()
    return Swapped(tmp_path / "out", before, swap), source


@pytest.mark.parametrize(
    ("before", "replaced"), [("d/big", "d"), ("d/z1", "d"), ("none", "d"), ("d/z1", "d/z1")]
)
def test_a_link_that_appears_during_the_copy_is_not_followed(
    tmp_path: Path, before: str, replaced: str
) -> None:
    """Protects files of root, who reads what another user can change meanwhile."""
    tree, source = swapped(tmp_path, before, replaced)
    handle = os.open(source, os.O_RDONLY)
    with suppress(InvalidSpec):
        unpack.copy(handle, tree)
    os.close(handle)
    taken = [path.read_text() for path in (tmp_path / "out").rglob("d/*")]
    assert "SECRET" not in taken
    assert taken


@pytest.mark.parametrize("kind", ["link", "pipe"])
def test_what_is_replaced_before_it_is_opened_is_said(tmp_path: Path, kind: str) -> None:
    name = tmp_path / "name"
    name.symlink_to("/etc/shadow") if kind == "link" else os.mkfifo(name)
    handle = os.open(tmp_path, os.O_RDONLY)
    if kind == "link":
        with pytest.raises(InvalidSpec, match="d/name of the build was replaced while"):
            unpack._opened("name", handle, "d/name")
        with pytest.raises(InvalidSpec, match="d/name of the build was replaced while"):
            unpack._opened("name", handle, "d/name", os.O_DIRECTORY)
    else:  # nobody waits for a writer
        os.close(unpack._opened("name", handle, "d/name"))
    os.close(handle)


def test_directories_without_end(tmp_path: Path) -> None:
    (tmp_path / "out").mkdir()
    (tmp_path / "x" / "/".join("d" * 80)).mkdir(parents=True)
    with pytest.raises(InvalidSpec, match="more than 64 deep"):
        unpacked(tmp_path / "x", tmp_path)


def test_a_build_that_only_root_can_read(tmp_path: Path) -> None:
    (tmp_path / "out").mkdir()
    top = mariadb_tree(tmp_path / "x")
    top.chmod(0o700)
    assert unpacked(top, tmp_path).server == "bin/mariadbd"


def test_what_is_no_server(tmp_path: Path) -> None:
    (tmp_path / "out").mkdir()
    (tmp_path / "empty").mkdir()
    (tmp_path / "text").write_text("hello")
    with pytest.raises(InvalidSpec, match="no server in it"):
        unpacked(tmp_path / "empty", tmp_path)
    isolate.remove_tree(tmp_path / "out" / apart.FOREIGN)
    with pytest.raises(InvalidSpec, match="no archive"):
        unpacked(tmp_path / "text", tmp_path)


def link(name: str, to: str) -> tarfile.TarInfo:
    return member(name, tarfile.SYMTYPE, linkname=to)


def test_links_that_lead_out_by_way_of_others_are_left_out(tmp_path: Path) -> None:
    """Protects what is beside the build: each of them seems to lead to where others are."""
    given = hostile(
        tmp_path,
        link("x/q/r/s", "../../.."),  # the top of the tree
        link("x/esc", "q/r/s/../../.."),
        link("x/esc/made", "bin"),
        link("x/up", "near"), link("x/near", "esc/tree/x/bin"), link("x/ok", "bin/mariadbd"),
    )  # fmt: skip
    found = unpacked(given, tmp_path)
    tree = tmp_path / "out" / apart.FOREIGN / apart.TREE / "x"
    assert (tree / "ok").is_symlink()
    assert not os.path.lexists(tree / "esc")
    assert not (tree / "near").exists()
    assert list((tmp_path / "out" / apart.FOREIGN).iterdir()) == [tree.parent]
    assert [one.partition(" to ")[0] for one in found.left_out] == ["link x/esc/made", "link x/esc"]


@pytest.mark.parametrize(
    "harmless",
    [
        link("x/bin/mysqlx", "mysqlx"),
        link("x/bin/my", "my/x"),
        link("x/lib/libgalera_smm.so", "absent"),
        link("x/lib/libgalera_smm.so", "libgalera_smm.so"),
        link("x/share/latin1", "f\udcff"),
        link("x/share/outside", "/f\udcff"),
        link("x/share/escape", "/\033[2J"),
    ],
    ids=["loop", "below-itself", "dangling", "provider-loop", "latin1", "outside", "escape"],
)
def test_links_without_a_file_are_no_defect_of_a_build(
    tmp_path: Path, harmless: tarfile.TarInfo
) -> None:
    found = unpacked(hostile(tmp_path, harmless), tmp_path)
    assert found.server == "bin/mariadbd"
    assert Path(harmless.name).name not in {*found.programs, *found.files}
    assert all(one.isascii() and one.isprintable() for one in found.left_out)


@pytest.mark.parametrize(
    ("name", "content"),
    [
        ("ChangeLog.gz", gzip.compress(b"changes\n" * 200)), ("EMPTY.gz", gzip.compress(b"")),
        ("EXCEPTIONS.bz2", b"BZh is how it begins"), ("NEWS.xz", lzma.compress(b"news" * 500)),
        ("x.jar", b"PK\3\4 is how it begins"),
    ],
    ids=["gz", "empty", "bz2", "xz", "zip"],
)  # fmt: skip
def test_a_text_that_is_compressed_is_no_archive(tmp_path: Path, name: str, content: bytes) -> None:
    top = mariadb_tree(tmp_path / "x")
    (top / name).write_bytes(content)
    (tmp_path / "out").mkdir()
    assert unpacked(top, tmp_path).server == "bin/mariadbd"
    assert (tmp_path / "out" / apart.FOREIGN / apart.TREE / name).read_bytes() == content


@pytest.mark.parametrize("size", [b"-60", b"-0x1", b"99999999", b""])
def test_a_package_with_a_false_size_is_damaged(tmp_path: Path, size: bytes) -> None:
    """Protects from reading the same member again without end."""
    fields = b"debian-binary   " + b"0           0     0     100644  "
    (tmp_path / "given").write_bytes(b"!<arch>\n" + fields + size.ljust(10) + b"`\n")
    (tmp_path / "out").mkdir()
    with pytest.raises(InvalidSpec, match="given is damaged"):
        unpacked(tmp_path / "given", tmp_path)


def test_a_failure_of_the_reader_has_its_own_reason(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Protects from `takes more than 60 minutes` for whatever else it is."""
    top = mariadb_tree(tmp_path / "x")
    (tmp_path / "out").mkdir()
    monkeypatch.setattr(apart, "_MAIN", "import sys; {!r}; sys.exit('it {}')")
    with pytest.raises(InvalidSpec, match=r"the process that reads it failed$") as refused:
        unpacked(top, tmp_path)
    assert list(refused.value.details) == ["it lab.imagebuild.foreign.apart"]
    monkeypatch.setattr(apart, "_MAIN", "import sys; {!r}, {!r}; sys.exit(137)")
    with pytest.raises(InvalidSpec, match="takes more than 60 minutes, or more memory"):
        unpacked(top, tmp_path)


def test_room_is_kept_on_the_disk(tmp_path: Path) -> None:
    top = mariadb_tree(tmp_path / "x")
    (tmp_path / "out").mkdir()
    with pytest.raises(HostUnfit, match="more than 50K, and no more is free here"):
        apart.unpacked(top, tmp_path / "out", KINDS, 50 << 10)


def test_a_file_under_many_names_counts_as_often(tmp_path: Path) -> None:
    """Protects from hours of packing: a hard link takes no room, its content does."""
    tree = unpack.Tree(tmp_path, most=100)
    tree.file(tmp_path / "a", io.BytesIO(b"x" * 40), 0o644)
    tree.copies += [(tmp_path / name, tmp_path / "a") for name in "bc"]
    with pytest.raises(HostUnfit, match="more than 100"):
        tree.finish()


def test_a_damaged_archive_is_said_to_be(tmp_path: Path) -> None:
    given = packed(mariadb_tree(tmp_path / "x"), tmp_path / "given", "w:gz")
    given.write_bytes(given.read_bytes()[:5000])
    (tmp_path / "out").mkdir()
    with pytest.raises(InvalidSpec, match="damaged"):
        unpacked(given, tmp_path)


def test_two_servers_are_not_chosen_from(tmp_path: Path) -> None:
    for name in ("a", "b"):
        mariadb_tree(tmp_path / "both" / name)
    with pytest.raises(InvalidSpec, match="2 servers") as refused:
        look(tmp_path / "both", KINDS)
    assert list(refused.value.details) == ["a", "b"]


def test_another_machine_and_a_damaged_program(tmp_path: Path) -> None:
    top = mariadb_tree(tmp_path / "x")
    program = bytearray(PROGRAM.read_bytes())
    struct.pack_into("<H", program, 18, 183)
    (top / "bin/mariadbd").write_bytes(program)
    assert look(tmp_path, KINDS).machine == "aarch64"
    (top / "bin/mariadbd").write_bytes(PROGRAM.read_bytes()[:200])
    with pytest.raises(InvalidSpec, match="damaged"):
        look(tmp_path, KINDS)


@pytest.mark.parametrize(
    ("needs", "glibc", "suite", "packages"),
    [
        (["libc.so.6", "libaio.so.1"], "2.17", "trixie", ("libaio1t64",)),
        (["libncurses.so.5", "libaio.so.1"], "2.28", "bookworm", ("libaio1", "libncurses5")),
        (["libssl.so.3"], "2.41", "trixie", ("libssl3t64",)),
        (["libnuma.so.1"], "2.42", "sid", ("libnuma1",)),
        (["libpcre.so.3"], "2.36", "bookworm", ("libpcre3",)),
    ],
)
def test_the_release_has_all_that_a_build_needs(
    needs: list[str], glibc: str, suite: str, packages: tuple[str, ...]
) -> None:
    found = libraries.choose(dict.fromkeys(needs, "bin/mysqld"), glibc, "")
    assert (found.suite, found.packages) == (suite, packages)


def test_a_library_under_another_name_is_found_by_a_link() -> None:
    """Debian 13 has libaio with another name, which programs of elsewhere do not know."""
    found = libraries.choose({"libaio.so.1": "bin/mysqld"}, "2.28", "")
    assert found.links == (("/usr/lib/x86_64-linux-gnu/libaio.so.1", "libaio.so.1t64"),)


def test_missing_libraries_are_named_with_the_package_that_had_them() -> None:
    needs = {"libssl.so.1.1": "bin/mysqld", "libx.so.7": "bin/mysql", "libnuma.so.1": "bin/mysqld"}
    with pytest.raises(InvalidSpec, match=r"has libssl\.so\.1\.1, libx\.so\.7") as refused:
        libraries.choose(needs, "2.28", "")
    assert list(refused.value.details) == [
        "bin/mysqld needs libssl.so.1.1 (libssl1.1 of Debian 11)",
        "bin/mysql needs libx.so.7 (no known package)",
    ]


def test_what_no_release_has_together() -> None:
    with pytest.raises(InvalidSpec, match="no release") as refused:
        libraries.choose({"libncurses.so.5": "bin/mysql"}, "2.41", "")
    assert "it needs GLIBC_2.41" in refused.value.details
    assert "bin/mysql needs libncurses.so.5: bookworm" in refused.value.details


@pytest.mark.parametrize(
    ("text", "version"),
    [
        ("mariadbd  Ver 11.4.5-MariaDB for linux-systemd on x86_64 (MariaDB Server)", "11.4.5"),
        ("mysqld  Ver 5.6.24 for linux-glibc2.5 on x86_64 (MySQL Community Server)", "5.6.24"),
        ("/x/mysqld  Ver 8.0.36-28 for Linux on x86_64 (Percona Server (GPL))", "8.0.36"),
        ("Ver 11.8.9-MariaDB-0+deb13u1 from Debian for debian-linux-gnu on x86_64", "11.8.9"),
        ("mysqld  Ver 26.7.0 for Linux on x86_64 (Source distribution)", "26.7.0"),
    ],
)
def test_the_version_is_what_the_program_says(text: str, version: str) -> None:
    assert apart.version(text) == version


def test_a_program_that_says_no_version() -> None:
    with pytest.raises(InvalidSpec, match="says no version"):
        apart.version("hello")


HOSTILE = {
    # endless output, which is ended at once
    "prints": ("$SIG{PIPE} = 'IGNORE'; print STDOUT 'y' x 65536 while 1", "printed more than"),
    "errors": ("$SIG{PIPE} = 'IGNORE'; print STDERR 'y' x 65536 while 1", "printed more than"),
    # memory of its own, in processes, and in segments that outlive it
    "memory": ("my $x = 'y' x (2 << 30); print 'BAD'", "Out of memory"),
    "forks": ("for (1 .. 40) { fork // die 'no more'; }", "no more"),
    "segment": ("syscall(29, 0, 32 << 20, 01600) < 0 and die 'no segment'", "no segment"),
}


@pytest.mark.parametrize("name", HOSTILE)
def test_what_a_hostile_server_takes_has_a_bound(tmp_path: Path, name: str) -> None:
    """Protects the memory of this machine from a program that is only asked for its version."""
    if not shutil.which("perl") or platform.machine() != "x86_64":
        pytest.skip("needs perl on x86_64")
    perl, says = HOSTILE[name]
    tiny_root(tmp_path / apart.SYSTEM)
    server = tmp_path / apart.FOREIGN / apart.TREE / "x/bin/mysqld"
    server.parent.mkdir(parents=True)
    server.write_text(f"#!/usr/bin/perl\n{perl};\n")
    server.chmod(0o755)
    found = Found("x", "bin/mysqld", "x86_64", {}, {}, {}, {}, (), "", "")
    began = time.monotonic()
    before = Path("/proc/sysvipc/shm").read_text()
    with pytest.raises(InvalidSpec) as refused:
        apart.version_text(tmp_path, found, "bin/mysqld")
    assert says in "\n".join(refused.value.details), refused.value.details
    assert time.monotonic() - began < 60
    assert Path("/proc/sysvipc/shm").read_text() == before


def test_limits(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(unpack, "MEMBERS", 3)
    tree = unpack.Tree(tmp_path)
    for name in "abc":
        tree.place(name, tmp_path)
    with pytest.raises(InvalidSpec, match="more than 3 files"):
        tree.place("d", tmp_path)
    monkeypatch.setattr(unpack, "BYTES", 2)
    with pytest.raises(InvalidSpec, match="more than 2"):
        tree.file(tmp_path / "x", io.BytesIO(b"xxx"), 0o644)
