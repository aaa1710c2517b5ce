"""Certificates: made once for a home, for each node again, and good for a TLS client."""

from __future__ import annotations

import ssl
import stat
import threading
from pathlib import Path

import pytest
from cryptography import x509
from cryptography.hazmat.primitives.serialization import load_pem_private_key

from lab.errors import HostUnfit
from lab.guest import authority
from lab.guest.authority import Authority, TlsKey
from lab.lifecycle.nodes.home_ca import authority as authority_of
from lab.lifecycle.nodes.home_ca import certificate
from lab.paths import Home

NAMES = ["localhost", "127.0.0.1", "::1", "n2", "10.77.0.2", "labs.example"]


@pytest.fixture
def home(tmp_path: Path) -> Home:
    home = Home(tmp_path)
    home.create()
    return home


def shake(server: TlsKey, ca: bytes, name: str, directory: Path) -> None:
    """A TLS handshake of a client that asked for ``name`` and believes ``ca``; raises SSLError."""
    files = directory / "cert.pem", directory / "key.pem"
    for file, content in zip(files, (server.certificate, server.private), strict=True):
        file.write_bytes(content)
    listens = ssl.SSLContext(ssl.PROTOCOL_TLS_SERVER)
    listens.load_cert_chain(*files)
    asks = ssl.create_default_context(cadata=ca.decode())
    asks.verify_flags |= ssl.VERIFY_X509_STRICT  # the default of later Pythons
    there, back = ssl.MemoryBIO(), ssl.MemoryBIO()
    client = asks.wrap_bio(back, there, server_hostname=name)
    answers = listens.wrap_bio(there, back, server_side=True)
    for _ in range(4):
        for end in (client, answers):
            try:
                end.do_handshake()
            except ssl.SSLWantReadError:
                continue
    assert client.version() == "TLSv1.3"


def signer(name: str = "lab") -> tuple[Authority, bytes]:
    made = authority.make(name)
    return authority.read(made.private, made.certificate), made.certificate


@pytest.mark.parametrize("name", NAMES)
def test_a_client_that_checks_everything_believes_it(name: str, tmp_path: Path) -> None:
    """Protects VERIFY_IDENTITY: strict clients, by every name and address there is."""
    ours, ca = signer()
    shake(authority.issue(ours, "n2", NAMES), ca, name, tmp_path)


def test_others_are_not_believed(tmp_path: Path) -> None:
    ours, ca = signer()
    server = authority.issue(ours, "n2", NAMES)
    with pytest.raises(ssl.SSLCertVerificationError, match="mismatch"):
        shake(server, ca, "elsewhere.example", tmp_path)
    with pytest.raises(ssl.SSLCertVerificationError, match="verify failed"):
        shake(server, signer()[1], "n2", tmp_path)  # of another home, even of the same name


def test_a_node_cannot_sign() -> None:
    """Protects all others from one whose key was taken."""
    ours, _ = signer()
    made = authority.issue(ours, "n1", ["n1"])
    found = x509.load_pem_x509_certificate(made.certificate)
    assert not found.extensions.get_extension_for_class(x509.BasicConstraints).value.ca
    assert not found.extensions.get_extension_for_class(x509.KeyUsage).value.key_cert_sign
    assert load_pem_private_key(made.private, None).public_key() == found.public_key()
    assert found.not_valid_after_utc <= ours.certificate.not_valid_after_utc
    assert "PRIVATE" not in repr(made)


def test_it_is_made_once_whoever_comes_first(home: Home) -> None:
    found: list[bytes] = []
    threads = [
        threading.Thread(target=lambda: found.append(certificate(home).read_bytes()))
        for _ in range(8)
    ]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert len(set(found)) == 1
    assert len(found) == 8
    assert stat.S_IMODE(home.ca_key.stat().st_mode) == 0o600
    assert stat.S_IMODE(home.ca.stat().st_mode) == 0o644
    authority_of(home)


def test_what_a_killed_making_left_is_made_anew(home: Home) -> None:
    home.ca_key.write_bytes(b"half of a ke")
    home.ca_key.with_name("ca.pem.new").write_bytes(b"half")
    authority_of(home)
    assert stat.S_IMODE(home.ca_key.stat().st_mode) == 0o600


def test_a_damaged_one_is_told(home: Home) -> None:
    certificate(home)
    home.ca_key.write_bytes(authority.make("other").private)
    with pytest.raises(HostUnfit, match="not the certificate's") as failed:
        authority_of(home)
    assert str(home.ca) in failed.value.hint
