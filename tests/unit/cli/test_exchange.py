"""`lab image export|import`, and of templates and snapshots, as people and ssh call them."""

from __future__ import annotations

import json
import os
import subprocess
import sys
from collections.abc import Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

import pytest

from lab.cli import main
from lab.names import ArchiveKind
from lab.requests.archives import (
    Destination,
    ExportArchive,
    ImportArchive,
    ImportOptions,
    ImportSnapshot,
)
from tests import ROOT
from tests.unit.cli.test_fake_lifecycle import FakeLifecycle

Capture = pytest.CaptureFixture[str]

TO_B = Destination(host="b", command="/x/lab")
RESUMED = ImportOptions(resume=True)


def export(kind: ArchiveKind, which: str, to: Destination, **more: Any) -> ExportArchive:
    return ExportArchive(kind=kind, which=which, to=to, **more)


def arriving(kind: ArchiveKind, where: str, **more: Any) -> ImportArchive:
    return ImportArchive(kind=kind, where=where, **more)


@pytest.mark.parametrize(
    ("line", "asked"),
    [
        ("image export m f.lab", export("image", "m", Destination("f.lab"))),
        ("image export m f --resume --native",
         export("image", "m", Destination("f", resume=True, native=True))),
        ("image export m --to b --remote-lab /x/lab", export("image", "m", TO_B)),
        ("template export 3f -", export("template", "3f", Destination("-"))),
        ("template export 3f f --no-image --cold",
         export("template", "3f", Destination("f"), image=False, ram=False)),
        ("template export 3f --to b --no-image --cold",
         export("template", "3f", Destination(host="b"), image=False, ram=False)),
        ("snapshot export shop mine f.lab",
         export("snapshot", "mine", Destination("f.lab"), lab="shop")),
        ("snapshot export shop mine f --resume --native --no-image --cold",
         export("snapshot", "mine", Destination("f", resume=True, native=True), lab="shop",
                image=False, ram=False)),
        ("snapshot export shop mine --to b --remote-lab /x/lab",
         export("snapshot", "mine", TO_B, lab="shop")),
        ("dataset export crm f.lab --native",
         export("dataset", "crm", Destination("f.lab", native=True))),
        ("dataset export crm@2 --to b --remote-lab /x/lab", export("dataset", "crm@2", TO_B)),
    ],
)  # fmt: skip
def test_export_passes_on_every_flag(line: str, asked: ExportArchive) -> None:
    world = FakeLifecycle()
    assert main(line.split(), lifecycle=world) == 0
    assert world.called("ExportArchive") == [asked]


@pytest.mark.parametrize(
    ("line", "asked"),
    [
        ("image import f", arriving("image", "f")),
        ("image import - --resume --talk", arriving("image", "-", how=RESUMED, talk=True)),
        ("template import f --warm-only --resume",
         arriving("template", "f", how=ImportOptions(resume=True, warm_only=True))),
        ("template import f --no-ram", arriving("template", "f", how=ImportOptions(ram=False))),
        ("template import - --no-ram --talk",
         arriving("template", "-", how=ImportOptions(ram=False), talk=True)),
        ("dataset import f --name shop --resume",
         arriving("dataset", "f", how=ImportOptions(resume=True, name="shop"))),
        ("dataset import - --talk --resume", arriving("dataset", "-", how=RESUMED, talk=True)),
    ],
)  # fmt: skip
def test_import_passes_on_every_flag(line: str, asked: ImportArchive) -> None:
    world = FakeLifecycle()
    assert main(line.split(), lifecycle=world) == 0
    assert world.called("ImportArchive") == [asked]


@pytest.mark.parametrize(
    ("line", "asked", "timeout"),
    [
        ("snapshot import f --no-ram",
         ImportSnapshot(where="f", how=ImportOptions(ram=False)), 77.0),
        ("snapshot import f", ImportSnapshot(where="f"), 77.0),
        ("snapshot import - --resume --talk", ImportSnapshot(how=RESUMED, talk=True), 77.0),
        ("snapshot import f copy --warm-only --ttl 2h --keep-sessions --timeout 1m",
         ImportSnapshot(where="f", how=ImportOptions(warm_only=True), name="copy", ttl=7200.0,
                        keep_sessions=True), 60.0),
    ],
)  # fmt: skip
def test_import_of_a_snapshot_passes_on_every_flag(
    line: str, asked: ImportSnapshot, timeout: float
) -> None:
    world = FakeLifecycle()
    assert main(line.split(), lifecycle=world) == 0
    assert world.called("ImportSnapshot") == [asked, {"timeout": timeout}]


@pytest.mark.parametrize(
    "line",
    [
        "image export m",
        "image export m f --to b",
        "image export m --to b --resume",
        "image export m --to b --native",
        "image export m - --resume",
        "template export 3f",
        "snapshot export shop mine",
        "snapshot export shop mine - --resume",
        "dataset export crm",
    ],
)
def test_flags_that_contradict_each_other(line: str, capsys: Capture) -> None:
    world = FakeLifecycle()
    assert main(line.split(), lifecycle=world) == 2
    assert "hint: " in capsys.readouterr().err
    assert not [call for call in world.calls if call[0] == "ExportArchive"]


