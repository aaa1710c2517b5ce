"""A root file system with little more than perl: for programs that attack what runs them."""

from __future__ import annotations

import re
import shutil
import subprocess
from pathlib import Path

PROGRAMS = ("/usr/bin/perl", "/usr/bin/env", "/bin/sh")


def tiny_root(top: Path) -> Path:
    """Make it in ``top``; the programs and libraries are this machine's."""
    for name in ("dev", "proc", "run", "tmp", "mnt", "usr/bin", "bin", "boot", "etc"):
        (top / name).mkdir(parents=True)
    for name in PROGRAMS:
        listed = subprocess.run(["ldd", name], capture_output=True, text=True, check=True).stdout
        for path in (name, *re.findall(r"(/\S+) \(0x", listed)):
            target = top / path[1:]
            target.parent.mkdir(parents=True, exist_ok=True)
            shutil.copy(path, target)
    return top
