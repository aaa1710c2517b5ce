"""A signed APT repository besides Debian's: its key, its source entry, whether it answers.

A key is fetched from where its owner offers it, but only the one with the fingerprint that
the recipe pins is kept, whatever else the file holds. apt then trusts that key for this
repository only (``signed-by``, see sources.list(5)).
"""

from __future__ import annotations

import http.client
import shlex
import urllib.error
import urllib.request
from pathlib import Path

from images.recipe import Recipe, Repository
from lab.errors import CommandFailed, HostUnfit
from lab.run import run

KEYRING = "/etc/apt/keyrings/lab-recipe.gpg"
"""Where the key lies in the guest."""

_SOURCE = "/etc/apt/sources.list.d/lab-recipe.list"
_KEY_LIMIT = 1 << 20
_TIMEOUT = 20.0

# What urllib raises when nobody answers, or not with what was asked for.
_UNREACHABLE = (urllib.error.URLError, http.client.HTTPException, OSError)


def reachable(recipe: Recipe, *, timeout: float = 4.0) -> bool:
    """Whether the recipe's repository answers with its Release file within ``timeout`` seconds.

    True for a recipe without one. Costs a request: callers remember the answer.
    """
    if recipe.repository is None:
        return True
    url = f"{recipe.repository.url}/dists/{recipe.repository.suite}/InRelease"
    try:
        return bool(_fetch(url, timeout))
    except _UNREACHABLE:
        return False


def pinned_key(repository: Repository, scratch: Path) -> Path:
    """Fetch the repository's key into a keyring file below ``scratch`` and return it.

    Raises HostUnfit if it cannot be fetched or is not the key that the recipe pins.
    """
    try:
        offered = _fetch(repository.key_url, _TIMEOUT)
    except _UNREACHABLE as error:
        raise HostUnfit(
            f"cannot fetch the key of {repository.url}: {error}",
            hint="check the network; behind a proxy, set http_proxy and https_proxy",
        ) from None
    home = scratch / "gnupg"
    home.mkdir(mode=0o700)
    gpg = ["gpg", "--homedir", str(home), "--batch", "--quiet", "--no-autostart"]
    keyring = scratch / "lab-recipe.gpg"
    try:
        run([*gpg, "--import"], stdin=offered, timeout=30)
        # Exports just this one; no key at all is an error only by the missing output.
        run(
            [*gpg, "--output", keyring, "--export", f"{repository.key_fingerprint}!"],
            timeout=30,
        )
    except CommandFailed as error:
        raise HostUnfit(
            f"{repository.key_url} is not a usable key", details=error.details
        ) from None
    if not keyring.exists():
        raise HostUnfit(
            f"{repository.key_url} is not the key that the recipe trusts",
            hint=f"the recipe pins the fingerprint {repository.key_fingerprint}",
        )
    return keyring


def setup_hooks(repository: Repository, scratch: Path) -> list[str]:
    """Shell commands that add the repository to the root file system $1 before apt runs.

    apt resolves ``signed-by`` outside of the new root file system at first and inside of
    it later: the entry names the key's path inside, which is bound to the key outside.
    """
    key = shlex.quote(str(pinned_key(repository, scratch)))
    return [
        f'mkdir -p "$1/etc/apt/keyrings" && cp {key} "$1{KEYRING}" && chmod 644 "$1{KEYRING}"',
        f'echo {shlex.quote(source_entry(repository))} >"$1{_SOURCE}"',
    ]


def source_entry(repository: Repository, keyring: str = KEYRING) -> str:
    """The repository as a line for sources.list(5)."""
    options = f"[arch=amd64 signed-by={keyring}]"
    return f"deb {options} {repository.url} {repository.suite} {repository.component}"


def _fetch(url: str, timeout: float) -> bytes:
    with urllib.request.urlopen(url, timeout=timeout) as answer:  # noqa: S310  # http(s) by recipe
        data: bytes = answer.read(_KEY_LIMIT)
        return data