def test_what_is_said(capsys: Capture) -> None:
    """stdout is data, stderr is talk; an archive may be on stdout."""
    world = FakeLifecycle()
    main(["image", "export", "m", "f.lab"], lifecycle=world)
    main(["image", "export", "m", "--to", "b"], lifecycle=world)
    main(["image", "export", "m", "-"], lifecycle=world)
    said = capsys.readouterr()
    assert said.out == ""
    assert (
        said.err
        == "exported the image m to f.lab: 3M in 1.2 s\nb imported the image m: 3M in 1.2 s\n"
    )
    main(["image", "import", "f.lab", "-o", "name"], lifecycle=world)
    world.import_outcome = "exists"
    main(["template", "import", "f.lab", "-o", "json"], lifecycle=world)
    said = capsys.readouterr()
    assert said.out.startswith("0123456789abcdef\n[\n") or said.out.startswith(
        "0123456789abcdef\n{"
    )
    assert "imported the image 0123456789abcdef\n" in said.err
    assert "the template feedfacefeedface exists already\n" in said.err


def test_what_is_said_of_snapshots(capsys: Capture) -> None:
    """A lab is what comes of one; on stdout of the other end of SSH nothing else may be."""
    world = FakeLifecycle()
    main(["snapshot", "export", "shop", "mine", "--to", "b"], lifecycle=world)
    said = capsys.readouterr()
    assert said.out == ""
    assert said.err == (
        "b imported the snapshot shop@mine.20261121t110000, and created the lab shop from it:"
        " 3M in 1.2 s\n"
    )
    main(["snapshot", "import", "f.lab", "copy", "-o", "name"], lifecycle=world)
    assert capsys.readouterr().out == "copy\n"
    main(["snapshot", "import", "-", "--talk"], lifecycle=world)
    assert capsys.readouterr().out == ""


Done = subprocess.CompletedProcess[bytes]


@dataclass
class Host:
    """An installation on the fakes, and the program as a process."""

    home: Path
    path: str = os.environ["PATH"]
    cut: str = ""
    remote: Path | None = None

    def lab(
        self, *args: str, stdin: bytes = b"", code: int | None = 0
    ) -> subprocess.CompletedProcess[bytes]:
        """Run ``lab ARGS`` to its end."""
        done = subprocess.run(self.argv(args), input=stdin, env=self.env, capture_output=True,
                              check=False, timeout=120)  # fmt: skip
        assert code is None or done.returncode == code, done.stderr.decode()
        return done

    def argv(self, args: Sequence[str]) -> list[str]:
        """The command."""
        return [sys.executable, "-m", "lab", *args]

    @property
    def env(self) -> dict[str, str]:
        """Its environment."""
        kept = {name: value for name, value in os.environ.items() if not name.startswith("LAB_")}
        return kept | {
            "LAB_HOME": str(self.home),
            "LAB_HYPERVISOR": "fake",
            "LAB_STORAGE": "fake",
            "LAB_SPACE_FLOOR": "0",
            "LAB_MEMORY_FLOOR": "0",
            "PYTHONPATH": str(ROOT),
            "PATH": self.path,
            "REMOTE_HOME": str(self.remote or ""),
            "CUT": self.cut,
        }

    def keys(self, kind: str) -> list[str]:
        """The keys of its images or templates."""
        return self.lab(kind, "ls", "-o", "name").stdout.decode().split()


SSH = f"""#!/bin/sh
# Stands for ssh: the other host is another home; with CUT the line breaks after so many bytes.
echo "$*" >> "$0.log"
while [ "$1" != -- ]; do shift; done
host=$2; shift 2
[ "$host" != unknown ] || {{ echo "ssh: connect to host unknown: No route to host" >&2; exit 255; }}
lab() {{ LAB_HOME="$REMOTE_HOME" {sys.executable} -m lab "$@"; }}
echo "Welcome to $host!"
if [ "$CUT" ]; then dd bs=1 count="$CUT" 2>/dev/null | "$@"; else "$@"; fi
"""


@pytest.fixture(scope="module")
def formed(tmp_path_factory: pytest.TempPathFactory) -> Host:
    """A host with a template, and the program ssh in its PATH."""
    root = tmp_path_factory.mktemp("exchange")
    program = root / "bin" / "ssh"
    program.parent.mkdir()
    program.write_text(SSH)
    program.chmod(0o755)
    host = Host(root / "here", f"{program.parent}:{os.environ['PATH']}")
    host.lab("template", "build", "galera", "--nodes", "2", "--memory", "384M")
    return host


@pytest.fixture
def here(formed: Host, tmp_path: Path) -> Host:
    """That host; ssh leads to ``there``."""
    return replace(formed, remote=tmp_path / "there")


