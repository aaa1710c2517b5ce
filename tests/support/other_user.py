"""What another user of this host can do with files, tried as that user. Only root can try."""

from __future__ import annotations

import json
import os
import re
import socket
import stat
from collections.abc import Callable, Iterator
from contextlib import suppress
from pathlib import Path

NOBODY = 65534
EVERYBODY = re.compile(
    r"ca\.pem|images/[^/]+/(kernel|initrd|manifest\.json)"
    r"|logs/images/[^/]+\.log|reachable\.json|failures\.json"
)
"""Files of a home that everybody may read: nothing in them is secret."""

Found = dict[str, set[str]]
"""Paths relative to the root that was looked through, by what can be done with them."""


def tried(root: Path, uid: int, gid: int) -> Found:
    """What the user ``uid`` of the group ``gid``, and of no other, can do with what is below.

    ``read``, ``write`` and ``chmod`` files, ``rename`` anything, ``list`` and ``fill`` directories,
    ``connect`` to sockets. All is as it was afterwards. Others may work below ``root`` meanwhile.
    """
    modes = modes_below(root)
    reading, writing = os.pipe()
    child = os.fork()
    if not child:
        code = 1
        try:
            os.setgroups([])
            os.setresgid(gid, gid, gid)
            os.setresuid(uid, uid, uid)
            found = [
                (what, path.relative_to(root).as_posix())
                for path, mode in modes.items()
                for what, attempt in _attempts(path, mode)
                if _works(attempt)
            ]
            with os.fdopen(writing, "w") as pipe:
                json.dump(found, pipe)
            code = 0
        finally:
            os._exit(code)
    os.close(writing)
    with os.fdopen(reading) as pipe:
        answer = pipe.read()
    assert os.waitpid(child, 0)[1] == 0
    result: Found = {}
    for what, name in json.loads(answer):
        result.setdefault(what, set()).add(name)
    return result


def modes_below(root: Path) -> dict[Path, int]:
    """``root`` and all that is below it, with types and modes; what vanishes meanwhile is not."""
    names = (Path(at, name) for at, below, files in os.walk(root) for name in (*below, *files))
    found = {root: root.lstat().st_mode}
    for path in names:
        with suppress(FileNotFoundError):
            found[path] = path.lstat().st_mode
    return found


def _attempts(path: Path, mode: int) -> Iterator[tuple[str, Callable[[], object]]]:
    if stat.S_ISREG(mode):
        yield "read", lambda: os.close(os.open(path, os.O_RDONLY))
        yield "write", lambda: os.close(os.open(path, os.O_WRONLY))
        yield "chmod", lambda: _owned(path)
    elif stat.S_ISDIR(mode):
        yield "list", lambda: list(path.iterdir())
        yield "fill", lambda: _fill(path)
    elif stat.S_ISSOCK(mode):
        yield "connect", lambda: _connect(path)
    yield "rename", lambda: path.rename(path.with_name("moved")).rename(path)


def _owned(path: Path) -> None:
    # Only the owner may; trying would change the time of the change, which templates are judged by.
    if path.lstat().st_uid != os.geteuid():
        raise PermissionError


def _fill(directory: Path) -> None:
    (directory / "more").touch()
    (directory / "more").unlink()


def _connect(path: Path) -> None:
    with socket.socket(socket.AF_UNIX) as client:
        client.connect(str(path))


def _works(attempt: Callable[[], object]) -> bool:
    try:
        attempt()
    except OSError:
        return False
    return True
