"""Whom a build trusts for Debian's packages: the archive's keys, ours and the host's.

A host that is older than the suite does not have its keys: Ubuntu 22.04's
debian-archive-keyring ends with Debian 11. So the keys come along (``images/keys/``). The
host's are used as well, for suites whose keys are newer than this program.
"""

from __future__ import annotations

import shutil
from pathlib import Path

KEYS = Path(__file__).parents[1] / "recipes" / "keys"
"""The archive's public keys, one file each, as the package debian-archive-keyring has them."""

HOST_KEYRING = Path("/usr/share/keyrings/debian-archive-keyring.gpg")


def keyrings(scratch: Path, host: Path = HOST_KEYRING) -> list[Path]:
    """What ``mmdebstrap --keyring`` is to be given: a directory, and the host's file if any.

    The keys are copied to ``scratch``: apt checks signatures as a user of its own, who can
    enter the directory of a build but perhaps not this one. If the host has a keyring it
    must be given too: mmdebstrap trusts it alone when it holds a key that is not given.
    """
    ours = scratch / "keys"
    ours.mkdir(mode=0o755)
    ours.chmod(0o755)
    for key in sorted(KEYS.glob("*.gpg")):
        copied = Path(shutil.copyfile(key, ours / key.name))
        copied.chmod(0o644)
    return [ours, host] if host.exists() else [ours]
