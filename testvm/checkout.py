"""The working files of the checkout, committed or not, as an archive."""

from __future__ import annotations

import io
import tarfile
from pathlib import Path

from lab.run import run

_OURS = ["ls-files", "-z", "--cached", "--others", "--exclude-standard"]


def archive(root: Path) -> bytes:
    """What git would commit from ``root`` if all were added, as tar.gz.

    Modes and symbolic links are kept, owners are not: in the guest all is root's.
    """
    listing = run(["git", "-C", root, *_OURS], timeout=60).stdout
    buffer = io.BytesIO()
    with tarfile.open(fileobj=buffer, mode="w:gz", compresslevel=3) as tar:
        for name in sorted({name for name in listing.split("\0") if name}):
            path = root / name
            if path.is_symlink() or path.is_file():
                tar.add(path, arcname=name, recursive=False, filter=_anonymous)
    return buffer.getvalue()


def _anonymous(info: tarfile.TarInfo) -> tarfile.TarInfo:
    info.uid = info.gid = 0
    info.uname = info.gname = "root"
    return info
