"""The libvirt of an ordinary user: found, started and kept alive, or refused with the remedy."""

from __future__ import annotations

import os
import shutil
import socket
import subprocess
import sys
from dataclasses import replace
from pathlib import Path

import pytest

from lab.config.settings import load
from lab.errors import HostUnfit
from lab.hypervisor import Caution
from lab.hypervisor.libvirt.session import Login, cautions, find_runtime_directory, reaps
from lab.lifecycle.core.context import open_libvirt
from lab.lifecycle.host.doctor import of_hypervisor
from lab.lifecycle.labs.up import up
from lab.progress import Event
from tests import ROOT
from tests.support.lifecycle_world import World, make_template, named

REMEDY = "sudo loginctl enable-linger "

needs_root = pytest.mark.skipif(os.geteuid() != 0, reason="needs root")


def login(root: Path, *, systemd: bool = True, runtime: bool = True, **environ: str) -> Login:
    """A user of a machine whose /run is below ``root``."""
    uid = os.geteuid() or 1
    found = Login(uid, {"HOME": "/home/ann", **environ}, root / "run", root / "linger")
    if systemd:
        (found.run / "systemd/system").mkdir(parents=True)
    if runtime:
        found.runtime.mkdir(parents=True)
        os.chown(found.runtime, uid, -1)
    found.lingering.mkdir()
    return found


def test_the_runtime_directory_is_found_without_pam(tmp_path: Path) -> None:
    """Protects from a second libvirtd, which sees no guest of the first: su, cron, CI agents."""
    user = login(tmp_path)
    assert user.socket == Path("/home/ann/.cache/libvirt/libvirt-sock")
    find_runtime_directory(user)
    assert user.environ["XDG_RUNTIME_DIR"] == str(user.runtime)
    assert user.socket == user.runtime / "libvirt/libvirt-sock"


def test_a_runtime_directory_of_somebody_else_is_not_taken(tmp_path: Path) -> None:
    user = login(tmp_path, runtime=False)
    find_runtime_directory(user)
    assert "XDG_RUNTIME_DIR" not in user.environ
    user = login(tmp_path / "b", runtime=True, XDG_RUNTIME_DIR="/elsewhere")
    find_runtime_directory(user)
    assert user.environ["XDG_RUNTIME_DIR"] == "/elsewhere"
    if os.geteuid() == 0:
        user = login(tmp_path / "c")
        os.chown(user.runtime, 54321, -1)
        find_runtime_directory(user)
        assert "XDG_RUNTIME_DIR" not in user.environ


@needs_root
@pytest.mark.parametrize("own", [True, False])
def test_a_runtime_directory_that_su_passed_on_is_not_kept(tmp_path: Path, *, own: bool) -> None:
    """Protects who becomes another user without a login: libvirt would be refused its socket."""
    theirs = tmp_path / "theirs"
    theirs.mkdir()
    os.chown(theirs, 54321, -1)
    user = login(tmp_path, runtime=own, XDG_RUNTIME_DIR=str(theirs))
    find_runtime_directory(user)
    assert user.environ.get("XDG_RUNTIME_DIR") == (str(user.runtime) if own else None)


def login_of(path: Path, **what: bool) -> Login:
    path.mkdir()
    return login(path, **what)  # type: ignore[arg-type]  # only flags


def test_logout_is_warned_of(tmp_path: Path) -> None:
    """Protects labs of users on systems with logind: the last logout would end them."""
    user = login(tmp_path)
    (caution,) = cautions(user)
    assert caution.what == f"labs end when {user.name} logs out"
    assert caution.remedy == REMEDY + user.name
    (user.lingering / user.name).touch()
    assert [*cautions(user)] == []
    assert [*cautions(login_of(tmp_path / "b", systemd=False))] == []
    assert [*cautions(replace(user, uid=0))] == []


def test_a_missing_runtime_directory_is_warned_of(tmp_path: Path) -> None:
    """Protects guests started by cron: the daemon of a later login does not know them."""
    found = {caution.topic: caution for caution in cautions(login(tmp_path, runtime=False))}
    assert sorted(found) == ["lingering", "session"]
    assert "does not exist" in found["session"].what
    assert found["session"].remedy.startswith(REMEDY)


