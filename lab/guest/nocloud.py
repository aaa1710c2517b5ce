"""The seed of guests that boot a vendor's cloud image: what cloud-init reads at their first boot.

Format: a FAT file system with the label ``CIDATA``, on the whole disk, that holds ``user-data``
and ``meta-data`` (cloud-init's documentation, data source NoCloud). Labs have a faster way: see
``lab.guest.seed``.
"""

from __future__ import annotations

from collections.abc import Mapping
from pathlib import Path

from lab.run import require, run
from lab.units import MIB

LABEL = "CIDATA"
TOOLS = {"mformat": "mtools", "mcopy": "mtools"}
"""The programs that write a seed, and their package."""

_SECTOR = 512
_SECONDS = 60.0


def write(path: Path, script: bytes, files: Mapping[str, bytes], *, instance: str) -> None:
    """Write the seed disk ``path``. ``script`` is run as root, once, at the end of the first boot.

    ``files``: content by name, next to cloud-init's own; names of lower-case letters, digits, dots
    and hyphens. ``instance``: cloud-init runs the script once for each instance id. Raises
    HostUnfit if mtools is not installed, CommandFailed.
    """
    for tool, package in TOOLS.items():
        require(tool, package=package)
    meta = f"instance-id: {instance}\nlocal-hostname: builder\n".encode()
    contents = {**files, "meta-data": meta, "user-data": script}
    room = sum(map(len, contents.values())) // MIB + 2  # MiB; the tables need less than one
    sectors = room * MIB // _SECTOR
    geometry = ["-T", str(sectors), "-h", "16", "-s", "32"]
    run(["mformat", "-i", path, "-C", *geometry, "-v", LABEL, "::"], timeout=_SECONDS)
    for name, content in contents.items():
        run(["mcopy", "-i", path, "-", f"::{name}"], stdin=content, timeout=_SECONDS)