@pytest.fixture
def there(here: Host) -> Host:
    assert here.remote
    return Host(here.remote)


@pytest.mark.rare
def test_by_file_and_by_pipe(here: Host, there: Host, tmp_path: Path) -> None:
    (key,) = here.keys("template")
    file = tmp_path / "t.lab"
    done = here.lab("template", "export", key, str(file))
    assert f"exported the template {key} to {file}" in done.stderr.decode()
    piped = here.lab("template", "export", key[:8], "-").stdout
    assert piped == file.read_bytes()
    done = there.lab("template", "import", "-", "-o", "json", stdin=piped)
    made = json.loads(done.stdout)
    assert made["warm"]
    assert [made["key"]] == there.keys("template")
    assert here.keys("image") == there.keys("image")
    assert b"exists already" in there.lab("template", "import", str(file)).stderr
    view = json.loads(
        there.lab("up", "galera", "--nodes", "2", "--memory", "384M", "-o", "json").stdout
    )
    assert (view["started"], view["template"]) == ("warm", made["key"])


def test_to_another_host(here: Host, there: Host) -> None:
    (key,) = here.keys("template")
    done = here.lab("template", "export", key, "--to", "admin@there")
    assert f"admin@there imported the template {key}" in done.stderr.decode()
    assert len(there.keys("template")) == 1
    log = (Path(here.path.split(":")[0]) / "ssh.log").read_text()
    assert "BatchMode=yes" in log
    assert "-- admin@there lab -q template import - --talk --resume" in log
    done = here.lab("template", "export", key, "--to", "there")
    assert f"there already has the template {key}" in done.stderr.decode()
    assert (
        "there already has the image"
        in here.lab("image", "export", "mariadb", "--to", "there").stderr.decode()
    )


@pytest.mark.rare
def test_a_snapshot_to_another_host(here: Host, there: Host, tmp_path: Path) -> None:
    here.lab("up", "galera", "--nodes", "2", "--memory", "384M", "--name", "shop")
    here.lab("snapshot", "take", "shop", "--label", "mine")
    done = here.lab("snapshot", "export", "shop", "mine", "--to", "there")
    assert "there imported the snapshot shop@mine." in done.stderr.decode()
    assert "created the lab shop" in done.stderr.decode()
    file = tmp_path / "shop.lab"
    here.lab("snapshot", "export", "shop", "mine", str(file))
    view = json.loads(there.lab("snapshot", "import", str(file), "-o", "json").stdout)
    assert (view["name"], view["started"]) == ("shop-2", "warm")
    (key,) = there.keys("template")
    assert view["template"] == key
    here.lab("down", "shop")
    there.lab("down", "shop", "shop-2")


@pytest.mark.rare
def test_a_line_that_breaks(here: Host, there: Host) -> None:
    """Protects long transfers: each retry resumes, and the transfer completes."""
    (key,) = here.keys("template")
    size = len(here.lab("template", "export", key, "-").stdout)
    here.cut = str(size * 2 // 3)
    done = here.lab("template", "export", key, "--to", "there", code=None)
    assert done.returncode in (2, 6)
    assert b"lab: error: " in done.stderr
    assert b"there" in done.stderr
    assert b"Traceback" not in done.stderr
    assert there.keys("template") == []
    assert len(list((there.home / "imports").iterdir())) == 1
    here.cut = ""
    here.lab("template", "export", key, "--to", "there")
    assert len(there.keys("template")) == 1
    assert list((there.home / "imports").iterdir()) == []


def test_the_other_hosts_error_is_ours(here: Host, there: Host) -> None:
    there.lab("image", "ls")
    there.home.joinpath("images").rmdir()
    there.home.joinpath("images").write_text("in the way")
    done = here.lab("image", "export", "mariadb", "--to", "there", code=5)
    assert "lab: error: there: " in done.stderr.decode()
    assert "is not a directory" in done.stderr.decode()
    done = here.lab("image", "export", "mariadb", "--to", "unknown", code=6)
    assert "No route to host" in done.stderr.decode()
    assert "hint: `ssh unknown true` must work" in done.stderr.decode()
    done = here.lab("image", "export", "mariadb", "--to", "there", "--remote-lab", "labb", code=6)
    assert "--remote-lab" in done.stderr.decode()
    here.lab("image", "export", "mariadb", "--to", "-oProxyCommand=x", code=2)


def test_a_reader_that_goes_away(here: Host) -> None:
    """Protects pipes: no traceback when the other end has enough."""
    (key,) = here.keys("template")
    export = subprocess.Popen(here.argv(["template", "export", key, "-"]), env=here.env,
                              stdout=subprocess.PIPE, stderr=subprocess.PIPE)  # fmt: skip
    assert export.stdout
    assert export.stderr
    assert export.stdout.read(10) == b"lab-archiv"
    export.stdout.close()
    said = export.stderr.read()
    assert export.wait() in (0, 141)
    export.stderr.close()
    assert b"Traceback" not in said
