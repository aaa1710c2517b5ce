"""Another user of this host: ``stranger.py UID GID FIRST-LAST ROOT...``, run by root.

As that user it tries all paths below each ROOT again and again, while others work there. It
listens at ports of labs (FIRST to LAST) that are free when it starts, and connects to those where
others listen. "ready" is printed first. When its standard input ends, it prints what it found, as
JSON.
"""

from __future__ import annotations

import json
import select
import socket
import sys
from contextlib import ExitStack, suppress
from dataclasses import asdict, dataclass, field
from pathlib import Path

import pymysql

from lab.names import LOOPBACK
from tests.e2e.e2e_site import listening
from tests.support.other_user import modes_below, tried

TAKEN = 20
"""Ports that it takes: those that labs would get first."""
USERS = ("lab", "root")
"""As whom it tries to log in, without a password and without TLS."""
_ABORTED = 5
"""Connections to each port that it gives up before it logs in, each time."""
_PAUSE = 0.3
_PATIENCE = 2.0


@dataclass
class Report:
    """What it found.

    ``files``: by root, the paths by what can be done with them (``other_user.Found``). ``paths``:
    all that were tried. ``lines``: command lines of all processes. ``refused``, ``entered``: ports
    of servers that did, or did not, want a password.
    """

    files: dict[str, dict[str, list[str]]] = field(default_factory=dict)
    paths: list[str] = field(default_factory=list)
    lines: list[str] = field(default_factory=list)
    refused: list[int] = field(default_factory=list)
    entered: list[int] = field(default_factory=list)
    looks: int = 0


def main(uid: int, gid: int, ports: range, roots: list[Path]) -> None:
    """Look until the input ends."""
    files: dict[str, dict[str, set[str]]] = {str(root): {} for root in roots}
    paths: set[str] = set()
    lines: set[str] = set()
    refused: set[int] = set()
    entered: set[int] = set()
    looks = 0
    with ExitStack() as stack:
        free = [port for port in ports if port not in listening()][:TAKEN]
        for port in free:
            stack.enter_context(socket.create_server((LOOPBACK, port)))
        _say("ready")
        while not select.select([sys.stdin], [], [], _PAUSE)[0]:
            looks += 1
            for root in roots:
                paths |= {path.relative_to(root).as_posix() for path in modes_below(root)}
                for what, names in tried(root, uid, gid).items():
                    files[str(root)].setdefault(what, set()).update(names)
            lines |= _command_lines()
            for port in listening() & set(ports) - set(free):
                _log_in(port, refused, entered)
    found = {root: {what: sorted(of[what]) for what in of} for root, of in files.items()}
    report = Report(found, sorted(paths), sorted(lines), sorted(refused), sorted(entered), looks)
    _say(json.dumps(asdict(report)))


def _command_lines() -> set[str]:
    found = set()
    for path in Path("/proc").glob("[0-9]*/cmdline"):
        with suppress(OSError):
            found.add(path.read_bytes().replace(b"\0", b" ").decode(errors="replace"))
    return found


def _log_in(port: int, refused: set[int], entered: set[int]) -> None:
    """Try to log in without a password, and give up some connections before that."""
    greeting = b""
    for _ in range(_ABORTED):
        with (
            suppress(OSError),
            socket.create_connection((LOOPBACK, port), _PATIENCE) as connection,
        ):
            greeting = connection.recv(256)
            if b"native_password" not in greeting:
                return
    for user in USERS:
        try:
            pymysql.connect(
                host=LOOPBACK, port=port, user=user, ssl_disabled=True,
                connect_timeout=_PATIENCE, read_timeout=_PATIENCE, write_timeout=_PATIENCE,
            ).close()  # fmt: skip
            entered.add(port)
        except pymysql.err.MySQLError as error:
            if error.args[0] == 1045:  # access denied
                refused.add(port)
        except (OSError, ValueError, IndexError):  # what no server would send
            continue


def _say(text: str) -> None:
    print(text, flush=True)  # noqa: T201


if __name__ == "__main__":
    first, _, last = sys.argv[3].partition("-")
    main(int(sys.argv[1]), int(sys.argv[2]), range(int(first), int(last) + 1),
         [Path(root) for root in sys.argv[4:]])  # fmt: skip
