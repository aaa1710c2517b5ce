"""Running the parts of a build that need to be root, as root or as a normal user.

Each command gets a mount and a PID namespace of its own. Mounts made in it vanish with
it, and the kernel ends everything in it when we die, however we die: a killed build
leaves neither mounts nor processes behind.

A normal user also gets a user namespace in which they are root and their subordinate
ids (/etc/subuid) are all other users. Every such namespace maps the same ids, so that
one command sees what another one made with the right owners.
"""

from __future__ import annotations

import contextlib
import os
import shutil
from pathlib import Path

from lab.errors import CommandFailed, HostUnfit
from lab.paths import writing
from lab.run import require, run

_TREE = ("--fork", "--kill-child", "--pid", "--mount-proc", "--mount")


def isolated(*, network: bool) -> list[str]:
    """The argv prefix for a command of a build; ``network`` False gives it none at all."""
    argv = ["setpriv", "--pdeathsig", "KILL", "unshare", *_TREE]
    if os.geteuid() != 0:
        argv += ["--map-root-user", "--map-auto"]
    if not network:
        argv.append("--net")
    return [*argv, "--"]


def check() -> None:
    """Raise HostUnfit unless isolated commands work here."""
    require("setpriv", package="util-linux")
    require("unshare", package="util-linux")
    if os.geteuid() != 0:
        require("newuidmap", package="uidmap")
    try:
        run([*isolated(network=False), "true"], timeout=20)
    except CommandFailed as error:
        raise HostUnfit(
            "this user cannot make namespaces, which an image build needs",
            hint=_hint(error.stderr),
            details=error.details,
        ) from None


def _hint(stderr: str) -> str:
    if os.geteuid() == 0:
        return "in a container, it needs to be privileged (CAP_SYS_ADMIN)"
    if "unrecognized option" in stderr:
        return "run it as root: this util-linux is older than 2.38"
    if "subuid" in stderr or "subgid" in stderr or "newuidmap" in stderr:
        return "run it as root, or give this user subordinate ids: usermod --add-subuids"
    return "run it as root, or allow unprivileged user namespaces (see docs/images.md)"


def remove_tree(path: str | os.PathLike[str]) -> None:
    """Remove what a build left at ``path``; absent is fine.

    A normal user cannot remove the files of their subordinate ids but by a command of their own
    namespace, which needs Linux. Raises HostUnfit, CommandFailed.
    """
    if os.geteuid() == 0:
        with writing(Path(path)), contextlib.suppress(FileNotFoundError):
            shutil.rmtree(path)
    elif os.path.lexists(path):
        run(
            [*isolated(network=False), "rm", "-rf", "--one-file-system", "--", path],
            timeout=120,
        )
