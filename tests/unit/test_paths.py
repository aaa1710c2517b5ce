"""Protects: the modes that secrets and QEMU depend on, and the id that differs between homes."""

from __future__ import annotations

import errno
import os
import resource
import shutil
import tempfile
from pathlib import Path

import pytest

from lab.errors import HostUnfit, InvalidSpec
from lab.names import Owner, template_ref
from lab.paths import (
    PRIVATE,
    Home,
    default_root,
    entries,
    make_directory,
    new_file,
    remove_directory,
    writing,
)
from tests.support.vanishing import before, vanishing


def mode(path: Path) -> int:
    return path.stat().st_mode & 0o777


def test_directories_get_their_modes_whatever_the_umask(tmp_path: Path) -> None:
    home = Home(tmp_path / "deep" / "home")
    before = os.umask(0o077)
    try:
        home.create()
        home.create_directory(Owner("lab", "pxc"))
    finally:
        os.umask(before)
    assert mode(home.root) == 0o711
    assert mode(home.templates) == 0o711
    assert mode(home.locks) == 0o700
    assert mode(home.lab("pxc")) == 0o711
    assert mode(home.sockets) == (0o700 if os.geteuid() else 0o711)
    assert mode(home.private(Owner("lab", "pxc"))) == 0o700
    home.create()  # and once more is fine


@pytest.mark.skipif(os.geteuid() != 0, reason="needs root to become another user")
def test_sockets_of_an_ordinary_user_are_theirs_alone() -> None:
    """Protects guests from others of the user's group: an agent's socket is root in the guest."""
    with tempfile.TemporaryDirectory() as place:  # pytest's own cannot be entered by others
        os.chown(place, 54321, -1)
        os.seteuid(54321)
        try:
            home = Home(Path(place) / "home")
            home.create()
        finally:
            os.seteuid(0)
        assert mode(home.sockets) == 0o700
        assert mode(home.templates) == 0o711


def test_the_mode_of_a_home_that_exists_is_the_users_choice(tmp_path: Path) -> None:
    tmp_path.chmod(0o750)
    Home(tmp_path).create()
    assert mode(tmp_path) == 0o750


def test_id_is_of_the_real_path(tmp_path: Path) -> None:
    (tmp_path / "real").mkdir()
    (tmp_path / "link").symlink_to("real")
    ids = {Home(tmp_path / name).id for name in ("real", "link")}
    assert len(ids) == 1
    assert len(ids.pop()) == 8
    assert Home(tmp_path / "real").id != Home(tmp_path / "other").id


