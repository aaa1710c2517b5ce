"""What `make setup` and `make venv` print when they fail: little, and the remedy."""

from __future__ import annotations

import os
import shutil
import subprocess
import tempfile
from collections.abc import Iterator, Mapping
from pathlib import Path

import pytest

from tests import ROOT

USER = "54321"

pytestmark = pytest.mark.skipif(os.geteuid() != 0, reason="needs root to become another user")

NO_NETWORK = """\
echo "Err:1 http://mirror bookworm InRelease" >&2
echo "  Temporary failure resolving 'mirror'" >&2
exit 100
"""
NO_PACKAGE = 'echo "E: Unable to locate package mmdebstrap" >&2; exit 100\n'
QUIET = """\
[ "$3" = update ] || for i in $(seq 500); do echo "Unpacking package $i"; done
"""
LOCKED = """\
case "$*" in
*" update")
    mkdir "$TMPDIR/locked" 2>&1 && {
        echo "E: Could not get lock /var/lib/apt/lists/lock. It is held by process 1 (apt)" >&2
        exit 100
    }
    touch "$TMPDIR/lists" ;;
*) [ -e "$TMPDIR/lists" ] || exit 100 ;;
esac
"""


def machine(root: Path, **programs: str) -> Path:
    """A checkout's scripts, and a machine with these programs before all others in PATH."""
    for path in (
        "scripts/setup-host",
        "scripts/venv",
        "lab/imagebuild/userns.py",
        "packaging/requirements/build.txt",
    ):
        target = root / path
        target.parent.mkdir(parents=True, exist_ok=True)
        shutil.copy(ROOT / path, target)
    (root / "bin").mkdir()
    (root / "tmp").mkdir()
    defaults = {
        "dpkg-query": "exit 1\n",
        "sudo": 'while [ "$1" = -n ]; do shift; done; exec "$@"\n',
    }
    for name, script in (defaults | programs).items():
        program = root / "bin" / name
        program.write_text(f"#!/bin/sh\n{script}")
        program.chmod(0o755)
    for made in (root, *root.rglob("*")):
        os.chown(made, int(USER), int(USER))
    return root


def setup(
    root: Path, *, env: Mapping[str, str] | None = None, ubuntu: bool = False
) -> subprocess.CompletedProcess[str]:
    """``scripts/setup-host`` as an ordinary user without a terminal."""
    become = ["/usr/bin/setpriv", "--reuid", USER, "--regid", USER, "--clear-groups"]
    argv = [*become, str(root / "scripts/setup-host")]
    if ubuntu:
        (root / "os-release").write_text("ID=ubuntu\n")
        mount = f'mount --bind {root}/os-release /etc/os-release && exec "$@"'
        argv = ["unshare", "--mount", "sh", "-c", mount, "sh", *argv]
    return subprocess.run(
        argv,
        env={
            "PATH": f"{root}/bin:/usr/bin:/bin",
            "TMPDIR": str(root / "tmp"),
            **(env or {}),
        },
        stdin=subprocess.DEVNULL,
        capture_output=True,
        text=True,
        timeout=60,
        check=False,
        start_new_session=True,
    )


@pytest.fixture
def root() -> Iterator[Path]:
    """A directory that another user can enter; pytest closes its own whenever it starts."""
    with tempfile.TemporaryDirectory(prefix="lab-setup-", dir="/tmp") as path:
        Path(path).chmod(0o711)
        yield Path(path)


def test_apt_prints_into_a_file(root: Path) -> None:
    """Protects the first screen of `make up`: apt's thousand lines are in a log that it names."""
    done = setup(machine(root, **{"apt-get": QUIET}))
    assert done.returncode == 0, done.stderr
    assert "Unpacking" not in done.stdout + done.stderr
    assert "installing qemu-system-x86" in done.stderr
    (log,) = (root / "tmp").iterdir()
    assert f"(output: {log})" in done.stderr
    assert "Unpacking package 500" in log.read_text()


def test_package_lists_that_are_being_updated_are_waited_for(root: Path) -> None:
    """Protects a fresh machine: its own update at boot, or a second `make up`, has the lock."""
    done = setup(machine(root, **{"apt-get": LOCKED}))
    assert done.returncode == 0, done.stderr
    assert "apt-get update failed" not in done.stderr
    assert (root / "tmp/lists").exists()


