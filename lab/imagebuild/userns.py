"""A user namespace for the builds of an ordinary user, by newuidmap and newgidmap.

Also a program::
    python3 -I -S userns.py -- COMMAND...   run COMMAND in one, as its root
    python3 -I -S userns.py --check         say why this user has none, and the remedy; exit 1

Root in it is the user; the ids after it are the user's subordinate ids (subuid(5), subgid(5)).
``unshare --map-auto`` does the same from util-linux 2.38 on; Ubuntu 22.04 has 2.37.

Only the standard library: ``scripts/setup-host`` runs it before anything else is installed.
"""

from __future__ import annotations

import ctypes
import os
import pwd
import shutil
import subprocess
import sys
from collections.abc import Callable, Sequence
from dataclasses import dataclass  # noqa: TID251  # setup-host runs this file alone
from pathlib import Path

NEEDED = 65536
"""Subordinate ids that a Debian root file system takes: ``nobody`` is 65534."""

PROFILE = "mmdebstrap"
"""AppArmor's profile, from the package apparmor, that may make user namespaces on Ubuntu 24.04."""

ANY = "IMAGE"
"""What a command says for an image where none is wanted yet."""

_CLONE_NEWUSER = 0x10000000  # linux/sched.h
_SECONDS = 10.0


@dataclass(frozen=True)
class Problem:
    """Why a user cannot have such a namespace, and the remedy."""

    what: str
    hint: str


def as_root(image: str = ANY) -> str:
    """The remedy of a user who cannot build ``image``, which a recipe is for."""
    lab = ".venv/bin/lab image"
    return (
        f"build the image as root and import it: sudo {lab} build {image} && "
        f"sudo {lab} export {image} - | {lab} import -"
    )


def _find(program: str) -> str | None:
    return shutil.which(program, path=f"{os.environ.get('PATH', os.defpath)}:/usr/sbin:/sbin")


@dataclass(frozen=True)
class Host:
    """Files and programs of the machine; tests pass a directory and a search of their own."""

    root: Path = Path("/")
    find: Callable[[str], str | None] = _find

    def read(self, path: str) -> str:
        """The text of a file, empty if it cannot be read."""
        try:
            return (self.root / path).read_text(errors="replace")
        except OSError:
            return ""


HERE = Host()


def subordinate(text: str, login: str, uid: int) -> list[tuple[int, int]]:
    """The ranges of a user, first id and count, in /etc/subuid or /etc/subgid (``text``).

    The kernel takes no id twice: of ranges that overlap, such as one given to the name and to the
    number of a user, the first counts.
    """
    found: list[tuple[int, int]] = []
    for line in text.splitlines():
        name, _, numbers = line.partition(":")
        first, _, count = numbers.partition(":")
        if name in (login, str(uid)) and first.isdecimal() and count.strip().isdecimal():
            start, end = int(first), int(first) + int(count)
            if start < end and all(end <= at or at + more <= start for at, more in found):
                found.append((start, end - start))
    return found


def mapping(own: int, ranges: Sequence[tuple[int, int]]) -> list[str]:
    """Arguments of newuidmap and newgidmap: root is ``own``, the ids from 1 on are ``ranges``."""
    words, inside = ["0", str(own), "1"], 1
    for first, count in ranges:
        words += [str(inside), str(first), str(count)]
        inside += count
    return words


def confined(host: Host = HERE) -> list[str]:
    """The argv prefix that lets a user of this host make a namespace where AppArmor forbids it."""
    if _restricted(host) and _has_profile(host):
        return ["aa-exec", "-p", PROFILE, "--"]
    return []


def problem(login: str, uid: int, host: Host = HERE, image: str = ANY) -> Problem | None:
    """Why the user cannot have a namespace, as far as files show; None if they can.

    ``image``: as for ``as_root``.
    """
    absent = [tool for tool in ("newuidmap", "newgidmap") if not host.find(tool)]
    if absent:
        return Problem(
            f"{' and '.join(absent)} not found, which image builds of ordinary users need",
            "install the package uidmap, as root",
        )
    for path in ("etc/subuid", "etc/subgid"):
        have = sum(count for _, count in subordinate(host.read(path), login, uid))
        if have < NEEDED:
            return Problem(
                f"{login} has {have} subordinate ids in /{path}; image builds need {NEEDED}",
                f"as root: {_grant(login, uid, host)}",
            )
    if _restricted(host) and not _has_profile(host):
        return Problem(
            "AppArmor forbids user namespaces to ordinary users"
            " (kernel.apparmor_restrict_unprivileged_userns is 1), which image builds need",
            as_root(image),
        )
    return None


