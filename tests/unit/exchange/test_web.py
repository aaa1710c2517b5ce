"""Archives from a web server: read as they come, mended when the line breaks, never trusted."""

from __future__ import annotations

import hashlib
import http.client
import http.server
import io
import random
import ssl
import threading
import urllib.request
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import ClassVar

import pytest

from lab.errors import Forbidden, HostUnfit, InvalidSpec, LabError, NotFound
from lab.exchange import web
from lab.exchange.files import source
from lab.guest import authority
from lab.lifecycle.archives.import_archive import import_archive
from lab.names import Owner
from tests.support.answering import answering
from tests.support.exchange_world import Side

CONTENT = random.Random(1).randbytes(3_000_001)
QUICK = (0.01, 0.01, 0.01, 0.01)


class Files(http.server.BaseHTTPRequestHandler):
    """A server with one file, which can break off, change, and lead elsewhere."""

    content: ClassVar[bytes] = CONTENT
    breaks: ClassVar[list[int]] = []
    tags: ClassVar[list[str]] = []
    ranges: ClassVar[bool] = True
    leads: ClassVar[str] = ""
    status: ClassVar[int] = 0
    asked: ClassVar[list[str]] = []

    def do_GET(self) -> None:
        wanted = self.headers.get("Range", "")
        self.asked.append(wanted)
        if self.status or self.leads:
            self.send_response(self.status or 302)
            self.send_header("Location", self.leads)
            self.end_headers()
            return
        tag = self.tags[min(len(self.asked), len(self.tags)) - 1] if self.tags else '"one"'
        start = int(wanted[6:-1]) if wanted and self.ranges else 0
        if self.headers.get("If-Range", tag) != tag:
            start = 0
        self.send_response(206 if start else 200)
        self.send_header("ETag", tag)
        body = self.content[start:]
        self.send_header("Content-Length", str(len(body)))
        if start:
            end = len(self.content)
            self.send_header("Content-Range", f"bytes {start}-{end - 1}/{end}")
        self.end_headers()
        self.wfile.write(body[: self.breaks.pop(0)] if self.breaks else body)
        self.close_connection = True

    def log_message(self, *_: object) -> None:
        pass


