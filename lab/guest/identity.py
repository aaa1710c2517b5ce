"""What a clone must not share with its siblings, made on the host."""

from __future__ import annotations

import secrets
import string
from collections.abc import Sequence
from dataclasses import field
from typing import TYPE_CHECKING, Any

from lab.values import dataclass

if TYPE_CHECKING:
    from lab.guest.authority import TlsKey

PASSWORD_LENGTH = 20
ENTROPY_BYTES = 64
HOST_KEY = "/etc/ssh/ssh_host_ed25519_key"
"""Where a node keeps its SSH host key; the public half has the suffix ``.pub``."""

_DAY = 86400.0
_ROOT = "0:0"
_LETTERS = string.ascii_letters + string.digits


@dataclass(frozen=True)
class SshKey:
    """An Ed25519 key: ``private`` in OpenSSH's format, ``public`` as one line."""

    private: bytes = field(repr=False)
    public: str


@dataclass(frozen=True)
class NodeIdentity:
    """One node's own: host key, TLS key, and random bytes for its kernel."""

    ssh_host: SshKey
    tls: TlsKey
    entropy: bytes = field(repr=False)


def make_password() -> str:
    """A password of letters and digits only: safe in shells, URLs and option files."""
    return "".join(secrets.choice(_LETTERS) for _ in range(PASSWORD_LENGTH))


def make_node_identity(tls: TlsKey) -> NodeIdentity:
    """A fresh identity for a node whose server has ``tls``."""
    return NodeIdentity(make_ssh_key(), tls, secrets.token_bytes(ENTROPY_BYTES))


def make_ssh_key(comment: str = "lab") -> SshKey:
    """A fresh Ed25519 key."""
    # Imported here: `lab up` needs keys once QEMU was started, and loads this meanwhile.
    from cryptography.hazmat.primitives import serialization as form
    from cryptography.hazmat.primitives.asymmetric.ed25519 import Ed25519PrivateKey

    key = Ed25519PrivateKey.generate()
    private = key.private_bytes(form.Encoding.PEM, form.PrivateFormat.OpenSSH, form.NoEncryption())
    return SshKey(private, f"{_public(key)} {comment}")


def read_ssh_key(private: bytes, comment: str) -> SshKey:
    """The key that was written as ``private``, in OpenSSH's format; raises ValueError."""
    from cryptography.hazmat.primitives.serialization import load_ssh_private_key

    key = load_ssh_private_key(private, password=None)
    return SshKey(private, f"{_public(key)} {comment}")


def _public(key: Any) -> str:
    """The public half of a key, as OpenSSH writes it."""
    from cryptography.hazmat.primitives.serialization import Encoding, PublicFormat

    public: bytes = key.public_key().public_bytes(Encoding.OpenSSH, PublicFormat.OpenSSH)
    return public.decode()


def message(
    identity: NodeIdentity,
    *,
    now: float,
    engine: tuple[int, int],
    tls_directory: str,
    authorized: str,
    statements: Sequence[str],
    end_sessions: bool = False,
    reseeds: bool = True,
    draw: str | None = None,
) -> bytes:
    """The message to ``/usr/lib/lab/personalise`` in the guest.

    ``now``: UTC seconds since the epoch. ``engine``: the uid and gid in the guest that own
    the TLS files in ``tls_directory``; ``authorized``: the public key that may log in as
    root; ``statements`` are run on the node's server as its root, none where it has no server.

    ``end_sessions``: of clients, which the RAM of a lab in use has; that is done before
    ``statements``, which their locks would block. ``reseeds``: the guest's program can do that, and
    end sessions. ``draw``: the statement for which the server gets new seeds while the clock is a
    day late, empty if none does; None: the one that the guest's program knows.
    """
    reseeds = reseeds and bool(statements)
    lines = [
        item("entropy", identity.entropy),
        *(_seeds(now, draw) if reseeds else [item("clock", f"{now:.6f}")]),
        *([item("sessions")] if end_sessions and reseeds else []),
        *_key_files(identity, engine, tls_directory, authorized),
        *(item("sql", statement) for statement in statements),
    ]
    return _packed(lines)


def _seeds(now: float, draw: str | None) -> list[str]:
    """The items that give a server new seeds, and set the clock."""
    if draw is None:
        return [item("reseed", f"{now:.6f}")]
    early = [item("clock", f"{now - _DAY:.6f}"), item("sql", draw)] if draw else []
    return [*early, item("clock", f"{now:.6f}")]


def renewal(
    identity: NodeIdentity,
    *,
    engine: tuple[int, int],
    tls_directory: str,
    authorized: str,
    statement: str,
) -> bytes:
    """A message that gives a node that started again new keys; arguments as for ``message``.

    All of them, not the certificate alone: what was written shortly before a power failure may be
    lost, and a snapshot brings back those of its moment. ``statement`` has the server read its own;
    empty: it reads none.
    """
    files = _key_files(identity, engine, tls_directory, authorized)
    return _packed([*files, *([item("sql", statement)] if statement else [])])


def _key_files(
    identity: NodeIdentity, engine: tuple[int, int], tls_directory: str, authorized: str
) -> list[str]:
    host = identity.ssh_host
    return [
        item("file", HOST_KEY, "600", _ROOT, host.private),
        item("file", f"{HOST_KEY}.pub", "644", _ROOT, f"{host.public}\n"),
        item("file", "/root/.ssh/authorized_keys", "600", _ROOT, f"{authorized}\n"),
        *_tls_files(identity.tls, engine, tls_directory),
    ]


def _tls_files(tls: TlsKey, engine: tuple[int, int], directory: str) -> list[str]:
    server = "{}:{}".format(*engine)
    return [
        item("file", f"{directory}/key.pem", "600", server, tls.private),
        item("file", f"{directory}/cert.pem", "644", server, tls.certificate),
    ]


def _packed(lines: Sequence[str]) -> bytes:
    return "".join(f"{line}\n" for line in lines).encode()


def item(word: str, *values: str | bytes) -> str:
    """One line of a message: the word and its values, each in hexadecimal."""
    encoded = ((v.encode() if isinstance(v, str) else v).hex() for v in values)
    return " ".join((word, *encoded))
