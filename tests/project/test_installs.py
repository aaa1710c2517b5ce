"""The wheel without our pins: with the newest packages, and the oldest that its metadata allows.

These tests use the package index.
"""

from __future__ import annotations

import re
import subprocess
import sys
import venv
from collections.abc import Callable, Sequence
from pathlib import Path

import pytest

from lab.run import run
from tests import ROOT
from tests.project.test_packaging import built
from tests.support.documents import as_text
from tests.support.serve_process import environment, serving

pytestmark = pytest.mark.rare

EXTRAS = ("client", "datasets", "host", "plot", "serve", "trace")
PYTEST = "pytest==7.0.1"
"""The oldest that has all that the plugin uses; only users of the plugin have it."""
OTHERS = ("Flask", "SQLAlchemy", "alembic", "openapi-python-client", "pytest")
"""What another project requires; openapi-python-client has an upper bound of typer."""
INSTALL_SECONDS = 900

Install = Callable[[Path, Path], None]
"""Installs the wheel into the environment at a path."""


@pytest.fixture(scope="module")
def wheel(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return built(tmp_path_factory.mktemp("wheel") / "dist", ROOT, "wheel")


@pytest.fixture(scope="module")
def uv(tmp_path_factory: pytest.TempPathFactory) -> str:
    """The program uv: pip cannot resolve to the lowest versions."""
    (version,) = re.findall(r"^UV_VERSION=(.*)$", (ROOT / "scripts/lock").read_text(), re.M)
    root = tmp_path_factory.mktemp("uv") / "venv"
    venv.create(root, with_pip=False)
    pip(root, f"uv=={version}")
    return str(root / "bin/uv")


def pip(root: Path, *words: str) -> None:
    argv = [sys.executable, "-m", "pip", "--python", str(root / "bin/python"), "install", "-q"]
    run([*argv, *words], timeout=INSTALL_SECONDS, cwd=root)


def test_with_the_newest_packages(tmp_path: Path, wheel: Path) -> None:
    """Protects who installs today: what a package's new release breaks is seen here first."""
    made = environment_at(tmp_path)
    pip(made, f"{wheel}[{','.join(EXTRAS)}]", "pytest")
    works(made, tmp_path)


def test_with_the_oldest_packages(tmp_path: Path, wheel: Path, uv: str) -> None:
    """Protects who has them: each lower bound is one with which it works."""
    made = environment_at(tmp_path)
    # Of a wheel's requirements uv takes the newest; those of the file are what the wheel has.
    extras = [word for name in EXTRAS for word in ("--extra", name)]
    argv = [uv, "pip", "install", "--quiet", "--no-config", "--python", str(made / "bin/python")]
    argv += ["--only-binary", ":all:", "--no-binary", "libvirt-python"]
    argv += ["--resolution", "lowest-direct", "-r", str(ROOT / "pyproject.toml"), *extras, PYTEST]
    run(argv, timeout=INSTALL_SECONDS, cwd=tmp_path)
    pip(made, "--no-deps", str(wheel))
    works(made, tmp_path)


def test_beside_the_packages_of_another_project(tmp_path: Path, wheel: Path) -> None:
    """Protects projects that have lab among their requirements: one resolution for all."""
    made = environment_at(tmp_path)
    pip(made, f"{wheel}[{','.join(EXTRAS)}]", *OTHERS)
    works(made, tmp_path)


def test_a_client_compiles_nothing(tmp_path: Path, wheel: Path) -> None:
    """Protects laptops and runners: no compiler, no headers of libvirt; the rest is named."""
    made = environment_at(tmp_path)
    pip(made, "--only-binary", ":all:", f"{wheel}[client]")
    env = environment(tmp_path)
    argv = [str(made / "bin/lab"), "ls"]
    here = subprocess.run(argv, env=env, capture_output=True, text=True, timeout=60, check=False)
    assert here.returncode == 5
    assert "requires the Python package sqlalchemy, which is not installed" in here.stderr
    assert f"pip install 'mysql-lab[host] @ {wheel.as_uri()}'" in here.stderr
    with serving(env) as service:
        there = {**env, "LAB_URL": service.url, "LAB_TOKEN": service.token}
        up = ["up", "galera", "--nodes", "2", "--memory", "400M", "--name", "far", "-o", "name"]
        assert call(made, there, "lab", *up) == "far\n"
        assert "LAB_DSN" in call(made, there, "lab", "env", "far")
        call(made, there, "lab", "down", "far")


def environment_at(root: Path) -> Path:
    venv.create(root / "venv", with_pip=False)
    return root / "venv"


def works(made: Path, root: Path) -> None:
    """Check the commands, the service and the plugin of an installed lab, on the fakes."""
    env = environment(root)
    env.pop("PYTHONPATH", None)
    assert call(made, env, "lab", "--version").startswith("lab 0.")
    size = ("--nodes", "2", "--memory", "400M", "-o", "name")
    assert call(made, env, "lab", "up", "galera", *size) == "galera\n"
    assert "ready" in call(made, env, "lab", "ls")
    dump = root / "shop.sql.zst"
    text = "CREATE DATABASE shop;\n-- Dump completed on 2026-01-01  0:00:00\n"
    pack = f"import zstandard as z; print(z.compress({text.encode()!r}).hex())"
    dump.write_bytes(bytes.fromhex(call(made, env, "python", "-c", pack)))
    call(made, env, "lab", "dataset", "create", "shop", "--from", str(dump), "--force")
    assert call(made, env, "lab", "dataset", "ls", "-o", "name") == "shop@1\n"
    # The fakes have no tables: nothing is masked, and --force is needed.
    values = "from lab.datasets.mask import values; print(len(values('name', 'en', 9, b'x' * 16)))"
    assert call(made, env, "python", "-c", values) == "9\n"
    png = "from lab.bench.plot import bars_as_png; print(bars_as_png('', '', [('a', 1.0)])[1:4])"
    assert call(made, env, "python", "-c", png) == "b'PNG'\n"
    served(made, env)
    (root / "project").mkdir()
    (root / "project/test_it.py").write_text(
        "def test_lab(lab, lab_dsn):\n    assert lab.state == 'ready' and '@' in lab_dsn\n"
    )
    argv = ("-m", "pytest", "-q", "--lab", "galera", "--lab-nodes", "1", str(root / "project"))
    assert "1 passed" in call(made, env, "python", *argv)
    call(made, env, "lab", "down", "--all", "--yes")


def served(made: Path, env: dict[str, str]) -> None:
    """Check the service, with traces, and the commands that use it."""
    traced = {**env, "OTEL_EXPORTER_OTLP_ENDPOINT": "http://127.0.0.1:9", "OTEL_SDK_DISABLED": ""}
    with serving(traced, program=(str(made / "bin/lab"),)) as service:
        page = service.ask("GET", "/sign-in")
        (style,) = re.findall(r'rel="stylesheet" href="([^"]+)"', page.text)
        assert service.ask("GET", style).status_code == 200
        # No version of FastAPI or pydantic decides what the API is.
        described = service.ask("GET", "/openapi.json").json()
        assert as_text(described) == (ROOT / "tests/golden/openapi.json").read_text()
        far = {**env, "LAB_URL": service.url, "LAB_TOKEN": service.token}
        up = ("up", "galera", "--nodes", "2", "--memory", "400M", "--name", "far", "-o", "name")
        assert call(made, far, "lab", *up) == "far\n"
        assert "LAB_DSN" in call(made, far, "lab", "env", "far")
        call(made, far, "lab", "down", "far")


def call(made: Path, env: dict[str, str], *words: str) -> str:
    """What a program of the environment prints; it may not fail."""
    argv: Sequence[str] = [str(made / "bin" / words[0]), *words[1:]]
    done = subprocess.run(
        argv, env=env, cwd=made, capture_output=True, text=True, timeout=300, check=False
    )
    assert done.returncode == 0, done.stdout + done.stderr
    return done.stdout