def _grant(login: str, uid: int, host: Host) -> str:
    """The command that allocates missing subordinate ids to the user, in unused ranges."""
    words = ["usermod"]
    for path, option in (("etc/subuid", "--add-subuids"), ("etc/subgid", "--add-subgids")):
        text = host.read(path)
        if sum(count for _, count in subordinate(text, login, uid)) < NEEDED:
            taken = [line.split(":")[1:3] for line in text.splitlines()]
            ends = [
                int(pair[0]) + int(pair[1])
                for pair in taken
                if len(pair) == 2 and all(word.strip().isdecimal() for word in pair)
            ]
            first = max([100_000, *ends])
            words += [option, f"{first}-{first + NEEDED - 1}"]
    return " ".join([*words, login])


def _restricted(host: Host) -> bool:
    return host.read("proc/sys/kernel/apparmor_restrict_unprivileged_userns").strip() == "1"


def _has_profile(host: Host) -> bool:
    return (host.root / "etc/apparmor.d" / PROFILE).exists() and bool(host.find("aa-exec"))


def enter(command: Sequence[str]) -> None:
    """Become root of a new user namespace and run ``command`` there; raises OSError."""
    uid, gid = os.getuid(), os.getgid()
    login = _login(uid)
    maps = (
        ("newuidmap", mapping(uid, subordinate(HERE.read("etc/subuid"), login, uid))),
        ("newgidmap", mapping(gid, subordinate(HERE.read("etc/subgid"), login, uid))),
    )
    ours = os.getpid()
    wait, go = os.pipe()
    helper = os.fork()
    if helper == 0:
        os.close(go)
        os._exit(_map(ours, maps) if os.read(wait, 1) else 1)
    os.close(wait)
    libc = ctypes.CDLL(None, use_errno=True)
    made = libc.unshare(_CLONE_NEWUSER) == 0
    error = ctypes.get_errno()
    if made:
        os.write(go, b"x")
    os.close(go)
    _, status = os.waitpid(helper, 0)
    if not made:
        raise OSError(error, f"unshare(CLONE_NEWUSER): {os.strerror(error)}")
    if status != 0:
        raise OSError("newuidmap or newgidmap failed")
    os.execvp(command[0], list(command))  # noqa: S606  it becomes the command


def _map(process: int, maps: Sequence[tuple[str, list[str]]]) -> int:
    """Map the ids into the namespace of ``process``, by the setuid programs; 0 on success."""
    for tool, words in maps:
        path = HERE.find(tool) or tool
        argv = [path, str(process), *words]
        try:
            if subprocess.run(argv, timeout=_SECONDS, check=False).returncode != 0:
                return 1
        except (OSError, subprocess.TimeoutExpired) as error:
            sys.stderr.write(f"{tool}: {error}\n")
            return 1
    return 0


def _login(uid: int) -> str:
    try:
        return pwd.getpwuid(uid).pw_name
    except KeyError:
        return str(uid)


def found_problem(image: str = ANY) -> Problem | None:
    """``problem`` for the user we run as."""
    uid = os.geteuid()
    return problem(_login(uid), uid, image=image)


def main(words: Sequence[str]) -> int:
    """Run the command line; return the exit status."""
    if list(words) == ["--check"]:
        # AppArmor decides by the program that starts it, so this starts it as a build does.
        argv = [*confined(), sys.executable, "-I", "-S", __file__, "--", "true"]
        found = found_problem()
        if found is None and subprocess.run(argv, check=False, timeout=_SECONDS).returncode:
            found = Problem("this user cannot make namespaces, which image builds need", as_root())
        if found is not None:
            sys.stderr.write(f"{found.what}\n{found.hint}\n")
        return int(found is not None)
    try:
        enter(words[1:])
    except OSError as error:
        sys.stderr.write(f"userns: {error}\n")
    return 126


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
