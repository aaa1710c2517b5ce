"""The wheel, and the files that are copied to a host that serves labs."""

from __future__ import annotations

import re
import shutil
import subprocess
import sys
import sysconfig
import venv
import zipfile
from collections.abc import Mapping
from configparser import ConfigParser
from pathlib import Path

import pytest

from lab.cli.commands import RootVerbs
from lab.config.settings import load
from lab.errors import CommandFailed
from lab.run import run
from tests import ROOT
from tests.support.serve_process import environment, serving

PACKAGING = ROOT / "packaging"
DOCS = PACKAGING.parent / "docs"


def test_the_example_of_a_config_file_is_one() -> None:
    """Protects who copies it: every key is known, and has the value that it shows."""
    settings = load(env={}, files=[PACKAGING / "config.toml"])
    assert settings.published_as == "labs.example"
    assert (settings.serve.port, settings.serve.memory) == (8443, 48 << 30)
    (pool,) = settings.serve.pool
    assert (pool.spec.blueprint, pool.spec.node_count, pool.count) == ("pxc", 3, 2)


def test_the_unit_of_systemd_names_what_there_is() -> None:
    """Protects from a unit that starts nothing, or that takes guests down with the service."""
    unit = ConfigParser(interpolation=None, strict=False)  # CapabilityBoundingSet may be repeated
    unit.optionxform = str  # type: ignore[assignment,method-assign]  # keys are as they are written
    unit.read(PACKAGING / "systemd/lab.service")
    program, verb = unit["Service"]["ExecStart"].split()
    assert Path(program).is_absolute()
    assert verb in RootVerbs.table
    assert unit["Service"]["KillMode"] == "process"
    assert unit["Service"]["StandardOutput"] == "null", "the token would be in the journal"
    assert int(unit["Service"]["TimeoutStopSec"]) > 13
    documentation = Path(unit["Unit"]["Documentation"].removeprefix("file://"))
    assert (DOCS / documentation.name).exists()


UNIT = PACKAGING / "systemd/lab.service"
TARGETS = ("basic", "multi-user", "network-online", "shutdown", "sysinit")

needs_systemd = pytest.mark.skipif(
    not shutil.which("systemd-analyze"), reason="needs systemd-analyze"
)


def analyze(*arguments: str) -> subprocess.CompletedProcess[str]:
    argv = ["systemd-analyze", *arguments]
    return subprocess.run(argv, capture_output=True, text=True, check=False, timeout=60)


@needs_systemd
def test_systemd_knows_all_that_the_unit_says(tmp_path: Path) -> None:
    """Protects from a fence that systemd ignores, with a warning that nobody reads."""
    units = tmp_path / "etc/systemd/system"
    units.mkdir(parents=True)
    shutil.copy(UNIT, units)
    for name in TARGETS:
        (units / f"{name}.target").write_text("[Unit]\n")
    program = tmp_path / "opt/lab/.venv/bin/lab"
    program.parent.mkdir(parents=True)
    program.write_text("#!/bin/sh\n")
    program.chmod(0o755)
    checked = analyze("verify", "--man=no", f"--root={tmp_path}", UNIT.name)
    assert (checked.returncode, checked.stdout + checked.stderr) == (0, "")


@needs_systemd
def test_the_unit_is_fenced_in() -> None:
    """Protects the host from the service: 96 is a unit that says nothing, as this one once did."""
    checked = analyze("security", "--offline=yes", "--threshold=60", str(UNIT))
    assert checked.returncode == 0, checked.stdout


def test_the_unit_leaves_what_root_is_needed_for() -> None:
    """Protects image builds (mounts, namespaces, device nodes, setuid files) and ZVols' devices."""
    lines = [line.partition("=") for line in UNIT.read_text().splitlines()]
    said = {key: value for key, _, value in lines if not key.startswith("#")}
    assert not {"PrivateDevices", "PrivateUsers", "RestrictSUIDSGID", "ProtectClock"} & set(said)
    dropped = " ".join(value for key, _, value in lines if key == "CapabilityBoundingSet")
    assert not {"CAP_SYS_ADMIN", "CAP_MKNOD", "CAP_SYS_CHROOT", "CAP_SETFCAP"} & set(
        dropped.split()
    )
    assert "@mount" not in said["SystemCallFilter"]
    assert not {"mnt", "pid", "net"} & set(said["RestrictNamespaces"].split())