def test_a_relative_root_is_pinned(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(tmp_path)
    home = Home(Path("here"))
    monkeypatch.chdir("/")
    assert home.root == tmp_path / "here"


@pytest.mark.parametrize("name", ["", "..", "../x", "a/b", ".hidden", "a\0b", "a\n"])
def test_no_name_leads_out_of_the_home(name: str) -> None:
    home = Home(Path("/home"))
    for make in (home.lab, home.template, home.build, home.console_log, home.image_log):
        with pytest.raises(InvalidSpec):
            make(name)


def test_every_file_has_a_place_of_its_own() -> None:
    home, lab = Home(Path("/h")), Owner("lab", "k")
    places = [
        home.database,
        home.lock("lab", "k"),
        home.lock("template", "k"),
        home.seed(lab, "n1"),
        home.seed(Owner("template", "k"), "n1"),
        home.private(lab),
        home.ram(template_ref("k"), "n1"),
        home.device_state(template_ref("k"), "n1"),
        home.manifest(template_ref("k")),
        home.image("k"),
        home.build("k"),
        home.console_log("k"),
        home.image_log("k"),
    ]
    assert len(set(places)) == len(places)


def test_a_file_in_the_way_is_reported(tmp_path: Path) -> None:
    (tmp_path / "home").write_text("")
    with pytest.raises(HostUnfit) as caught:
        Home(tmp_path / "home").create()
    assert "LAB_HOME" in caught.value.hint


def test_default_root_of_a_user_ignores_a_relative_xdg_path() -> None:
    if os.geteuid() == 0:
        assert default_root({}) == Path("/var/lib/lab")
    else:
        assert default_root({"XDG_DATA_HOME": "/data"}) == Path("/data/lab")
        assert default_root({"XDG_DATA_HOME": "data"}).is_absolute()


@pytest.mark.parametrize(
    "name",
    [
        "a b",
        "a,b",
        "a%20b",
        "a'b",
        "a&<b>",
        "a:b",
        "a=b;c",
        "\u00fc\u4e2d",
        "-a",
        "a\\b",
        "$(a)",
    ],
)
def test_any_printable_character_works(tmp_path: Path, name: str) -> None:
    """Protects users whose home is below a directory that has spaces, or is not English."""
    from tests.support.lifecycle_world import World, named

    with World(tmp_path / name).open() as ctx:
        from lab.lifecycle.labs.down import down
        from lab.lifecycle.labs.up import up

        assert up(ctx, named("shop")).state == "ready"
        down(ctx, "shop")


@pytest.mark.parametrize("name", ["a\nb", "a\x1bb", "a\x7f", "a\udcff", 'a"b', "a?b"])
def test_other_characters_are_refused(tmp_path: Path, name: str) -> None:
    """Protects terminals, XML, apt and e2fsck: the first command says so, and makes nothing."""
    home = Home(tmp_path / name)
    with pytest.raises(HostUnfit, match="the path of the home") as raised:
        home.create()
    assert raised.value.what.isprintable()
    assert not home.root.exists()


def test_a_long_path_is_refused_where_there_are_sockets() -> None:
    """Protects from QEMU's error in the middle of a start."""
    Home(Path("/" + "a" * 83)).check_sockets()
    with pytest.raises(HostUnfit, match="has 85 bytes, 84 is the limit"):
        Home(Path("/" + "a" * 84)).check_sockets()
    with pytest.raises(HostUnfit, match="has 86 bytes"):  # bytes, not characters
        Home(Path("/" + "a" * 83 + "\u00fc")).check_sockets()


@pytest.mark.skipif(os.geteuid() != 0, reason="only root can give files away")
def test_a_home_of_another_user_is_refused(tmp_path: Path) -> None:
    """Protects root: who owns the home, or a link in it, decides where keys are written."""
    elsewhere = tmp_path / "elsewhere"
    elsewhere.mkdir()
    home = Home(tmp_path / "home")
    home.create()
    home.labs.rmdir()
    home.labs.symlink_to(elsewhere)
    home.create()  # a link of ours
    os.chown(home.labs, 65534, 65534, follow_symlinks=False)
    with pytest.raises(HostUnfit, match=r"labs belongs to another user \(uid 65534\)"):
        home.create()
    home.labs.unlink()
    home.root.chmod(0o1777)
    with pytest.raises(HostUnfit, match="all users can write to"):
        home.create()
    home.root.chmod(0o711)
    os.chown(home.root, 65534, 65534)
    with pytest.raises(HostUnfit, match="home belongs to another user"):
        home.create()
    assert not list(elsewhere.iterdir())
    theirs = tmp_path / "theirs"
    theirs.mkdir()
    os.chown(theirs, 65534, 65534)
    with pytest.raises(HostUnfit):
        make_directory(theirs, PRIVATE)


@pytest.mark.parametrize("depth", [1, 2])
def test_what_vanishes_while_it_is_listed_is_left_out(tmp_path: Path, depth: int) -> None:
    """Protects all views of directories from which others remove what is theirs."""
    for name in ("a", "b"):
        (tmp_path / "all" / name).mkdir(parents=True)
        (tmp_path / "all" / name / "file").touch()
    gone = tmp_path / "all" / ("" if depth == 1 else "a")
    with vanishing(gone):
        found = entries(tmp_path / "all", depth)
    assert found == ([] if depth == 1 else [tmp_path / "all/b/file"])


def test_a_file_among_directories_has_no_entries(tmp_path: Path) -> None:
    (tmp_path / "file").touch()
    assert entries(tmp_path, 2) == entries(tmp_path / "file") == []


def test_a_directory_is_removed_though_others_remove_parts_of_it(tmp_path: Path) -> None:
    """Protects from leaving the rest, and calling it removed."""
    directory = tmp_path / "lab"
    (directory / "private").mkdir(parents=True)
    names = [f"n{number}.seed" for number in range(9)]
    for name in names:
        (directory / name).touch()
    with before(("os.remove",), names[0], (directory / names[0]).unlink):
        remove_directory(directory)
    assert not directory.exists()
    remove_directory(directory)


def test_an_error_names_the_file_that_it_is_about(tmp_path: Path) -> None:
    """Protects from a search for what is wrong with a file that is fine."""
    path = tmp_path / "images" / "kernel"
    with pytest.raises(HostUnfit) as failure, writing(path):
        shutil.copyfile(tmp_path / "builds" / "vmlinuz", path)
    there = f"{path} cannot be written: {tmp_path}/builds/vmlinuz: No such file or directory"
    assert failure.value.what == there
    with pytest.raises(HostUnfit) as failure, writing(path):
        path.touch()
    assert failure.value.what == f"{path} cannot be written: No such file or directory"
    with pytest.raises(HostUnfit) as failure, writing(path):
        raise OSError(errno.ENOSPC, "", "/proc/file")
    assert failure.value.what.endswith("no space is left on the file system at /proc")


def test_a_new_file_reports_what_concerns_it_only(tmp_path: Path) -> None:
    """Protects from blaming a file for what was read, or counted, while it was written."""
    path = tmp_path / "spool"

    def copy(source: Path) -> None:
        with new_file(path) as out:
            out.write(source.read_bytes())

    with pytest.raises(FileNotFoundError):
        copy(tmp_path / "dump")
    assert mode(path) == 0o600
    (tmp_path / "dump").write_bytes(bytes(8192))
    with pytest.raises(HostUnfit, match=f"{path} cannot be written: File exists"):
        copy(tmp_path / "dump")
    path.unlink()
    soft, hard = resource.getrlimit(resource.RLIMIT_FSIZE)
    resource.setrlimit(resource.RLIMIT_FSIZE, (4096, hard))
    try:
        with pytest.raises(HostUnfit, match=f"{path} cannot be written: File too large"):
            copy(tmp_path / "dump")
    finally:
        resource.setrlimit(resource.RLIMIT_FSIZE, (soft, hard))