@pytest.fixture(autouse=True)
def no_proxy(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("no_proxy", "127.0.0.1,localhost")


@contextmanager
def serving(**changes: object) -> Iterator[tuple[str, type[Files]]]:
    """A server on the loopback, its URL, and what it was asked."""
    handler = type("Some", (Files,), {"asked": [], **changes})
    server = http.server.ThreadingHTTPServer(("127.0.0.1", 0), handler)
    thread = threading.Thread(target=server.serve_forever, args=(0.01,))
    thread.start()
    try:
        yield f"http://127.0.0.1:{server.server_port}/some.lab?token=secret", handler
    finally:
        server.shutdown()
        thread.join()
        server.server_close()


def fetched(url: str) -> bytes:
    with web.download(url, timeout=10.0, pauses=QUICK) as stream:
        return stream.read()


def test_a_file_is_read() -> None:
    with serving() as (url, server):
        assert fetched(url) == CONTENT
        assert server.asked == [""]


def test_a_line_that_breaks_is_mended() -> None:
    """Protects an import of gigabytes from a wire."""
    with serving(breaks=[1_000_000, 500_000, 0, 7]) as (url, server):
        assert hashlib.sha256(fetched(url)).digest() == hashlib.sha256(CONTENT).digest()
        ranges = ["", "bytes=1000000-", "bytes=1500000-", "bytes=1500000-", "bytes=1500007-"]
        assert server.asked == ranges


def test_a_line_that_stays_broken() -> None:
    with serving(breaks=[1000] + 99 * [0]) as (url, server):
        with pytest.raises(HostUnfit, match="cut off after 1000 bytes") as failure:
            fetched(url)
        assert len(server.asked) == 1 + len(QUICK)
        assert "secret" not in f"{failure.value}{failure.value.details}"


@pytest.mark.parametrize("changes", [{"tags": ['"one"', '"two"']}, {"ranges": False}])
def test_another_file_is_never_joined_to_the_first(changes: dict[str, object]) -> None:
    with (
        serving(breaks=[1000], **changes) as (url, _),
        pytest.raises(HostUnfit, match="the server does not resume there"),
    ):
        fetched(url)


@pytest.mark.parametrize(
    ("status", "error"), [(404, NotFound), (403, Forbidden), (401, Forbidden), (500, HostUnfit)]
)
def test_what_a_server_refuses(status: int, error: type[LabError]) -> None:
    with serving(status=status) as (url, _):
        with pytest.raises(error, match=str(status)) as failure:
            fetched(url)
        assert "secret" not in str(failure.value)


@pytest.mark.parametrize("place", ["file:///etc/passwd", "ftp://127.0.0.1/x", "http://u:p@h/x"])
def test_a_server_cannot_lead_to_anything_else(place: str) -> None:
    """Protects files of this host, which `lab` may read and others not."""
    with serving(leads=place) as (url, _), pytest.raises((InvalidSpec, HostUnfit)):
        fetched(url)


def test_a_server_that_leads_in_a_circle() -> None:
    with serving(leads="/again") as (url, _), pytest.raises(HostUnfit):
        fetched(url)


def test_https_does_not_lead_to_http() -> None:
    request = urllib.request.Request("https://labs.example/a.lab")
    headers = http.client.HTTPMessage()
    with pytest.raises(HostUnfit, match="redirects from HTTPS"):
        web._Redirects().redirect_request(
            request, io.BytesIO(), 302, "Found", headers, "http://labs.example/a.lab"
        )


def test_a_server_that_nobody_vouches_for(tmp_path: Path) -> None:
    """Protects from HTTPS that is only half of it: the certificate is checked."""
    made = authority.make("test")
    signer = authority.read(made.private, made.certificate)
    pair = authority.issue(signer, "n1", ["127.0.0.1"])
    file = tmp_path / "pair.pem"
    file.write_bytes(pair.private + pair.certificate)
    context = ssl.SSLContext(ssl.PROTOCOL_TLS_SERVER)
    context.load_cert_chain(file)
    with answering((200, "text/plain", b"x"), tls=context) as (url, _):
        with pytest.raises(HostUnfit) as failure:
            fetched(url)
        assert "CERTIFICATE_VERIFY_FAILED" in failure.value.details[0]


@pytest.mark.parametrize(
    "url", ["http://", "https://user:secret@h/x", "http://h:x/", "http://h/a b", "http://h/\n"]
)
def test_what_is_no_url(url: str) -> None:
    with pytest.raises(InvalidSpec) as failure, source(url):
        pass
    assert "secret" not in str(failure.value)


def test_nobody_there() -> None:
    with serving() as (url, _):
        gone = url
    with pytest.raises(HostUnfit, match="cannot be read") as failure:
        fetched(gone)
    assert "secret" not in str(failure.value)


Damage = Callable[[bytes], bytes]


def test_an_archive_is_imported_from_the_web(tmp_path: Path) -> None:
    here, there = Side(tmp_path / "here"), Side(tmp_path / "there")
    key = here.make_template()
    archive = here.exported("template", key)
    with serving(content=archive, breaks=[len(archive) // 2]) as (url, server):
        with there.open() as ctx, source(url) as stream:
            done = import_archive(ctx, "template", stream)
        assert len(server.asked) == 2
    assert done.outcome == "imported"
    with here.open() as ctx:
        (image,) = ctx.store.images.all()
    owner = Owner("image", image.key)
    assert there.files(owner) == here.files(owner)


@pytest.mark.parametrize(
    "damage", [lambda a: a[:-9], lambda a: a[:4000] + b"x" + a[4001:], lambda _: b"<html>", bytes]
)
def test_what_is_no_archive_leaves_nothing(tmp_path: Path, damage: Damage) -> None:
    """Protects from a page that says "not found" with status 200, and from worse."""
    here, there = Side(tmp_path / "here"), Side(tmp_path / "there")
    archive = here.exported("image", here.make_image())
    spoiled = b"" if damage is bytes else damage(archive)
    with serving(content=spoiled) as (url, _), there.open() as ctx, source(url) as stream:
        with pytest.raises(InvalidSpec):
            import_archive(ctx, "image", stream)
        assert ctx.store.images.all() == []
        assert ctx.storage.volumes() == []
