"""The libvirt of an ordinary user: its socket, its requirements, and the risks for its guests.

libvirt starts a user's libvirtd on demand and expects its socket in XDG_RUNTIME_DIR. That fails in
three ways: without PAM (su, cron, CI agents) the variable is missing, and a second libvirtd
is started that knows none of the guests; where logind runs, the last logout ends the guests
(libvirt: daemonStop on the end of the D-Bus session; logind removes /run/user/UID); and where
process 1 does not reap, an ended QEMU stays a zombie, for which libvirtd waits forever.
"""

from __future__ import annotations

import os
import pwd
import socket
import struct
from collections.abc import Iterator, MutableMapping
from dataclasses import field
from pathlib import Path

from lab.errors import HostUnfit
from lab.hypervisor import Caution, Unanswered
from lab.run import find, run
from lab.values import dataclass
from lab.wait import Deadline, attempts

URI = "qemu:///session"

PROMPT = 0.3
"""Seconds within which a reaping process 1 has reaped an orphan."""
NEVER = 5.0
"""Seconds after which process 1 is considered not to reap: some reap every few seconds only."""
START = 60.0
"""Seconds that a libvirtd may take to answer: on its first start it probes every emulator."""
IDLE = 120
"""Seconds without guests and connections after which it ends: libvirt's default for sessions."""

_REAPERS = frozenset({"tini", "dumb-init", "catatonit"})
"""Programs that reap their descendants (/proc/PID/comm) without being process 1."""
_PASSED_ON = (
    "PATH", "HOME", "USER", "LOGNAME", "TMPDIR", "LD_LIBRARY_PATH", "LD_PRELOAD",
    "XDG_CACHE_HOME", "XDG_CONFIG_HOME", "XDG_RUNTIME_DIR",
)  # fmt: skip
"""The environment variables that libvirt passes to a libvirtd which it starts
(virCommandAddEnvPassCommon, virNetSocketForkDaemon). The daemon outlives the command, and must not
get its secrets."""
_CREDENTIALS = struct.Struct("iII")  # struct ucred: pid, uid, gid; see unix(7), SO_PEERCRED


@dataclass(frozen=True)
class Login:
    """The user of this process, and the directories of that user; tests pass others."""

    uid: int = field(default_factory=os.geteuid)
    environ: MutableMapping[str, str] = field(default_factory=lambda: os.environ)
    run: Path = Path("/run")
    lingering: Path = Path("/var/lib/systemd/linger")

    @property
    def name(self) -> str:
        """The login name, or the number where there is no account."""
        try:
            return pwd.getpwuid(self.uid).pw_name
        except KeyError:
            return str(self.uid)

    @property
    def runtime(self) -> Path:
        """The directory that logind makes for the user's sockets, at login."""
        return self.run / "user" / str(self.uid)

    @property
    def systemd(self) -> bool:
        """Whether systemd is process 1: then orphans are reaped, and logouts are noticed."""
        return (self.run / "systemd/system").is_dir()

    @property
    def cache(self) -> Path:
        """The directory of a session's logs, and of its sockets without a runtime directory."""
        home = self.environ.get("HOME") or str(Path.home())
        return Path(self.environ.get("XDG_CACHE_HOME") or f"{home}/.cache") / "libvirt"

    @property
    def socket(self) -> Path:
        """The socket of the user's libvirtd; source: virGetUserRuntimeDirectory in libvirt."""
        runtime = self.environ.get("XDG_RUNTIME_DIR")
        return Path(runtime) / "libvirt/libvirt-sock" if runtime else self.cache / "libvirt-sock"


def prepare(login: Login | None = None) -> None:
    """Ensure that a connection to ``URI`` reaches the user's only libvirtd, and that it works.

    Raises HostUnfit if an ended QEMU would never be reaped.
    """
    login = login or Login()
    if login.uid == 0:
        return  # libvirt connects root to the system's daemon
    find_runtime_directory(login)
    if login.systemd:
        return
    daemon = _listener(login.socket)
    if daemon is None:
        _start_unless_reaped(login)
    elif daemon and _REAPERS.isdisjoint(_above(daemon)) and not reaps(NEVER):
        raise HostUnfit(
            f"process 1 does not reap orphans, and libvirtd (process {daemon}) depends on it:"
            " guests could not be stopped",
            hint=f"kill {daemon}; lab then starts it under tini",
        )