def test_uidmap_is_installed_for_others_as_well(root: Path) -> None:
    """Protects users of a host that root prepared: their builds need uidmap."""
    done = setup(machine(root, **{"apt-get": QUIET}))
    assert " uidmap " in done.stderr
    text = (ROOT / "scripts/setup-host").read_text()
    before, _, _ = text.partition("# Bounds")
    assert "uidmap" in before, "in the list that does not depend on who runs it"


def test_no_mirror(root: Path) -> None:
    """Protects from a hint about Ubuntu's components where the network is the cause."""
    done = setup(machine(root, **{"apt-get": NO_NETWORK}))
    assert done.returncode == 1
    assert "Temporary failure resolving" in done.stderr
    last = done.stderr.splitlines()[-1]
    assert last.startswith("hint: apt-get reached no mirror")
    assert "Acquire::http::Proxy" in last
    assert "universe" not in done.stderr


@pytest.mark.parametrize("ubuntu", [False, True])
def test_no_package(root: Path, *, ubuntu: bool) -> None:
    """Protects users of Debian from a hint that is for Ubuntu."""
    done = setup(machine(root, **{"apt-get": NO_PACKAGE}), ubuntu=ubuntu)
    assert done.returncode == 1
    assert "Unable to locate package mmdebstrap" in done.stderr
    assert ("universe" in done.stderr) == ubuntu


@pytest.mark.parametrize(
    "sudo",
    ['echo "sudo: a password is required" >&2; exit 1\n', None],
    ids=["password", "none"],
)
def test_without_sudo(root: Path, sudo: str | None) -> None:
    """Protects users who may not become root: the line for root, and no guess about apt."""
    made = machine(root, **{"apt-get": QUIET, "sudo": sudo or ""})
    env = {}
    if sudo is None:
        # A PATH in which the machine's own sudo is not either.
        (root / "bin/sudo").unlink()
        for tool in ("bash", "dirname", "grep", "sed", "tail", "mktemp", "id", "seq"):
            (root / "bin" / tool).symlink_to(shutil.which(tool) or tool)
        env = {"PATH": f"{root}/bin"}
    done = setup(made, env=env)
    assert done.returncode == 1, done
    last = done.stderr.splitlines()[-1]
    assert last.startswith("hint: as root: apt-get install --no-install-recommends qemu-system-x86")
    assert "universe" not in done.stderr
    assert "could not install" not in done.stderr


def test_a_user_who_cannot_build_images_is_warned_before(root: Path) -> None:
    """Protects from minutes of waiting for a refusal: setup asks what the build will ask."""
    done = setup(machine(root, **{"apt-get": QUIET}))
    assert done.returncode == 0
    line = next(line for line in done.stderr.splitlines() if "no image can be built" in line)
    assert "newuidmap" in line or "subordinate ids" in line
    assert "as root" in line


def test_pip_without_an_index(root: Path) -> None:
    """Protects people behind a proxy: pip's own message names neither proxy nor index."""
    made = machine(root)
    venv = root / "venv/bin"
    venv.mkdir(parents=True)
    (venv / "python").write_text("#!/bin/sh\n[ $1 = -m ] && exit 1\nexit 0\n")
    (venv / "python").chmod(0o755)
    (root / "packaging/requirements/run.txt").write_text("")
    (root / "pyproject.toml").write_text("")
    python = root / "python"
    python.write_text(
        f'#!/bin/sh\ncase "$1" in -m) mkdir -p venv/bin; cp {root}/pip venv/bin/python;; esac\n'
    )
    (root / "pip").write_text(
        "#!/bin/sh\n[ $1 = -m ] || exit 0\n"
        "echo 'ERROR: No matching distribution found for editables==0.6' >&2; exit 1\n"
    )
    for path in (python, root / "pip"):
        path.chmod(0o755)
    done = subprocess.run(
        [made / "scripts/venv", "run"],
        env={"PATH": "/usr/bin:/bin", "PYTHON": str(python), "VENV": "venv"},
        capture_output=True,
        text=True,
        timeout=60,
        check=False,
    )
    assert done.returncode == 1, done
    said = done.stderr.splitlines()
    assert "No matching distribution" in said[-3]
    assert said[-2].startswith("venv: pip could not install")
    assert all(word in said[-1] for word in ("hint:", "https_proxy", "PIP_INDEX_URL"))
