"""The client and certificates."""

from __future__ import annotations

import ssl
import time
from pathlib import Path

import pytest
from answering import answering

from lab.client import Client
from lab.errors import HostUnfit, InvalidSpec
from lab.run import run

REFUSED = (422, "application/problem+json", b'{"status": 422, "detail": "enough"}')


def test_only_the_service_itself_gets_the_token(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Protects the token from who stands in between: no certificate, no request; told at once."""
    cert, key = tmp_path / "tls.crt", tmp_path / "tls.key"
    run(["openssl", "req", "-x509", "-newkey", "ec", "-pkeyopt", "ec_paramgen_curve:P-256",
         "-nodes", "-keyout", str(key), "-out", str(cert), "-days", "2",
         "-subj", "/CN=x", "-addext", "subjectAltName=IP:127.0.0.1"], timeout=30)  # fmt: skip
    tls = ssl.SSLContext(ssl.PROTOCOL_TLS_SERVER)
    tls.load_cert_chain(cert, key)
    monkeypatch.delenv("SSL_CERT_FILE", raising=False)
    with answering(REFUSED, tls=tls) as (url, heard):
        began = time.monotonic()
        with Client(url, "x") as stranger, pytest.raises(HostUnfit) as failed:
            stranger.labs()
        assert "certificate" in failed.value.details[0]
        assert time.monotonic() - began < 2.5
        assert heard == []
        monkeypatch.setenv("SSL_CERT_FILE", str(cert))
        with Client(url, "x") as known, pytest.raises(InvalidSpec, match="enough"):
            known.labs()
        assert [headers["Authorization"] for headers in heard] == ["Bearer x"]