def built(directory: Path, tree: Path, kind: str) -> Path:
    """The sdist or the wheel of ``tree``; no network is used."""
    directory.mkdir()
    argv = [sys.executable, "-m", "hatchling", "build", "-t", kind, "-d", str(directory)]
    run(argv, cwd=tree, timeout=120)
    (path,) = directory.iterdir()
    return path


@pytest.fixture(scope="module")
def wheels(tmp_path_factory: pytest.TempPathFactory) -> Mapping[str, Path]:
    """The wheel of the checkout, and that of the sdist, as pip and uv build it."""
    root = tmp_path_factory.mktemp("wheels")
    (root / "tree").mkdir()
    run(["tar", "-xf", built(root / "sdist", ROOT, "sdist"), "-C", root / "tree"], timeout=120)
    (tree,) = (root / "tree").iterdir()
    return {
        "checkout": built(root / "of-checkout", ROOT, "wheel"),
        "sdist": built(root / "of-sdist", tree, "wheel"),
    }


def contents(wheel: Path) -> dict[str, tuple[int, int]]:
    """CRC and mode of each file in a wheel but its own list of them."""
    with zipfile.ZipFile(wheel) as archive:
        return {
            one.filename: (one.CRC, one.external_attr >> 16 & 0o111)
            for one in archive.infolist()
            if not one.filename.endswith("/RECORD")
        }


@pytest.mark.rare
def test_the_wheel_is_the_same_from_a_checkout_and_from_an_sdist(
    wheels: Mapping[str, Path],
) -> None:
    """Protects installations by pip: the links of a checkout are not in an sdist."""
    assert contents(wheels["checkout"]) == contents(wheels["sdist"])


def test_the_wheel_holds_one_package(wheels: Mapping[str, Path]) -> None:
    """Protects other projects, which have an `api`, `images` or `tests` of their own."""
    names = contents(wheels["sdist"])
    assert {name.split("/")[0] for name in names} == {"lab", "mysql_lab-0.1.0.dist-info"}
    for top, place in (("lab", "lab"), ("api", "lab/api"), ("images", "lab/recipes")):
        wanted = {
            f"{place}/{path.relative_to(ROOT / top).as_posix()}"
            for path in (ROOT / top).rglob("*")
            if path.is_file() and "__pycache__" not in path.parts
        }
        assert wanted <= set(names), sorted(wanted - set(names))
    assert {"lab/api/web/static/page.css", "lab/recipes/mariadb/recipe.toml"} <= set(names)


@pytest.fixture(scope="module")
def installed(wheels: Mapping[str, Path], tmp_path_factory: pytest.TempPathFactory) -> Path:
    """An environment with the wheel in it; what it depends on is that of the tests."""
    root = tmp_path_factory.mktemp("installed") / "venv"
    venv.create(root, with_pip=False)
    packages = Path(sysconfig.get_path("purelib", vars={"base": str(root)}))
    before = {path.name for path in packages.iterdir()}
    pip = [sys.executable, "-m", "pip", "--python", str(root / "bin/python"), "install", "--quiet"]
    run([*pip, "--no-deps", "--no-index", "--no-compile", wheels["sdist"]], timeout=120)
    added = {path.name for path in packages.iterdir()} - before
    assert added == {"lab", "mysql_lab-0.1.0.dist-info"}
    # After those of the environment: a path file's own directories are not read for more of them.
    (packages / "tests.pth").write_text(f"{sysconfig.get_path('purelib')}\n")
    return root


@pytest.fixture
def project(tmp_path: Path) -> Path:
    """A project with packages that are called as the folders of our checkout."""
    root = tmp_path / "project"
    for name in ("api", "images", "tests"):
        (root / name).mkdir(parents=True)
        (root / name / "__init__.py").write_text('OWNER = "shop"\n')
    (root / "pytest.ini").write_text("[pytest]\npythonpath = .\n")
    (root / "tests/test_shop.py").write_text(
        """\
import api, images, lab.api, tests

def test_both(lab, lab_dsn):
    assert {package.OWNER for package in (api, images, tests)} == {"shop"}
    assert lab.state == "ready" and lab_dsn.startswith("mysql://lab:")
"""
    )
    return root


@pytest.fixture
def env(tmp_path: Path) -> dict[str, str]:
    found = environment(tmp_path)
    found.pop("PYTHONPATH", None)
    return found


