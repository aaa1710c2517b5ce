"""Protects all tokens from one whose labs do not answer: it gets some threads, never all."""

from __future__ import annotations

import http.client
import threading
from concurrent.futures import ThreadPoolExecutor
from contextlib import closing
from pathlib import Path

from lab.wait import Deadline, until
from tests.support.asking import Servers
from tests.support.serve_world import site

FLOOD = 190
LATE = 60.0


def test_a_flood_of_lists_leaves_threads_for_others(tmp_path: Path) -> None:
    """Not by time, which says nothing on a busy host: others are answered while none of it is."""
    servers, answered = Servers(LATE), threading.Event()
    with (
        site(tmp_path, servers.opener) as here,
        ThreadPoolExecutor(FLOOD) as pool,
    ):
        here.change(answer_timeout=LATE)
        alpha, beta = here.token("a", project="alpha"), here.token("b", project="beta")
        servers.silence(here.make("evil", token=alpha))
        servers.asked.clear()
        here.service.core.observing.observer.changed("evil")  # from now on its readers wait
        until(lambda: servers.asked, Deadline.after(LATE))
        port = here.listening.getsockname()[1]

        def ask() -> None:
            headers = {"Authorization": f"Bearer {alpha}"}
            with closing(http.client.HTTPConnection("127.0.0.1", port, timeout=120)) as connection:
                connection.request("GET", "/v1/labs?state=ready", headers=headers)
                connection.getresponse().read()
            answered.set()

        flood = [pool.submit(ask) for _ in range(FLOOD)]
        try:
            assert not answered.wait(1.0)  # most of them arrive meanwhile
            for _ in range(3):
                assert here.ask("GET", "/v1/host", token=beta).status_code == 200
            assert not answered.is_set()
        finally:
            servers.over.set()
        assert all(one.exception() is None for one in flood)
