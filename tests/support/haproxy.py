"""HAProxy for tests: the host's, or out of Debian's package, unpacked once below a cache."""

from __future__ import annotations

import os
import shutil
from pathlib import Path

from lab.errors import LabError
from lab.run import run
from tests.support.mariadb_server import NoServer, unpacked

LIBRARIES = (
    "liblua5.3-0", "liblua5.4-0", "libopentracing-c-wrapper0", "libopentracing-c-wrapper0t64",
    "libopentracing1", "libpcre2-posix3", "libjemalloc2",
)  # fmt: skip
"""What it may need that a host lacks."""


def haproxy() -> tuple[Path, dict[str, str]]:
    """The program, and the environment it runs in; raises NoServer."""
    if installed := shutil.which("haproxy", path=f"{os.environ.get('PATH', '')}:/usr/sbin"):
        return Path(installed), dict(os.environ)
    found, places = unpacked("haproxy") / "usr/sbin/haproxy", list[str]()
    for library in LIBRARIES:
        try:
            root = unpacked(library)
        except NoServer:
            continue  # of another release
        places += [str(path.parent) for path in root.rglob("lib*.so*")]
    env = os.environ | {"LD_LIBRARY_PATH": os.pathsep.join(sorted(set(places)))}
    try:
        run([found, "-v"], timeout=30, env=env)
    except LabError as error:
        raise NoServer(f"haproxy does not run here: {error}") from error
    return found, env
