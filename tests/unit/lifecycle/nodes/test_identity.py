"""What makes a clone itself: all of it fresh, and in the form that the guest reads."""

from __future__ import annotations

import pytest
from cryptography.hazmat.primitives.serialization import load_ssh_private_key, load_ssh_public_key

from lab.guest import authority, identity
from lab.guest.identity import NodeIdentity


def fresh() -> NodeIdentity:
    made = authority.make("lab")
    signer = authority.read(made.private, made.certificate)
    return identity.make_node_identity(authority.issue(signer, "n1", ["n1"]))


def test_nothing_is_the_same_twice() -> None:
    """Protects rule 8: a clone shares no secret with its siblings."""
    first, second = (fresh() for _ in range(2))
    assert first.entropy != second.entropy
    assert len(first.entropy) == identity.ENTROPY_BYTES
    assert first.ssh_host.private != second.ssh_host.private
    assert first.tls.private != second.tls.private
    assert len({identity.make_password() for _ in range(100)}) == 100


def test_no_secret_is_shown() -> None:
    """Protects secrets from tracebacks and logs."""
    node = fresh()
    shown = repr(node)
    assert "PRIVATE KEY" not in shown
    assert "entropy" not in shown


def test_a_password_needs_no_quoting_anywhere() -> None:
    for _ in range(20):
        password = identity.make_password()
        assert len(password) == identity.PASSWORD_LENGTH
        assert password.isascii()
        assert password.isalnum()


def test_ssh_keys_are_what_openssh_reads() -> None:
    key = identity.make_ssh_key("lab pxc")
    assert key.private.startswith(b"-----BEGIN OPENSSH PRIVATE KEY-----\n")
    assert key.public.startswith("ssh-ed25519 ")
    assert key.public.endswith(" lab pxc")
    public = load_ssh_public_key(key.public.encode())
    assert load_ssh_private_key(key.private, None).public_key() == public


def test_message() -> None:
    """Protects the order too: random numbers, then the clock, then all that depends on them."""
    node = fresh()
    text = identity.message(
        node,
        now=1700000000.25,
        engine=(100, 101),
        tls_directory="/etc/mysql/tls",
        authorized="ssh-ed25519 AAAA me",
        statements=["FLUSH LOCAL SSL", "SELECT 'two  spaces\tand \N{SNOWMAN}'"],
    ).decode("ascii")
    assert text.endswith("\n")
    lines = [line.split() for line in text.splitlines()]
    items = [(word, *(bytes.fromhex(value) for value in values)) for word, *values in lines]
    host_key = b"/etc/ssh/ssh_host_ed25519_key"
    public = f"{node.ssh_host.public}\n".encode()
    tls = node.tls
    assert items == [
        ("entropy", node.entropy),
        ("reseed", b"1700000000.250000"),
        ("file", host_key, b"600", b"0:0", node.ssh_host.private),
        ("file", host_key + b".pub", b"644", b"0:0", public),
        ("file", b"/root/.ssh/authorized_keys", b"600", b"0:0", b"ssh-ed25519 AAAA me\n"),
        ("file", b"/etc/mysql/tls/key.pem", b"600", b"100:101", tls.private),
        ("file", b"/etc/mysql/tls/cert.pem", b"644", b"100:101", tls.certificate),
        ("sql", b"FLUSH LOCAL SSL"),
        ("sql", "SELECT 'two  spaces\tand \N{SNOWMAN}'".encode()),
    ]


@pytest.mark.parametrize("keep", [False, True])
def test_a_message_to_a_node_of_a_capture_that_was_in_use(keep: bool) -> None:
    """Protects its server's seeds from its siblings, and our statements from locks of clients."""
    text = identity.message(
        fresh(), now=1700000000.25, engine=(1, 2), tls_directory="/tls", authorized="ssh-ed25519 A",
        statements=["FLUSH", "ALTER"], end_sessions=not keep,
    ).decode()  # fmt: skip
    items = [line.split() for line in text.splitlines()]
    ends = [] if keep else ["sessions"]
    words = ["entropy", "reseed", *ends, *["file"] * 5, "sql", "sql"]
    assert [word for word, *_ in items] == words
    assert bytes.fromhex(items[1][1]) == b"1700000000.250000"
    assert keep or items[2] == ["sessions"]


@pytest.mark.parametrize(
    ("draw", "words"),
    [("FLUSH LOCAL SSL", ["clock", "sql", "clock"]), ("", ["clock"]), (None, ["reseed"])],
)
def test_a_message_to_an_older_server(draw: str | None, words: list[str]) -> None:
    """Protects seeds of a server without RANDOM_BYTES(): it draws while the clock is late."""
    text = identity.message(
        fresh(), now=1700000000.25, engine=(1, 2), tls_directory="/tls", authorized="A",
        statements=["ALTER"], draw=draw,
    ).decode()  # fmt: skip
    items = [line.split() for line in text.splitlines()]
    assert [word for word, *_ in items] == ["entropy", *words, *["file"] * 5, "sql"]
    times = [bytes.fromhex(one[1]) for one in items if one[0] in ("clock", "reseed")]
    assert times[-1] == b"1700000000.250000"
    assert times[:-1] in ([], [b"1699913600.250000"])


def test_a_message_to_a_node_without_a_server() -> None:
    """Protects nodes such as an arbiter: nobody there could draw random bytes, or has sessions."""
    text = identity.message(
        fresh(), now=1.0, engine=(1, 2), tls_directory="/tls", authorized="A", statements=[],
        end_sessions=True,
    ).decode()  # fmt: skip
    assert [line.split()[0] for line in text.splitlines()] == ["entropy", "clock", *["file"] * 5]


def test_a_renewal_is_the_keys_alone() -> None:
    """Protects what a node that only starts again is to keep: its password."""
    node = fresh()
    text = identity.renewal(
        node, engine=(1, 2), tls_directory="/tls", authorized="ssh-ed25519 AAAA", statement="FLUSH"
    ).decode()
    items = [line.split() for line in text.splitlines()]
    assert [(word, bytes.fromhex(first)) for word, first, *_ in items] == [
        ("file", b"/etc/ssh/ssh_host_ed25519_key"),
        ("file", b"/etc/ssh/ssh_host_ed25519_key.pub"),
        ("file", b"/root/.ssh/authorized_keys"),
        ("file", b"/tls/key.pem"),
        ("file", b"/tls/cert.pem"),
        ("sql", b"FLUSH"),
    ]
    assert bytes.fromhex(items[3][-1]) == node.tls.private