def test_cautions_reach_people(tmp_path: Path) -> None:
    """The warnings are shown by `lab doctor`, and by `lab up`."""
    caution = Caution("lingering", "labs end when ann logs out", REMEDY + "ann")
    heard: list[Event] = []
    world = World(tmp_path)
    with world.open() as ctx:
        make_template(ctx)
        able = replace(ctx.hypervisor.capabilities(), cautions=(caution,))
        assert [*of_hypervisor(able)][-1].advice == REMEDY + "ann"
        ctx.progress.listener = heard.append

        class Cautious:
            """The fake, with one caution more."""

            def __getattr__(self, name: str) -> object:
                return (lambda: able) if name == "capabilities" else getattr(ctx.hypervisor, name)

        up(replace(ctx, hypervisor=Cautious()), named("shop"))  # type: ignore[arg-type]
    said = [event.text for event in heard if event.step == "lingering"]
    assert said == [f"labs end when ann logs out; to prevent it: {REMEDY}ann"]


IN_NAMESPACE = """
import subprocess, sys
# A process 1 that waits for its own child only, as the first program of many containers.
sys.exit(subprocess.Popen(sys.argv[1:]).wait())
"""


def below_process_1(*init: str, script: str) -> subprocess.CompletedProcess[str]:
    """Run Python's ``script`` in a PID namespace whose process 1 is ``init``."""
    return subprocess.run(
        [
            *("unshare", "--pid", "--fork", "--kill-child", "--mount-proc"),
            *init,
            sys.executable,
            "-c",
            script,
        ],
        cwd=ROOT,
        capture_output=True,
        text=True,
        timeout=60,
        check=False,
    )


@needs_root
def test_whether_process_1_reaps_is_tried() -> None:
    """Protects from a hang: in such a container libvirtd waits for ended guests forever."""
    script = "from lab.hypervisor.libvirt.session import reaps; print(reaps(0.3))"
    never = below_process_1(sys.executable, "-c", IN_NAMESPACE, script=script)
    assert never.stdout == "False\n", never
    if shutil.which("tini"):
        assert below_process_1("tini", "--", script=script).stdout == "True\n"
    assert isinstance(reaps(0.0), bool)


EVERY_SECOND = """
import os, sys, time
child = os.fork()
if not child:
    os.execv(sys.argv[1], sys.argv[1:])
while True:
    time.sleep(1 - time.time() % 1)
    try:
        while (ended := os.waitpid(-1, os.WNOHANG))[0]:
            if ended[0] == child:
                os._exit(0)
    except ChildProcessError:
        pass
"""


@needs_root
def test_who_reaps_every_second_does_not_reap_at_once() -> None:
    """Protects from chance: each guest that ends would wait for the next second."""
    script = (
        "import time; from lab.hypervisor.libvirt.session import reaps\n"
        "for at in (0.5, 0.85, 0.95):\n"
        "    time.sleep((at - time.time()) % 1); print(reaps(0.3), end=' ')\n"
        "print(reaps(3.0))"
    )
    found = below_process_1(sys.executable, "-c", EVERY_SECOND, script=script)
    assert found.stdout == "False False False True\n", found


SLOW = """\
#!/bin/dash
PS4='${!:+${TEXT##*a*a*b}}' TEXT=$(printf %0300d 0 | tr 0 a) exec /bin/dash -x "$@"
"""
"""A shell that is busy for 0.1 s, without a process, before what follows a background command."""


@needs_root
@pytest.mark.skipif(not Path("/bin/dash").exists(), reason="no dash to slow down")
def test_what_a_slow_shell_reaped_is_no_orphan(tmp_path: Path) -> None:
    """Protects busy hosts: dash reaps, after a command, what ended in its background until then."""
    (tmp_path / "sh").write_text(SLOW)
    (tmp_path / "sh").chmod(0o755)
    script = (
        f"import os; os.environ['PATH'] = {str(tmp_path)!r} + ':' + os.environ['PATH']\n"
        "from lab.hypervisor.libvirt.session import reaps; print(reaps(0.3))"
    )
    never = below_process_1(sys.executable, "-c", IN_NAMESPACE, script=script)
    assert never.stdout == "False\n", never


REFUSED = """
import os, subprocess, socket, sys, time
os.environ["XDG_RUNTIME_DIR"] = sys.argv[1]
os.environ["HOME"] = sys.argv[1]
os.environ["PATH"] = sys.argv[2]
from lab import run
from lab.errors import HostUnfit
from lab.hypervisor.libvirt import session
from pathlib import Path
run._SYSTEM = ()  # where this machine may have tini
began = time.monotonic()
login = session.Login(uid=12345, run=Path(sys.argv[1]) / "run")
try:
    session.prepare(login)
except HostUnfit as error:
    print(error)
    print(error.hint)
print(time.monotonic() - began)
"""


