"""The URL of the service, and the token for it."""

from __future__ import annotations

import os
import re
from collections.abc import Mapping
from pathlib import Path
from urllib.parse import urlsplit

from lab.errors import Forbidden, InvalidSpec, Unauthorized

_TOKEN = re.compile(r"[!-~]{1,500}")


def check_url(url: str) -> str:
    """``url`` as it is used; raises InvalidSpec, which never contains a secret."""
    try:
        parts = urlsplit(url.strip())
        port = parts.port
    except ValueError:
        raise InvalidSpec("the service's URL is invalid", hint=_SUCH_AS) from None
    if parts.username is not None or parts.password is not None:
        raise InvalidSpec("the service's URL contains a secret", hint="set the token in LAB_TOKEN")
    plain = not (parts.query or parts.fragment)
    if parts.scheme not in ("http", "https") or not parts.hostname or port == 0 or not plain:
        raise InvalidSpec(f"{url!r} is not the URL of a service", hint=_SUCH_AS)
    return url.strip().rstrip("/")


def find_url(env: Mapping[str, str] = os.environ) -> str:
    """The URL in LAB_URL; raises InvalidSpec."""
    if not env.get("LAB_URL"):
        raise InvalidSpec("no service is configured", hint=f"set LAB_URL, {_SUCH_AS}")
    return check_url(env["LAB_URL"])


def check_token(token: str) -> str:
    """``token`` as it is sent; raises InvalidSpec, which does not contain it."""
    token = token.strip()
    if not _TOKEN.fullmatch(token):
        raise InvalidSpec("invalid token: unexpected characters", hint="copy it again")
    return token


def find_token(env: Mapping[str, str] = os.environ) -> str:
    """The token in LAB_TOKEN, else in the file of ``token_file``.

    Raises Unauthorized if neither exists, Forbidden if others may read the file.
    """
    if env.get("LAB_TOKEN"):
        return check_token(env["LAB_TOKEN"])
    path = token_file(env)
    try:
        with path.open(encoding="utf-8-sig", errors="replace") as file:
            mode = os.fstat(file.fileno()).st_mode
            text = file.read(1000)
    except OSError as error:
        raise Unauthorized(
            "the service requires a token, and none is configured",
            hint=f"set LAB_TOKEN, or write it to {path} with mode 0600",
            details=[] if isinstance(error, FileNotFoundError) else [f"{path}: {error.strerror}"],
        ) from None
    if mode & 0o077:
        raise Forbidden(f"others may read the token in {path}", hint=f"chmod 600 {path}")
    return check_token(text)


def token_file(env: Mapping[str, str]) -> Path:
    """LAB_TOKEN_FILE, else ``token`` in the directory of the user's config file."""
    from lab.config.settings import config_files

    if env.get("LAB_TOKEN_FILE"):
        return Path(env["LAB_TOKEN_FILE"])
    return config_files(env)[0].with_name("token")


_SUCH_AS = "such as https://labs.example:8443"
