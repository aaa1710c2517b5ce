"""A signed APT repository besides Debian's: its key and its source entry.

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
from urllib.parse import urlsplit

from lab.errors import CommandFailed, OutOfReach, RecipeFailed
from lab.imagebuild.recipe import Repository
from lab.run import run

KEYRING = "/etc/apt/keyrings/lab-recipe.gpg"
"""Where the key lies in the guest."""

_SOURCE = "/etc/apt/sources.list.d/lab-recipe.list"
_PREFERENCES = "/etc/apt/preferences.d"
_PRIORITY = 990
"""Of its packages: above Debian's, whose version may be higher (apt_preferences(5))."""
_KEY_NAME = "lab-recipe.gpg"
_KEY_LIMIT = 1 << 20
_TIMEOUT = 20.0

UNREACHABLE = (urllib.error.URLError, http.client.HTTPException, OSError)
"""What ``fetch`` raises when nobody answers, or not with what was asked for."""


def pinned_key(repository: Repository, scratch: Path) -> Path:
    """Fetch the repository's key into a keyring file below ``scratch`` and return it.

    Raises OutOfReach if nobody answers, RecipeFailed if it is not the key that the recipe pins.
    """
    try:
        offered = fetch(repository.key_url, _TIMEOUT)
    except UNREACHABLE as error:
        kind: type[RecipeFailed] = OutOfReach
        if isinstance(error, urllib.error.HTTPError):  # its owner's server did answer
            error.close()
            kind = RecipeFailed
        raise kind(
            f"cannot fetch the key of {repository.urls[0]}: {error}",
            hint="check the network; behind a proxy, set http_proxy and https_proxy",
        ) from None
    home = scratch / "gnupg"
    home.mkdir(mode=0o700)
    gpg = ["gpg", "--homedir", str(home), "--batch", "--quiet", "--no-autostart"]
    keyring = scratch / _KEY_NAME
    try:
        run([*gpg, "--import"], stdin=offered, timeout=30)
        # Exports just this one; no key at all is an error only by the missing output.
        run(
            [*gpg, "--output", keyring, "--export", f"{repository.key_fingerprint}!"],
            timeout=30,
        )
    except CommandFailed as error:
        raise RecipeFailed(
            f"{repository.key_url} is not a usable key", details=error.details
        ) from None
    if not keyring.exists():
        raise RecipeFailed(
            f"{repository.key_url} is not the key that the recipe trusts",
            hint=f"the recipe pins the fingerprint {repository.key_fingerprint}",
        )
    # apt reads it as a user of its own; gpg's mode depends on the umask.
    keyring.chmod(0o644)
    return keyring


def setup_hooks(repository: Repository, scratch: Path) -> list[str]:
    """Shell commands that add the repository to the root file system $1 before apt runs.

    mmdebstrap runs apt from outside at first, where ``signed-by`` is a path of the host,
    and from inside later: the entry names the key below ``scratch`` while packages are
    fetched, and ``customize_hooks`` makes that the path inside.
    """
    key = shlex.quote(str(pinned_key(repository, scratch)))
    entries = shlex.quote(source_entries(repository, str(scratch / _KEY_NAME)))
    preferred = shlex.quote(preferences(repository))
    return [
        f'mkdir -p "$1{_PREFERENCES}" && printf %s {preferred} >"$1{_PREFERENCES}/lab-recipe"',
        f'mkdir -p "$1/etc/apt/keyrings" && cp {key} "$1{KEYRING}" && chmod 644 "$1{KEYRING}"',
        f'printf %s {entries} >"$1{_SOURCE}"',
    ]


def customize_hooks(repository: Repository) -> list[str]:
    """Shell commands for the finished root file system $1: the key's path inside of it."""
    entries = shlex.quote(source_entries(repository, KEYRING))
    return [f'printf %s {entries} >"$1{_SOURCE}"']


def source_entries(repository: Repository, keyring: str) -> str:
    """The repository as lines for sources.list(5), trusting just ``keyring``."""
    options = f"[arch=amd64 signed-by={keyring}]"
    return "".join(
        f"deb {options} {url} {repository.suite} {repository.component}\n"
        for url in repository.urls
    )


def preferences(repository: Repository) -> str:
    """Text for apt_preferences(5) by which the repository's packages are chosen before Debian's."""
    hosts = dict.fromkeys(urlsplit(url).hostname for url in repository.urls)
    return "\n".join(
        f'Package: *\nPin: origin "{host}"\nPin-Priority: {_PRIORITY}\n' for host in hosts
    )


def fetch(url: str, timeout: float) -> bytes:
    """The first MiB of ``url``, waiting ``timeout`` seconds for each step at most."""
    with urllib.request.urlopen(url, timeout=timeout) as answer:  # noqa: S310  # http(s) by recipe
        data: bytes = answer.read(_KEY_LIMIT)
        return data
