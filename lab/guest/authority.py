"""Certificates: those of nodes, and the authority of a home, which signs them."""

from __future__ import annotations

import datetime as dt
from collections.abc import Sequence
from dataclasses import field
from ipaddress import ip_address

from cryptography import x509
from cryptography.hazmat.primitives import hashes
from cryptography.hazmat.primitives.asymmetric.ec import (
    SECP256R1,
    EllipticCurvePrivateKey,
    EllipticCurvePublicKey,
    generate_private_key,
)
from cryptography.hazmat.primitives.serialization import (
    Encoding,
    NoEncryption,
    PrivateFormat,
    load_pem_private_key,
)
from cryptography.x509.oid import ExtendedKeyUsageOID, NameOID

from lab.values import dataclass

_AUTHORITY_DAYS = 3652
_NODE_DAYS = 366
"""A node is given another certificate whenever it is started."""
_BEFORE = dt.timedelta(days=1)
"""Clocks of those who check a certificate may be behind ours."""


@dataclass(frozen=True)
class TlsKey:
    """A certificate and its private key, both PEM."""

    private: bytes = field(repr=False)
    certificate: bytes


@dataclass(frozen=True)
class Authority:
    """What signs the certificates of nodes."""

    key: EllipticCurvePrivateKey = field(repr=False)
    certificate: x509.Certificate


def make(name: str) -> TlsKey:
    """A fresh authority that is called ``name``, for ten years."""
    key = generate_private_key(SECP256R1())
    subject, now = _named(name), dt.datetime.now(dt.timezone.utc)
    built = _base(subject, subject, key.public_key(), now, now + dt.timedelta(_AUTHORITY_DAYS))
    built = built.add_extension(x509.BasicConstraints(ca=True, path_length=0), critical=True)
    built = built.add_extension(_usage(signs=True), critical=True)
    return _pem(key, built.sign(key, hashes.SHA256()))


def read(private: bytes, certificate: bytes) -> Authority:
    """The authority that was written as these; raises ValueError if they are damaged."""
    key = load_pem_private_key(private, None)
    found = x509.load_pem_x509_certificate(certificate)
    if not isinstance(key, EllipticCurvePrivateKey) or key.public_key() != found.public_key():
        raise ValueError("the key is not the certificate's")
    return Authority(key, found)


def issue(authority: Authority, node: str, names: Sequence[str], *, client: bool = False) -> TlsKey:
    """A fresh P-256 key for the server of ``node``, and its certificate, for a year.

    The authority's follows it: MySQL uses no certificate whose issuer it does not know.

    ``names``: host names and addresses under which the server is reached. ``client``: it is also
    to identify a client.
    """
    uses = [ExtendedKeyUsageOID.SERVER_AUTH]
    uses += [ExtendedKeyUsageOID.CLIENT_AUTH] if client else []
    key = generate_private_key(SECP256R1())
    ours, now = authority.certificate, dt.datetime.now(dt.timezone.utc)
    end = min(now + dt.timedelta(_NODE_DAYS), ours.not_valid_after_utc)
    built = _base(_named(node), ours.subject, key.public_key(), now, end)
    signer = x509.AuthorityKeyIdentifier.from_issuer_public_key(authority.key.public_key())
    for extension, critical in (
        (x509.BasicConstraints(ca=False, path_length=None), True),
        (_usage(signs=False), True),
        (x509.ExtendedKeyUsage(uses), False),
        (x509.SubjectAlternativeName([_general(name) for name in dict.fromkeys(names)]), False),
        (signer, False),
    ):
        built = built.add_extension(extension, critical=critical)
    return _pem(key, built.sign(authority.key, hashes.SHA256()), ours)


def _base(
    subject: x509.Name,
    issuer: x509.Name,
    public: EllipticCurvePublicKey,
    now: dt.datetime,
    end: dt.datetime,
) -> x509.CertificateBuilder:
    return (
        x509.CertificateBuilder()
        .subject_name(subject)
        .issuer_name(issuer)
        .public_key(public)
        .serial_number(x509.random_serial_number())
        .not_valid_before(now - _BEFORE)
        .not_valid_after(end)
        .add_extension(x509.SubjectKeyIdentifier.from_public_key(public), critical=False)
    )


def _usage(*, signs: bool) -> x509.KeyUsage:
    """What a key may do: sign certificates, or identify a server."""
    return x509.KeyUsage(
        digital_signature=not signs,
        key_cert_sign=signs,
        crl_sign=signs,
        content_commitment=False,
        key_encipherment=False,
        data_encipherment=False,
        key_agreement=False,
        encipher_only=False,
        decipher_only=False,
    )


def _named(name: str) -> x509.Name:
    return x509.Name([x509.NameAttribute(NameOID.COMMON_NAME, name)])


def _general(name: str) -> x509.GeneralName:
    try:
        return x509.IPAddress(ip_address(name))
    except ValueError:
        return x509.DNSName(name)


def _pem(key: EllipticCurvePrivateKey, *chain: x509.Certificate) -> TlsKey:
    private = key.private_bytes(Encoding.PEM, PrivateFormat.PKCS8, NoEncryption())
    return TlsKey(private, b"".join(one.public_bytes(Encoding.PEM) for one in chain))
