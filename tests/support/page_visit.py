"""The web page as a browser without a window sees it."""

from __future__ import annotations

import re
from collections.abc import Iterator
from contextlib import contextmanager

from httpx import Client, Response

from lab.api.http.sessions import COOKIE
from tests.support.serve_world import Site

PLACE = re.compile(r"/~[A-Za-z0-9_-]{22}")
OURS = {"Sec-Fetch-Site": "same-origin"}
"""What browsers send with forms of the page itself."""


@contextmanager
def visit(here: Site, token: str = "") -> Iterator[Client]:
    """A browser without a window, signed in; its redirects are given without the place."""
    with visit_at(str(here.client.base_url), token or here.admin) as client:
        yield client


@contextmanager
def visit_at(url: str, token: str) -> Iterator[Client]:
    """As ``visit``, of a service at a URL."""
    with Client(base_url=url, headers=OURS, timeout=30.0) as client:
        answer = client.post("/sign-in", data={"token": token})
        assert answer.status_code == 303, answer.text
        place = answer.headers["location"].removesuffix("/")
        assert PLACE.fullmatch(place)
        assert client.cookies[COOKIE]

        def inside(response: Response) -> None:
            if (to := response.headers.get("location", "")).startswith(place):
                response.headers["location"] = to.removeprefix(place)

        client.event_hooks = {"response": [inside]}
        client.base_url = client.base_url.join(place)
        yield client


def place_of(client: Client) -> str:
    """Where a browser is."""
    return client.base_url.path.rstrip("/")