def find_runtime_directory(login: Login) -> None:
    """Set XDG_RUNTIME_DIR as a login does: where it is missing, or another user's.

    ``su`` without ``-``, and ``sudo -E``, keep that of the user who calls them.
    """
    there, named = login.runtime, login.environ.get("XDG_RUNTIME_DIR")
    if named and _owner(Path(named)) in (None, login.uid):
        return
    if _owner(there) == login.uid:
        login.environ["XDG_RUNTIME_DIR"] = str(there)
    else:
        login.environ.pop("XDG_RUNTIME_DIR", None)


def _owner(directory: Path) -> int | None:
    """The uid of a directory's owner, None if it does not exist."""
    try:
        return directory.stat().st_uid
    except OSError:
        return None


def cautions(login: Login | None = None) -> Iterator[Caution]:
    """The risks that end or hide a user's guests, each with its remedy."""
    login = login or Login()
    if login.uid == 0 or not login.systemd:
        return
    remedy = f"sudo loginctl enable-linger {login.name}"
    if not (login.lingering / login.name).exists():
        yield Caution("lingering", f"labs end when {login.name} logs out", remedy)
    if not login.runtime.is_dir():
        what = f"{login.runtime} does not exist: guests started now are not visible after a login"
        yield Caution("session", what, remedy)


def outside_of_group(device: Path, login: Login | None = None) -> int:
    """The process of the user's libvirtd, if it is not in the group of ``device``; else 0."""
    process = _listener((login or Login()).socket) or 0
    try:
        status = Path(f"/proc/{process}/status").read_text(errors="replace")
        group = str(device.stat().st_gid)
    except OSError:
        return 0
    lines = dict(line.partition(":")[::2] for line in status.splitlines())
    return 0 if group in f"{lines['Groups']} {lines['Gid']}".split() else process


def reaps(within: float) -> bool:
    """Whether process 1 reaps an orphan of this process ``within`` seconds.

    Two, one after the other: one that reaps every few seconds may be about to when it is tried.
    """
    return _reaps(within) and _reaps(within)


def _reaps(within: float) -> bool:
    # `exec`, as dash itself reaps, after a command of its own (waitforjob), what ended until then.
    script = "sleep 0 >/dev/null 2>&1 & exec echo $!"
    orphan = Path("/proc") / run(["sh", "-c", script], timeout=NEVER).stdout.strip()
    deadline = Deadline.after(within)
    return any(not orphan.exists() for _ in attempts(deadline, first=0.002, most=0.1))


def _start_unless_reaped(login: Login) -> None:
    if reaps(PROMPT):
        return  # libvirt starts it itself
    if find("tini") and find("libvirtd"):
        _start(login)
    elif not reaps(NEVER):
        raise HostUnfit(
            "process 1 does not reap orphans: guests could not be stopped",
            hint="install the package tini (`make setup`), or start the container with an init"
            " (docker run --init)",
        )


def _start(login: Login) -> None:
    """Start the user's libvirtd as libvirt does, but under a reaping init; wait for it.

    ``tini -s`` becomes the parent of all orphans below it. If another process starts one at the
    same time, one of them gets the lock on the pid file and the other ends.
    """
    login.cache.mkdir(mode=0o700, parents=True, exist_ok=True)
    log = login.cache / "libvirtd.log"
    daemon = ["libvirtd", "--timeout", str(IDLE)]
    with log.open("ab") as sink:
        run(
            ["setsid", "--fork", "tini", "-s", "--", *daemon],
            timeout=START,
            log=sink,
            cwd=Path("/"),
            env={n: login.environ[n] for n in _PASSED_ON if n in login.environ} | {"LC_ALL": "C"},
        )
    for _ in attempts(Deadline.after(START), first=0.02, most=0.2):
        if _listener(login.socket) is not None:
            return
    raise Unanswered(
        f"libvirtd did not answer at {login.socket} within {START:g} s",
        hint=f"see {log}",
        details=log.read_text(errors="replace").splitlines()[-5:],
    )


def _listener(path: Path) -> int | None:
    """The pid that listens on a socket; 0 if it is not visible, None if none does."""
    with socket.socket(socket.AF_UNIX) as connection:
        connection.settimeout(NEVER)
        try:
            connection.connect(str(path))
        except OSError:
            return None
        found = connection.getsockopt(socket.SOL_SOCKET, socket.SO_PEERCRED, _CREDENTIALS.size)
        process: int = _CREDENTIALS.unpack(found)[0]
        return process


def _above(process: int) -> Iterator[str]:
    """The names of the ancestors of ``process``, without process 1."""
    while process > 1:
        try:
            text = Path(f"/proc/{process}/stat").read_text(errors="replace")
        except OSError:
            return
        process = int(text.rpartition(")")[2].split()[1])
        if process > 1:
            try:
                yield Path(f"/proc/{process}/comm").read_text().strip()
            except OSError:
                return
