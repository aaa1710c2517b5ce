"""The service on the fakes, in this process: the same code, from the request down to the guests."""

from __future__ import annotations

import json
import threading
import time
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

import uvicorn
from httpx import Client, Response

from lab.api.app import create_app
from lab.api.core.contexts import Opener
from lab.api.server import config, listen
from lab.api.service import Service
from lab.api.telemetry.spans import Trace
from lab.api.wire.connections import Connections, Listening
from lab.config.servefile import Serve
from lab.config.settings import Settings
from lab.lifecycle.core.context import open_context
from lab.lifecycle.service import token as tokens
from lab.names import LOOPBACK
from lab.requests.tokens import CreateToken
from lab.state.service import Scope
from lab.units import MIB
from lab.wait import Deadline, until
from tests.support.lifecycle_world import World

MEMORY = 384 * MIB
BODY = {"blueprint": "galera", "nodes": 2, "memory": MEMORY}


def settings_of(root: Path, *, publish: str = LOOPBACK, **changes: Any) -> Settings:
    """Settings of a service in ``root``; ``changes``: of its table."""
    usual: dict[str, Any] = {"port": 0, "sweep": 0.25, "failed_auth": 10_000, "queue_timeout": 30.0}
    name = "" if publish == LOOPBACK else "localhost"
    world = World(root, publish=publish, publish_name=name)
    return replace(world.settings, serve=Serve(**{**usual, **changes}))


def timeless(lab: dict[str, Any]) -> dict[str, Any]:
    """A lab of an answer without when it was observed, which the next answer has newer."""
    nodes = [{**node, "observed_at": None} for node in lab["nodes"]]
    return {**lab, "observed_at": None, "nodes": nodes}


@dataclass
class Site:
    """A service that runs, and its administrator."""

    service: Service
    client: Client
    admin: str
    listening: Listening

    @property
    def connections(self) -> Connections:
        """Those on which nothing is being answered."""
        return self.listening.connections

    def token(
        self,
        name: str = "ci",
        *,
        scope: Scope = "use",
        project: str = "shop",
        lasts: float | None = None,
        **quota: Any,
    ) -> str:
        """A new token."""
        limits = {f"max_{what}": most for what, most in quota.items()}
        asked = CreateToken(name=name, project=project, scope=scope, ttl=lasts, **limits)
        return tokens.create(self.service.core.store, asked).text

    def ask(
        self, method: str, path: str, body: Any = None, *, token: str = "", **headers: str
    ) -> Response:
        """A request, the administrator's unless ``token`` says whose."""
        sent = {"Authorization": f"Bearer {token or self.admin}"}
        sent |= {name.replace("_", "-"): value for name, value in headers.items()}
        return self.client.request(method, path, json=body, headers=sent)

    def make(self, name: str, *, token: str = "", **asked: Any) -> dict[str, Any]:
        """A lab that is ready."""
        body = {**BODY, "name": name, **asked}
        answer = self.ask("POST", "/v1/labs?wait=60", body, token=token)
        assert answer.status_code == 201, answer.text
        found: dict[str, Any] = answer.json()
        return found

    def change(self, **values: Any) -> None:
        """Have the running service use other settings, of the host or of its own table."""
        settings = self.service.core.settings
        for name, value in values.items():
            table = settings if name in Settings.__dataclass_fields__ else settings.serve
            object.__setattr__(table, name, value)  # frozen for the service, which only reads them

    def later(self, seconds: float) -> None:
        """Have the service's sweeper see a clock that is ahead by that."""
        sweeper, clock = self.service.sweeper, self.service.sweeper.clock
        sweeper.clock = lambda: clock() + seconds

    def settled(self, seconds: float = 20.0) -> None:
        """Wait until no job is open."""
        jobs = self.service.core.store.jobs
        assert until(lambda: not jobs.open(), Deadline.after(seconds))

    def until_gone(self, name: str, seconds: float = 20.0) -> None:
        """Wait until there is no such lab."""
        end = time.monotonic() + seconds
        while self.ask("GET", f"/v1/labs/{name}").status_code != 404:
            assert time.monotonic() < end, f"{name} is still there"
            time.sleep(0.05)

    def stream(self, path: str, **headers: str) -> list[dict[str, Any]]:
        """All of a stream that ends: its events' data."""
        text = self.ask("GET", path, Accept="text/event-stream", **headers).text
        lines = text.splitlines()
        return [json.loads(line[6:]) for line in lines if line.startswith("data: ")]


@contextmanager
def site(
    root: Path, opener: Opener = open_context, *, trace: Trace | None = None, **changes: Any
) -> Iterator[Site]:
    """A service for the block; one at a time in a process, as DBOS is."""
    service = Service(settings_of(root, **changes), opener, trace=trace)
    try:
        # Tests look for unused labs themselves: the service's own look between theirs would find
        # use that was before, and record it as of now.
        service.idle.periodic._every = 3600.0
        service.open()
        asked = CreateToken(name="root", scope="admin", project="admin")
        admin = tokens.create(service.core.store, asked).text
        with (
            _listening(service) as (url, listening),
            Client(base_url=url, timeout=90.0) as client,
        ):
            yield Site(service, client, admin, listening)
    finally:
        service.close()


@contextmanager
def _listening(service: Service) -> Iterator[tuple[str, Listening]]:
    """uvicorn in a thread, as the process has it; its URL and its socket."""
    serve = service.core.settings.serve
    socket = listen(serve)
    app = create_app(service.core, service.jobs)
    server = uvicorn.Server(config(app, serve, socket.connections))
    thread = threading.Thread(target=server.run, kwargs={"sockets": [socket]})
    thread.start()
    try:
        scheme = "https" if serve.tls_cert else "http"
        yield f"{scheme}://127.0.0.1:{socket.getsockname()[1]}", socket
    finally:
        service.stop()
        server.should_exit = True
        thread.join(20.0)
        socket.close()
