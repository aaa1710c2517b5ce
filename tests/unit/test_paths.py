"""Protects: the modes that secrets and QEMU depend on, and the id that differs between homes."""

from __future__ import annotations

import os
import tempfile
from pathlib import Path

import pytest

from lab.errors import HostUnfit, InvalidSpec
from lab.names import Owner, template_ref
from lab.paths import Home, default_root


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
