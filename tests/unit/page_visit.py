"""The web page as a browser without a window sees it."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager

from httpx import Client
from serve_world import Site

from api.web.visit import COOKIE

OURS = {"Sec-Fetch-Site": "same-origin"}
"""What browsers send with forms of the page itself."""


@contextmanager
def visit(here: Site, token: str = "") -> Iterator[Client]:
    """A browser without a window, signed in."""
    with Client(base_url=here.client.base_url, headers=OURS, timeout=30.0) as client:
        answer = client.post("/sign-in", data={"token": token or here.admin})
        assert (answer.status_code, answer.headers["location"]) == (303, "/"), answer.text
        assert client.cookies[COOKIE]
        yield client