def call(installed: Path, project: Path, env: Mapping[str, str], *words: str) -> str:
    """What a program of the environment prints."""
    argv = [str(installed / "bin" / words[0]), *words[1:]]
    done = subprocess.run(
        argv, cwd=project, env=env, capture_output=True, text=True, timeout=300, check=False
    )
    assert done.returncode == 0, done.stdout + done.stderr
    return done.stdout


def test_an_installed_wheel_makes_labs(installed: Path, project: Path, env: dict[str, str]) -> None:
    """Protects users who install it: recipes, programs for guests and migrations are found."""
    code = "import lab.api.server, lab.imagebuild.recipe as r; print(lab.__file__, *r.recipes())"
    where, *recipes = call(installed, project, env, "python", "-c", code).split()
    assert where.startswith(str(installed))
    assert "mariadb" in recipes
    up = ("up", "galera", "--nodes", "2", "--memory", "400M", "-o", "name")
    assert call(installed, project, env, "lab", *up) == "galera\n"
    assert "galera" in call(installed, project, env, "lab", "ls")
    call(installed, project, env, "lab", "down", "galera")


def commands_of(page: str, heading: str) -> list[str]:
    """The lines of the first block of shell commands below a heading of a page."""
    text = (DOCS / page).read_text()
    (block,) = re.findall(rf"^## {heading}$.*?^```sh\n(.*?)^```$", text, re.M | re.S)
    return [line.split("  #")[0] for line in block.splitlines()]


@pytest.mark.rare
@pytest.mark.parametrize("option", ["", "--editable "], ids=["copied", "editable"])
def test_a_project_s_own_names_stay_its_own(
    project: Path, env: dict[str, str], option: str
) -> None:
    """Protects who follows docs/client.md: of a checkout only `lab` can be imported elsewhere."""
    make, install = commands_of("client.md", "In a project of your own")
    assert "/path/to/checkout" in install
    run(["sh", "-c", make.replace("python3", sys.executable)], cwd=project, timeout=120)
    packages = Path(sysconfig.get_path("purelib", vars={"base": str(project / ".venv")}))
    before = set(packages.iterdir())
    # Dependencies and what builds are those of the tests: no network is used.
    (packages / "tests.pth").write_text(f"{sysconfig.get_path('purelib')}\n")
    offline = {"PIP_NO_DEPS": "1", "PIP_NO_INDEX": "1", "PIP_NO_BUILD_ISOLATION": "0"}
    line = install.replace("install '", f"install {option}'").replace(
        "/path/to/checkout", str(ROOT)
    )
    run(["sh", "-c", line], cwd=project, env={**env, **offline}, timeout=300)
    added = {path.name for path in set(packages.iterdir()) - before}
    assert added - {"_mysql_lab.pth", "tests.pth"} <= {"lab", "mysql_lab-0.1.0.dist-info"}
    code = "import lab.api, lab.recipes, api, images, tests; print(lab.__file__, api.OWNER)"
    python = str(project / ".venv/bin/python")
    where, owner = run([python, "-c", code], cwd=project, env=env, timeout=60).stdout.split()
    assert Path(where).is_relative_to(ROOT if option else packages)
    assert owner == "shop"
    for name in ("api", "images", "tests"):
        shutil.rmtree(project / name)
        with pytest.raises(CommandFailed) as caught:
            run([python, "-c", f"import {name}"], cwd=project, env=env, timeout=60)
        assert f"No module named '{name}'" in caught.value.details[-1]


@pytest.mark.rare
def test_an_installed_wheel_serves(installed: Path, project: Path, env: dict[str, str]) -> None:
    """Protects services that run from a wheel: API, web page and their files are found."""
    program = ("env", "-C", str(project), str(installed / "bin/lab"))
    with serving(env, program=program) as service:
        assert service.ask("GET", "/v1/labs").json()["items"] == []
        page = service.ask("GET", "/sign-in")
        (style,) = re.findall(r'rel="stylesheet" href="([^"]+)"', page.text)
        assert service.ask("GET", style).status_code == 200


def test_the_plugin_works_within_other_projects(
    installed: Path, project: Path, env: dict[str, str]
) -> None:
    """Protects test suites that import an `api`, `images` or `tests` of their own."""
    words = ("-m", "pytest", "-q", "-p", "no:cacheprovider", "-p", "no:schemathesis")
    size = ("--lab", "galera", "--lab-nodes", "1")
    assert "1 passed" in call(installed, project, env, "python", *words, *size)
