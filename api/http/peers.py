"""What a host of a fleet says of a request that it passes on to another.

Of the client: its address, and for a page, whose session is known to one host only, its token. It
is believed only where it came over the fleet's TLS; a client's own headers of these names are
dropped.
"""

from __future__ import annotations

import ipaddress
import re

from starlette.types import Scope

PEER = "peer"
"""Set in a request's state where another host of the fleet has sent it."""
VIA = "via"
"""In a request's state: the name of that host."""
SESSION_TOKEN = "session_token"  # noqa: S105  # a name
"""In a request's state: the id of the token of the session that the client has at that host."""

_ADDRESS, _TOKEN = b"x-lab-address", b"x-lab-token"
HEADERS = frozenset((_ADDRESS, _TOKEN))
_ADDRESS_LIMIT = 64
_ID = re.compile(r"[0-9a-f]{1,64}")


def is_peer(scope: Scope) -> bool:
    """Whether another host of the fleet has sent a request."""
    return bool(scope.get("state", {}).get(PEER))


def via(scope: Scope) -> str:
    """The host that has passed a request on; empty: its client sent it to this one."""
    return str(scope.get("state", {}).get(VIA, ""))


def said(scope: Scope, token: str = "") -> list[tuple[bytes, bytes]]:
    """The headers with which a request is passed on; ``token``: the id of its session's."""
    address = (scope.get("client") or ("",))[0]
    found = [(_ADDRESS, address.encode())]
    return [*found, (_TOKEN, token.encode())] if token else found


def received(scope: Scope, host: str) -> Scope:
    """A request that another host, ``host``, has sent, as of the client that it names."""
    state = scope.setdefault("state", {})
    state[PEER], state[VIA] = True, host
    if _ID.fullmatch(text := _header(scope, _TOKEN)):
        state[SESSION_TOKEN] = text
    address = _header(scope, _ADDRESS)
    return {**scope, "client": (address, 0)} if _is_address(address) else scope


def _is_address(text: str) -> bool:
    try:
        ipaddress.ip_address(text)
    except ValueError:
        return False
    return len(text) <= _ADDRESS_LIMIT


def _header(scope: Scope, name: bytes) -> str:
    return next((value.decode("latin-1") for key, value in scope["headers"] if key == name), "")
