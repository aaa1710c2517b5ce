"""Running the parts of a build that need to be root, as root or as a normal user.

Each command gets namespaces of its own: mounts, PIDs, System V IPC and names of the host. Mounts
and segments of memory made in it vanish with it, and the kernel ends everything in it when we die,
however we die: a killed build leaves nothing of them behind. That alone keeps nobody from the
files of this machine; see ``contained``.

An ordinary user also gets a user namespace (``userns``) in which they are root and their
subordinate ids are all other users. Every such namespace maps the same ids, so that one
command sees what another one made with the right owners.
"""

from __future__ import annotations

import os
import shutil
import sys
from pathlib import Path

from lab.errors import CommandFailed, HostUnfit
from lab.imagebuild import contain, userns
from lab.paths import remove_directory, writing
from lab.run import require, run

_TREE = ("--fork", "--kill-child", "--pid", "--mount-proc", "--mount", "--ipc", "--uts")


def isolated(*, network: bool) -> list[str]:
    """The argv prefix for a command of a build; ``network`` False gives it none at all."""
    argv = ["setpriv", "--pdeathsig", "KILL"]
    if os.geteuid() != 0:
        mapped = [sys.executable, "-I", "-S", userns.__file__, "--"]
        argv = [*userns.confined(), *argv, *mapped]
    argv += ["unshare", *_TREE]
    if not network:
        argv.append("--net")
    return [*argv, "--"]


def contained(root: Path) -> list[str]:
    """The argv prefix for a command that sees the root file system ``root``, and nothing else.

    It can be a stranger's: see ``contain``.
    """
    inside = [sys.executable, "-I", "-S", contain.__file__, str(root)]
    return [*isolated(network=False), *inside]


def check(image: str = userns.ANY) -> None:
    """Raise HostUnfit unless isolated commands work here; ``image``: what is to be built."""
    require("setpriv", package="util-linux")
    require("unshare", package="util-linux")
    if os.geteuid() != 0 and (found := userns.found_problem(image)):
        raise HostUnfit(found.what, hint=found.hint)
    try:
        run([*isolated(network=False), "true"], timeout=20)
    except CommandFailed as error:
        raise HostUnfit(
            "this user cannot make namespaces, which an image build needs",
            hint=_hint(image),
            details=error.details,
        ) from None


def _hint(image: str) -> str:
    if os.geteuid() == 0:
        return "in a container, it needs to be privileged (CAP_SYS_ADMIN)"
    return userns.as_root(image)


def remove_tree(path: str | os.PathLike[str]) -> None:
    """Remove what a build left at ``path``; absent is fine.

    An ordinary user cannot remove the files of their subordinate ids but by a command of their
    own namespace, which needs Linux. Raises HostUnfit, CommandFailed.
    """
    if os.geteuid() == 0:
        with writing(Path(path)):
            remove_directory(Path(path))
        return
    # Files that belong to the user need no namespace.
    shutil.rmtree(path, ignore_errors=True)
    if os.path.lexists(path):
        run(
            [*isolated(network=False), "rm", "-rf", "--one-file-system", "--", path],
            timeout=120,
        )
