"""An archive on a web server, read as it comes, over HTTP or HTTPS.

A line that breaks is mended: the rest is asked for with Range and If-Range (RFC 9110), so what
follows is of the same file, or the reading ends. Nothing is taken on trust: what arrives goes
through the same checks as a file.

A program in a pipe does not do that: with --retry, curl sends the beginning a second time and
exits with 0, and ``-C -`` resumes only what it writes to a file. httpx resumes nothing, and is
installed with the extra ``client`` only.
"""

from __future__ import annotations

import contextlib
import http.client
import io
import re
import time
import urllib.error
import urllib.parse
import urllib.request
from collections.abc import Iterator
from typing import IO, BinaryIO, cast

from lab.errors import Forbidden, HostUnfit, InvalidSpec, LabError, NotFound

TIMEOUT = 60.0
"""Seconds that a server may say nothing."""
PAUSES = (0.5, 2.0, 5.0, 15.0)
"""Seconds before each try to resume; more tries without a new byte in between are not made."""

_BUFFER = 1 << 20
_SCHEMES = ("http", "https")
_RANGE = re.compile(r"bytes (\d+)-\d+/(?:\d+|\*)")
_PLAIN = re.compile(r"[!-~]+")
_BY_HAND = "fetch it with a program that can log in: PROGRAM ... | lab image import -"


@contextlib.contextmanager
def download(
    url: str, *, timeout: float = TIMEOUT, pauses: tuple[float, ...] = PAUSES
) -> Iterator[BinaryIO]:
    """What ``url`` holds. ``timeout``, ``pauses``: in seconds, see the constants.

    Raises InvalidSpec, NotFound, Forbidden, HostUnfit, also while it is read.
    """
    with _Download(_checked(url), timeout, pauses) as raw:
        yield io.BufferedReader(raw, _BUFFER)


class _Redirects(urllib.request.HTTPRedirectHandler):
    """Follows to the web only, and never from HTTPS to HTTP."""

    def redirect_request(
        self,
        req: urllib.request.Request,
        fp: IO[bytes],
        code: int,
        msg: str,
        headers: http.client.HTTPMessage,
        newurl: str,
    ) -> urllib.request.Request | None:
        if req.type == "https" and urllib.parse.urlsplit(newurl).scheme != "https":
            raise HostUnfit(f"{shown(req.full_url)} redirects from HTTPS to {shown(newurl)}")
        return super().redirect_request(req, fp, code, msg, headers, _checked(newurl))


class _Download(io.RawIOBase):
    def __init__(self, url: str, timeout: float, pauses: tuple[float, ...]) -> None:
        super().__init__()
        self._url = url
        self._timeout = timeout
        self._pauses = pauses
        self._at = 0
        # No handlers for files and FTP, to which a server could lead otherwise.
        self._opener = urllib.request.OpenerDirector()
        for handler in (
            urllib.request.ProxyHandler, urllib.request.HTTPHandler, urllib.request.HTTPSHandler,
            urllib.request.HTTPDefaultErrorHandler, urllib.request.HTTPErrorProcessor, _Redirects,
        ):  # fmt: skip
            self._opener.add_handler(handler())
        self._answer = self._ask()
        length = self._answer.headers.get("Content-Length", "")
        self._size = int(length) if length.isdigit() else None
        tag = self._answer.headers.get("ETag", "")
        weak = tag.startswith("W/")
        self._same = tag if tag and not weak else self._answer.headers.get("Last-Modified", "")

    def readable(self) -> bool:
        return True

    def readinto(self, buffer: bytearray | memoryview, /) -> int:  # type: ignore[override]
        why: object = "the connection was closed"
        for pause in (0.0, *self._pauses):
            if pause:
                time.sleep(pause)
                try:
                    self._go_on()
                except (OSError, http.client.HTTPException) as error:
                    if isinstance(error, urllib.error.HTTPError):
                        error.close()
                    why = error
                    continue
            try:
                count = self._answer.readinto(memoryview(buffer))
            except (OSError, http.client.HTTPException) as error:
                why = error
                continue
            if count or self._size is None or self._at >= self._size:
                self._at += count
                return count
        raise HostUnfit(
            f"{shown(self._url)} was cut off after {self._at} bytes",
            hint="try again; with --resume the received data is kept",
            details=[str(why)],
        )

    def close(self) -> None:
        if hasattr(self, "_answer"):
            self._answer.close()
        super().close()

    def _ask(self) -> http.client.HTTPResponse:
        try:
            return self._open({})
        except urllib.error.HTTPError as error:
            error.close()
            raise _refusal(self._url, error.code, str(error.reason)) from None
        except (OSError, http.client.HTTPException) as error:
            reason = getattr(error, "reason", error)
            raise HostUnfit(f"{shown(self._url)} cannot be read", details=[str(reason)]) from None

    def _open(self, headers: dict[str, str]) -> http.client.HTTPResponse:
        request = urllib.request.Request(  # noqa: S310  # its scheme was checked
            self._url, headers={"User-Agent": "lab", "Accept-Encoding": "identity", **headers}
        )
        return cast("http.client.HTTPResponse", self._opener.open(request, timeout=self._timeout))

    def _go_on(self) -> None:
        """Ask for the rest; raises HostUnfit if the server has another file by now."""
        self._answer.close()
        headers = {"Range": f"bytes={self._at}-"} if self._at else {}
        if headers and self._same:
            headers["If-Range"] = self._same
        self._answer = self._open(headers)
        if headers:
            found = _RANGE.fullmatch(self._answer.headers.get("Content-Range", ""))
            if self._answer.status != 206 or found is None or int(found[1]) != self._at:
                raise HostUnfit(
                    f"{shown(self._url)} was cut off after {self._at} bytes, and the server does"
                    " not resume there: the file has changed, or the server supports no ranges",
                    hint="try again; with --resume the received data is kept",
                )


def shown(url: str) -> str:
    """``url`` for messages: without what may be secret in it."""
    parts = urllib.parse.urlsplit(url)
    host = parts.netloc.rpartition("@")[2]
    return f"{parts.scheme}://{host}{parts.path}{'?...' if parts.query else ''}"


def _checked(url: str) -> str:
    """``url`` without its fragment; raises InvalidSpec."""
    try:
        parts = urllib.parse.urlsplit(url)
        host, _ = parts.hostname, parts.port
    except ValueError as error:
        raise InvalidSpec(f"the URL is invalid: {error}") from None
    if parts.scheme not in _SCHEMES or not host or not _PLAIN.fullmatch(url):
        raise InvalidSpec(
            f"{shown(url)!r} is not an HTTP URL", hint="it starts with http:// or https://"
        )
    if "@" in parts.netloc:
        raise InvalidSpec(
            f"{shown(url)}: the URL contains a user name or a password,"
            " which other users of this host could see",
            hint=_BY_HAND,
        )
    return urllib.parse.urlunsplit(parts._replace(fragment=""))


def _refusal(url: str, code: int, reason: str) -> LabError:
    if code in (404, 410):
        return NotFound(f"{shown(url)}: there is no such file ({code})")
    if code in (401, 403, 407):
        return Forbidden(f"{shown(url)}: the server refuses it ({code} {reason})", hint=_BY_HAND)
    return HostUnfit(f"{shown(url)}: the server answers {code} {reason}")
