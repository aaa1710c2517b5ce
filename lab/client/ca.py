"""The service's CA certificate for database servers, kept in a file for clients."""

from __future__ import annotations

import hashlib
import os
import tempfile
import time
from collections.abc import Mapping
from contextlib import suppress
from pathlib import Path

from lab.drafts import replaced
from lab.errors import HostUnfit, LabError
from lab.paths import PRIVATE, make_directory

_BEGIN = "-----BEGIN CERTIFICATE-----"
_LIMIT = 1 << 20
_UNUSED = 30 * 86400.0


def check_pem(data: object) -> str:
    """``data`` if it looks like a certificate; raises LabError."""
    if not isinstance(data, str) or not data.startswith(_BEGIN) or len(data) > _LIMIT:
        raise LabError(
            "the service's answer is not a certificate", hint="is the service another version?"
        )
    return data


def keep(pem: str, env: Mapping[str, str] = os.environ) -> Path:
    """The file that holds ``pem``: named after its content, so it is never outdated.

    It is in the user's cache, or in a temporary directory if that cannot be written, as on some CI
    machines. Raises HostUnfit.
    """
    cache = env.get("XDG_CACHE_HOME", "")
    try:
        base = Path(cache) if cache.startswith("/") else Path("~/.cache").expanduser()
        return _write(make_directory(base / "lab", PRIVATE), pem)
    except (HostUnfit, RuntimeError):  # RuntimeError: the user has no home
        return _write(Path(tempfile.mkdtemp(prefix="lab-", dir=env.get("TMPDIR") or None)), pem)


def _write(directory: Path, pem: str) -> Path:
    path = directory / f"ca-{hashlib.sha256(pem.encode()).hexdigest()[:16]}.pem"
    found = None
    with suppress(OSError, UnicodeDecodeError):
        found = path.read_text(encoding="utf-8")
    if found == pem:
        with suppress(OSError):  # in a cache that can only be read
            os.utime(path)
    else:
        with replaced(path) as draft:
            draft.write_text(pem, encoding="utf-8")
        _prune(directory)
    return path


def _prune(directory: Path) -> None:
    """Remove the files that were not used for ``_UNUSED`` seconds: of services that are gone."""
    for path in directory.glob("ca-*.pem*"):
        with suppress(OSError):  # removed by another process
            if time.time() - path.stat().st_mtime > _UNUSED:
                path.unlink()