@needs_root
@pytest.mark.parametrize("running", [False, True])
def test_without_a_reaper_it_is_refused_at_once(short: Path, *, running: bool) -> None:
    """Protects from the hang where tini is missing, and where a libvirtd runs without it."""
    (short / "bin").mkdir()
    os.chown(short, 12345, -1)
    for tool in ("sh", "sleep", "echo"):
        (short / "bin" / tool).symlink_to(shutil.which(tool) or tool)
    script = REFUSED.replace("sys.argv[1]", repr(str(short)))
    script = script.replace("sys.argv[2]", repr(str(short / "bin")))
    if running:
        listen = (
            "(tmp := Path(sys.argv[1]) / 'libvirt').mkdir(); s = socket.socket(socket.AF_UNIX);"
            " s.bind(str(tmp / 'libvirt-sock')); s.listen()"
        ).replace("sys.argv[1]", repr(str(short)))
        script = script.replace("began =", f"{listen}\nbegan =")
    done = below_process_1(sys.executable, "-c", IN_NAMESPACE, script=script)
    what, hint, seconds = done.stdout.splitlines()
    assert what.startswith("process 1 does not reap orphans"), done
    assert float(seconds) < 15
    if running:
        assert hint.startswith("kill ")
    else:
        assert "tini" in hint


@needs_root
def test_a_daemon_that_cannot_be_seen_is_used(short: Path) -> None:
    """Protects who shares a socket with a container: which process 1 it has is not known there.

    Its process id is 0 then, and the remedy must not be to kill that.
    """
    os.chown(short, 12345, -1)
    (short / "libvirt").mkdir()
    with socket.socket(socket.AF_UNIX) as listener:
        listener.bind(str(short / "libvirt/libvirt-sock"))
        listener.listen()
        script = REFUSED.replace("sys.argv[1]", repr(str(short)))
        script = script.replace("sys.argv[2]", repr(os.environ["PATH"]))
        done = below_process_1(sys.executable, "-c", IN_NAMESPACE, script=script)
    assert float(done.stdout) < 4, done


STARTED = """
import os, sys
from pathlib import Path
from lab.hypervisor.libvirt import session
home = sys.argv[1]
os.environ["PATH"] = f"{home}/bin:" + os.environ["PATH"]
environ = {"HOME": home, "PATH": os.environ["PATH"], "LAB_TOKEN": "secret", "LANG": "de_DE.UTF-8"}
session.prepare(session.Login(12345, environ, Path(home) / "run"))
print((Path(home) / "seen").read_text())
"""
DAEMON = """#!{python}
import os, socket, time
listener = socket.socket(socket.AF_UNIX)
with open(os.environ["HOME"] + "/seen", "w") as seen:
    print(os.getcwd(), sorted(os.environ), os.environ["LC_ALL"], file=seen)
listener.bind(os.environ["HOME"] + "/.cache/libvirt/libvirt-sock")
listener.listen()
time.sleep(60)
"""


@needs_root
def test_the_daemon_gets_what_libvirt_would_give_it(short: Path) -> None:
    """Protects secrets: the daemon outlives the command whose environment holds them."""
    for name, text in (
        ("tini", '#!/bin/sh\nshift 2\nexec "$@"\n'),
        ("libvirtd", DAEMON.format(python=sys.executable)),
    ):
        program = short / "bin" / name
        program.parent.mkdir(exist_ok=True)
        program.write_text(text)
        program.chmod(0o755)
    script = STARTED.replace("sys.argv[1]", repr(str(short)))
    done = below_process_1(sys.executable, "-c", IN_NAMESPACE, script=script)
    directory, _, rest = done.stdout.partition(" ")
    assert directory == "/", done
    assert "['HOME', 'LC_ALL', 'PATH'" in rest
    assert "LAB_" not in rest
    assert rest.split()[-1] == "C"


def test_the_system_s_libvirt_is_for_root(tmp_path: Path) -> None:
    """Protects ordinary users from errors in the middle: files of QEMU's user cannot be theirs."""
    pytest.importorskip("libvirt", reason="no libvirt-python")
    settings = load({"home": tmp_path / "home", "libvirt_uri": "qemu:///system"}, env={}, files=[])
    with pytest.raises(HostUnfit, match="only root can use qemu:///system") as caught:
        open_libvirt(settings, uid=1000)
    assert "qemu:///session" in caught.value.hint
    assert caught.value.exit_code == 5
