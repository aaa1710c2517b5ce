"""Archives of images and templates through the service: there, back, and cut off."""

from __future__ import annotations

import json
import os
import signal
import subprocess
import sys
import time
from collections.abc import Iterator
from pathlib import Path

import pytest

from lab.cli import main
from lab.client import Client
from lab.client.tunnel import open_socket
from lab.errors import Conflict, Forbidden, InvalidSpec, LimitReached, NotFound, Unauthorized
from lab.progress import Event
from lab.requests.archives import Destination, ExportArchive, ImportArchive, ImportOptions
from tests.support.serve_world import Site, site

Capsys = pytest.CaptureFixture[str]


@pytest.fixture
def here(tmp_path: Path) -> Iterator[Site]:
    with site(tmp_path / "home") as found:
        found.make("shop")
        assert found.ask("DELETE", "/v1/labs/shop?wait=30").status_code == 204
        yield found


@pytest.fixture
def env(here: Site, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    for name, value in (("LAB_URL", str(here.client.base_url)), ("LAB_TOKEN", here.admin),
                        ("LAB_HOME", str(tmp_path / "none"))):  # fmt: skip
        monkeypatch.setenv(name, value)
    monkeypatch.chdir(tmp_path)


def keys(here: Site) -> tuple[str, str]:
    """Those of the image and the template."""
    [image], [template] = (
        here.ask("GET", f"/v1/{what}").json() for what in ("images", "templates")
    )
    return image["key"], template["key"]


def forget(here: Site) -> None:
    """Remove image and template."""
    image, template = keys(here)
    for path in (f"templates/{template}", f"images/{image}"):
        assert here.ask("DELETE", f"/v1/{path}?wait=30").status_code == 204


def until_free(here: Site) -> None:
    end = time.monotonic() + 10
    while here.service.core.limits.transfers.used():
        assert time.monotonic() < end, "a seat is not given back"
        time.sleep(0.02)


def imports(here: Site) -> list[str]:
    """What arrived and is there still."""
    parent = here.service.core.settings.home.imports
    return [path.name for path in parent.iterdir()] if parent.exists() else []


@pytest.mark.usefixtures("env")
def test_there_and_back(here: Site, tmp_path: Path, capsys: Capsys) -> None:
    """Protects who moves templates between hosts that he cannot log in at."""
    image, template = keys(here)
    assert main(("template", "export", template, "all.lab")) == 0
    assert main(("image", "export", "mariadb", "image.lab")) == 0
    assert main(("template", "export", template, "bare.lab", "--no-image", "--cold")) == 0
    sizes = [(tmp_path / f"{name}.lab").stat().st_size for name in ("all", "image", "bare")]
    assert sizes[0] > sizes[1] > 0
    assert main(("image", "export", "mariadb", "image.lab")) == Conflict.exit_code
    assert main(("template", "export", "feed", "x.lab")) == NotFound.exit_code
    assert {path.name for path in tmp_path.glob("*.lab*")} == {"all.lab", "image.lab", "bare.lab"}
    forget(here)
    assert main(("template", "import", "bare.lab")) == NotFound.exit_code
    capsys.readouterr()
    assert main(("template", "import", "all.lab", "-o", "json")) == 0
    shown = json.loads(capsys.readouterr().out)
    assert keys(here) == (image, shown["key"])
    assert main(("image", "import", "image.lab", "-o", "name")) == 0  # it is there
    assert capsys.readouterr().out == f"{image}\n"
    made = here.make("again")
    assert (made["template"], made["started"]) == (shown["key"], "warm")
    here.ask("DELETE", "/v1/labs/again?wait=30")
    forget(here)
    assert main(("template", "import", "all.lab", "--no-ram")) == 0
    assert here.make("strange")["started"] == "cold"
    actions = [entry["action"] for entry in here.ask("GET", "/v1/audit").json()["items"]]
    assert {"exportTemplate", "exportImage", "importTemplate", "importImage"} <= set(actions)
    assert imports(here) == []


@pytest.mark.usefixtures("env")
def test_what_is_wrong_is_told(here: Site, tmp_path: Path, capsys: Capsys) -> None:
    """Protects hosts from archives that were damaged, and users from guessing why."""
    assert main(("image", "export", "mariadb", "image.lab")) == 0
    forget(here)
    data = bytearray((tmp_path / "image.lab").read_bytes())
    data[len(data) // 2] ^= 1
    (tmp_path / "bad.lab").write_bytes(data)
    (tmp_path / "cut.lab").write_bytes((tmp_path / "image.lab").read_bytes()[:-40])
    for name in ("bad", "cut"):
        capsys.readouterr()
        assert main(("image", "import", f"{name}.lab")) == InvalidSpec.exit_code
        assert "error: " in capsys.readouterr().err
    assert main(("template", "import", "image.lab")) == InvalidSpec.exit_code
    assert "`lab image import`" in capsys.readouterr().err
    assert main(("image", "export", "mariadb", "--to", "db2")) == InvalidSpec.exit_code
    assert "over SSH\nhint: " in capsys.readouterr().err
    assert here.ask("GET", "/v1/images").json() == []
    assert imports(here) == []


def test_who_goes_leaves_nothing(here: Site, tmp_path: Path) -> None:
    """Protects the host from transfers that were broken off: no files, no locks, no seats."""
    url, archive = str(here.client.base_url), tmp_path / "image.lab"
    image, _ = keys(here)
    heard: list[Event] = []
    with Client(url, here.admin) as client:
        asked = ExportArchive(kind="image", which=image, to=Destination(str(archive)))
        done = client.archives.fetch(asked, listener=heard.append)
    assert (done.key, done.size) == (image, archive.stat().st_size)
    assert heard
    with open_socket(url, here.admin, "images", image, "archive") as connection:
        connection.recv(timeout=10)
    until_free(here)
    forget(here)  # nobody holds it
    with open_socket(url, here.admin, "images", "archive") as connection:
        connection.send(archive.read_bytes()[:-100])
    until_free(here)
    assert imports(here) == []
    with open_socket(url, here.admin, "images", "archive", query="resume=true") as connection:
        connection.send(archive.read_bytes()[:-100])
    until_free(here)
    assert imports(here) == [f"image.{image}"]  # as was asked for
    how = ImportOptions(resume=True)
    with Client(url, here.admin) as client:
        arriving = ImportArchive(kind="image", where=str(archive), how=how)
        assert client.archives.send(arriving).outcome == "imported"
    assert imports(here) == []


@pytest.mark.usefixtures("env")
@pytest.mark.parametrize("number", [signal.SIGINT, signal.SIGKILL])
def test_an_import_that_is_broken_off_leaves_nothing(
    here: Site, tmp_path: Path, number: signal.Signals
) -> None:
    """Protects the host from Ctrl-C, and from machines that go away in the middle."""
    assert main(("image", "export", "mariadb", "image.lab")) == 0
    data = (tmp_path / "image.lab").read_bytes()
    forget(here)
    argv = [sys.executable, "-m", "lab", "image", "import", "-"]
    process = subprocess.Popen(argv, stdin=subprocess.PIPE, stderr=subprocess.DEVNULL,
                               env={**os.environ, "PYTHONSAFEPATH": "1"})  # fmt: skip
    assert process.stdin is not None
    with process.stdin as stdin:
        stdin.write(data[:-50])
        stdin.flush()
        end = time.monotonic() + 20
        while not imports(here):
            assert time.monotonic() < end
            time.sleep(0.02)
        process.send_signal(number)
        code = process.wait(20)
    assert code == (130 if number == signal.SIGINT else -signal.SIGKILL)
    until_free(here)
    assert imports(here) == []
    assert here.ask("GET", "/v1/images").json() == []


def test_archives_are_for_administrators(here: Site, monkeypatch: pytest.MonkeyPatch) -> None:
    """Protects guests: who makes images runs programs in them."""
    url = str(here.client.base_url)
    image, template = keys(here)
    paths = (("images", "archive"), ("templates", "archive"), ("images", image, "archive"),
             ("templates", template, "archive"))  # fmt: skip
    for path in paths:
        with pytest.raises(Unauthorized):
            open_socket(url, here.admin[:-1], *path)
        with pytest.raises(Forbidden, match="scope admin"):
            open_socket(url, here.token(), *path)
    monkeypatch.setattr(here.service.core.limits.transfers, "per_token", 0)
    with pytest.raises(LimitReached):
        open_socket(url, here.admin, *paths[0])
