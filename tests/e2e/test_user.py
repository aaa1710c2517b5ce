"""The first command of an ordinary user: no sudo, no sbin in PATH, a host that root prepared.

What only root can do was done (`make setup`): packages, subordinate ids by ``useradd``. The rest is
`make up` in a fresh checkout: Python environment, image in a user namespace, template and lab in a
libvirt of the user's own.
"""

from __future__ import annotations

import json
import os
import shutil
import signal
import time
from pathlib import Path

import pytest

from lab.wait import Deadline, until
from tests.e2e.user_site import User, account, another_machine, command, give_checkout, login_name

pytestmark = [
    pytest.mark.e2e,
    pytest.mark.skipif(os.geteuid() != 0, reason="needs root to make a user"),
]

DEFAULT_PATH = "/usr/local/bin:/usr/bin:/bin:/usr/local/games:/usr/games"
"""Of Debian's ordinary users: ENV_PATH in /etc/login.defs."""
UP = "pxc --engine mariadb --nodes 3 --exist-ok"
"""As the default, without asking for Percona's repository."""


def unprepared() -> str:
    """Why the host is not prepared, empty if it is."""
    wanted = ("su", "useradd", "make", "mmdebstrap", "newuidmap", "newgidmap", "qemu-img", "setsid")
    absent = [tool for tool in wanted if not shutil.which(tool)]
    return f"`make setup` was not run: {', '.join(absent)} not found" if absent else ""


def first_command(user: User) -> None:
    """`make up` in a fresh checkout ends with three ready nodes, which can be used."""
    give_checkout(user, "checkout")
    assert user.run("echo $PATH", timeout=30).stdout.strip() == DEFAULT_PATH
    made = user.run(f"cd checkout && make up UP='{UP}'", timeout=1500)
    assert made.stdout.count(" ready ") >= 3, made.stdout
    talk = made.stderr.splitlines()
    assert len(talk) < 60, "apt, pip or the build print more than people read"
    assert any("first use: forming a cluster" in line for line in talk)
    found = user.run("checkout/.venv/bin/lab doctor -o json", timeout=60)
    findings = {one["topic"]: one for one in json.loads(found.stdout)}
    assert findings["image builds"]["value"] == "in a user namespace"
    assert findings["libvirt"]["value"].endswith("qemu:///session")
    asked = user.run(
        "checkout/.venv/bin/lab sql -e 'SHOW STATUS LIKE \"wsrep_cluster_size\"'", timeout=60
    )
    assert asked.stdout.split()[-1] == "3"


def nothing_is_left(user: User, seconds: float) -> None:
    """Down removes the lab, within ``seconds``: libvirt does not wait for zombies."""
    began = time.monotonic()
    user.run("checkout/.venv/bin/lab down --all --yes", timeout=120)
    assert time.monotonic() - began < seconds
    assert user.run("checkout/.venv/bin/lab ls -o name", timeout=60).stdout == ""
    listed = user.run("virsh -q -c qemu:///session list --all --name", timeout=60)
    assert listed.stdout.strip() == ""
    left = user.run(
        "cd .local/share/lab && find run labs builds -mindepth 1;"
        " pgrep -u $USER -af 'guest=lab[-]'",
        timeout=60,
        code=None,
    )
    assert left.stdout == ""


@pytest.mark.rare
def test_make_up_as_an_ordinary_user() -> None:
    """Protects most people's first minutes; the login name is as long as names get."""
    if why := unprepared():
        pytest.skip(why)
    with account() as (user, uid):
        first_command(user)
        nothing_is_left(user, 30)
        daemons = ("libvirtd", "virtlogd")  # which end when they were idle for two minutes
        lines = [line for _, line in user.processes(uid)]
        assert [line for line in lines if not any(name in line for name in daemons)] == []


STARTED = """\
import subprocess, sys, time
from lab.imagebuild.isolate import check, isolated
check()
subprocess.Popen([*isolated(network=False), "sh", "-c", "touch x; chown 33:33 x; sleep 4242"])
time.sleep(60)
"""


def test_a_killed_build_of_a_user_leaves_no_process() -> None:
    """Protects users' machines: the kernel ends what is in the namespace of a build."""
    if why := unprepared():
        pytest.skip(why)
    with account() as (user, uid):
        give_checkout(user, "checkout")
        script = f"cd checkout && (python3 -c '{STARTED}' & echo $! >../build)"
        user.run(f"{script} >/dev/null 2>&1", timeout=30)
        home = Path("/home") / user.name
        owned = until(lambda: _owner(home / "checkout/x"), Deadline.after(20.0))
        assert owned not in (None, 0, uid), "it belongs to a subordinate id"
        os.kill(int((home / "build").read_text()), signal.SIGKILL)
        gone = until(lambda: not user.processes(uid), Deadline.after(10.0))
        assert gone, user.processes(uid)


def _owner(path: Path) -> int | None:
    """The owner of a file once that is not root or a login user's."""
    try:
        uid = path.stat().st_uid
    except FileNotFoundError:
        return None
    return uid if uid >= 100_000 else None


@pytest.mark.rare
def test_make_up_on_a_fresh_debian_13_in_a_container() -> None:
    """Protects the same on Debian 13, fresh, below a process 1 that does not reap."""
    if why := unprepared():
        pytest.skip(why)
    with another_machine("trixie") as enter:
        root = User("root", enter)
        give_checkout(root, "/opt/lab")
        root.run("cd /opt/lab && make setup", timeout=900)
        user = User(login_name(), enter)
        command([*enter, "useradd", "--create-home", "--shell", "/bin/bash", user.name], timeout=60)
        first_command(user)
        running = user.run("pgrep -u $USER -a tini", timeout=30).stdout
        assert "tini -s -- libvirtd" in running, "its libvirtd has a parent that reaps"
        nothing_is_left(user, 30)
        user.run(f"checkout/.venv/bin/lab up {UP}", timeout=300)
        nothing_is_left(user, 30)
