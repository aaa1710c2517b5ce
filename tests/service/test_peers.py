"""What a host says of a request that it passes on, and what of it is believed."""

from __future__ import annotations

import pytest
from starlette.types import Scope

from lab.api.http import peers
from lab.api.http.peers import SESSION_TOKEN, is_peer, received, said, via


def _scope(*headers: tuple[bytes, bytes], client: str = "10.0.0.1") -> Scope:
    return {"type": "http", "headers": list(headers), "client": (client, 4711)}


def test_what_a_host_says_is_what_the_other_hears() -> None:
    """Protects the audit trail of requests that were passed on."""
    heard = received(_scope(*said(_scope(client="192.0.2.7"), "ab12")), "h1")
    assert is_peer(heard)
    assert (heard["client"][0], via(heard)) == ("192.0.2.7", "h1")
    assert heard["state"][SESSION_TOKEN] == "ab12"
    plain = received(_scope(*said(_scope(client="2001:db8::1"))), "h1")
    assert plain["client"][0] == "2001:db8::1"
    assert SESSION_TOKEN not in plain["state"]


@pytest.mark.parametrize(
    "text", ["", "h1", "192.0.2.7\n", "192.0.2.7, 10.0.0.2", "fe80::1%" + "x" * 60, "\xff"]
)
def test_what_is_no_address_is_not_recorded_as_one(text: str) -> None:
    """Protects the audit trail from a host of another version, or one that is broken."""
    sent = dict.fromkeys(peers.HEADERS, text.encode("latin-1"))
    heard = received(_scope(*sent.items()), "h2")
    assert heard["client"][0] == "10.0.0.1"
    assert via(heard) == "h2", "as its certificate says"
    assert SESSION_TOKEN not in heard["state"]


def test_only_a_peer_s_request_has_passed_through_a_host() -> None:
    """Protects from clients that send these headers themselves."""
    sent = _scope(*said(_scope(client="192.0.2.7"), "ab12"))
    assert not is_peer(sent)
    assert via(sent) == ""
