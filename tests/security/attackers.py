"""Who attacks a real service from its host: a client that has a token, and another user.

And who watches: whether ``/healthz`` is answered meanwhile.
"""

from __future__ import annotations

import http.client
import json
import os
import socket
import ssl
import subprocess
import sys
import threading
import time
from collections import Counter
from collections.abc import Callable, Iterator, Sequence
from contextlib import ExitStack, contextmanager, suppress
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any
from urllib.parse import urlsplit

import httpx

from lab.names import LOOPBACK
from tests.security.stranger import Report
from tests.security.test_hostile_client import closed, head

TESTS = Path(__file__).parents[1]
LATE = 5.0
"""Seconds within which ``/healthz`` is answered."""
SILENT = 300
STREAMS = 70
WAITS = 70
"""More of each than the service keeps: 256 connections, 64 streams and 64 waits of a token."""


@dataclass
class Watcher:
    """Asks a service for ``/healthz``, over a new connection each time."""

    url: str
    trust: ssl.SSLContext
    answers: int = 0
    slowest: float = 0.0
    wrong: list[str] = field(default_factory=list)

    @contextmanager
    def watching(self) -> Iterator[None]:
        """Ask during the block."""
        over = threading.Event()
        with _threads(over, [lambda: self._watch(over)]):
            yield

    def _watch(self, over: threading.Event) -> None:
        while not over.wait(0.2):
            began = time.monotonic()
            try:
                text = self._ask()
            except (OSError, http.client.HTTPException) as error:
                text = repr(error)
            took = time.monotonic() - began
            self.answers, self.slowest = self.answers + 1, max(self.slowest, took)
            if text != "ok\n":
                self.wrong.append(f"{text} after {took:.1f} s")

    def _ask(self) -> str:
        port = urlsplit(self.url).port
        connection = http.client.HTTPSConnection(LOOPBACK, port, timeout=LATE, context=self.trust)
        try:
            connection.request("GET", "/healthz")
            return connection.getresponse().read().decode()
        finally:
            connection.close()


@dataclass
class Client:
    """Has a token of a project, and does all at once that a client can.

    ``lab``: one of its project, which does not run; ``theirs``: one of another project, whether it
    exists or not. ``seen``: how often it met with what, such as ``"create 429"``.
    """

    url: str
    token: str
    trust: ssl.SSLContext
    lab: str
    theirs: str
    body: dict[str, Any]
    seen: Counter[str] = field(default_factory=Counter)
    _enough: threading.Event = field(default_factory=threading.Event)
    _making: threading.Lock = field(default_factory=threading.Lock)

    @contextmanager
    def attacking(self) -> Iterator[None]:
        """Do it during the block."""
        over = threading.Event()
        acts = (self._silence, self._streams, self._guess, self._jobs)
        with _threads(over, [lambda act=act: act(over) for act in acts]):  # type: ignore[misc]
            yield

    def make_no_more(self) -> None:
        """Have it make no more labs; returns once it makes none. All else continues."""
        self._enough.set()
        with self._making:
            return

    def _connect(self, stack: ExitStack) -> socket.socket:
        address = (LOOPBACK, urlsplit(self.url).port or 0)
        return stack.enter_context(socket.create_connection(address, LATE))

    def _ask(self, stack: ExitStack, path: str, *lines: str) -> socket.socket:
        """A connection on which a request was sent, and nothing read; ``lines``: of its head."""
        plain = self._connect(stack)
        plain.setsockopt(socket.SOL_SOCKET, socket.SO_RCVBUF, 4096)
        found = stack.enter_context(self.trust.wrap_socket(plain, server_hostname=LOOPBACK))
        asked = head("GET", path, self.token).removesuffix(b"\r\n")
        found.sendall(asked + "".join(f"{line}\r\n" for line in (*lines, "")).encode())
        return found

    def _silence(self, over: threading.Event) -> None:
        """Connections on which nothing is said, not even of TLS."""
        with ExitStack() as stack:
            held: list[socket.socket] = []
            while not over.wait(0.5):
                gone = [one for one in held if closed(one)]
                self.seen["silent closed"] += len(gone)
                held = [one for one in held if one not in gone]
                for one in gone:
                    one.close()
                with suppress(OSError):
                    while len(held) < SILENT:
                        held.append(self._connect(stack))

    def _streams(self, over: threading.Event) -> None:
        """Streams of events, and long answers, that are not read but for their first bytes."""
        while not over.wait(0.2):
            with ExitStack() as stack, suppress(OSError):
                for _ in range(STREAMS):
                    one = self._ask(stack, "/v1/events", "Accept: text/event-stream")
                    self.seen[f"stream {_status(one)}"] += 1
                long = self._ask(stack, "/openapi.json")
                long.settimeout(0.5)
                with suppress(OSError):
                    long.sendall(head("GET", "/openapi.json", self.token) * 1000)
                over.wait(6.0)

    def _guess(self, over: threading.Event) -> None:
        wrong = {"Authorization": f"Bearer {self.token[:-4]}AAAA"}
        with httpx.Client(base_url=self.url, verify=self.trust, timeout=30) as client:
            while not over.wait(0.05):
                with suppress(httpx.TransportError):
                    status = client.get("/v1/labs", headers=wrong).status_code
                    self.seen[f"wrong token {status}"] += 1

    def _jobs(self, over: threading.Event) -> None:
        """Jobs without end, each waited for by many and then cancelled; and others' labs."""
        sent = {"Authorization": f"Bearer {self.token}"}
        with httpx.Client(base_url=self.url, verify=self.trust, timeout=60, headers=sent) as client:
            while not over.wait(0.2):
                with suppress(httpx.TransportError):
                    self._intrude(client)
                    with self._making:
                        if not self._enough.is_set():
                            self._make(client)

    def _intrude(self, client: httpx.Client) -> None:
        theirs, snapshots = f"/v1/labs/{self.theirs}", f"/v1/labs/{self.lab}/snapshots"
        for method, path in (("GET", ""), ("DELETE", ""), ("POST", "/kill"), ("GET", "/nodes")):
            status = client.request(method, theirs + path).status_code
            self.seen[f"theirs {status}"] += 1
        for _ in range(3):
            self.seen[f"snapshot {client.post(snapshots, json={}).status_code}"] += 1

    def _make(self, client: httpx.Client) -> None:
        jobs = []
        for _ in range(5):
            answer = client.post("/v1/labs", json=self.body)
            self.seen[f"create {answer.status_code}"] += 1
            jobs += [answer.json()["id"]] if answer.status_code == 202 else []
        for job in jobs:
            self._wait(job)
            client.post(f"/v1/jobs/{job}/cancel")
            ended = client.get(f"/v1/jobs/{job}?wait=30").json()
            self.seen[f"job {ended['state']}"] += 1
            if ended["state"] == "succeeded":
                client.delete(f"/v1/labs/{ended['lab']}?wait=30")

    def _wait(self, job: str) -> None:
        """Wait for a job on many connections; some of the requests are answered at once."""
        with ExitStack() as stack, suppress(OSError):
            waits = [self._ask(stack, f"/v1/jobs/{job}?wait=600") for _ in range(WAITS)]
            time.sleep(0.5)
            for one in waits:
                one.settimeout(0.01)
                try:
                    self.seen[f"wait {_status(one)}"] += 1
                except TimeoutError:
                    self.seen["wait held"] += 1


def _status(connection: ssl.SSLSocket | socket.socket) -> str:
    return connection.recv(12).decode("latin-1").partition(" ")[2]


@contextmanager
def _threads(over: threading.Event, acts: Sequence[Callable[[], None]]) -> Iterator[None]:
    """Run each of ``acts`` in a thread; they end soon once ``over`` is set, after the block."""
    threads = [threading.Thread(target=act, daemon=True) for act in acts]
    for thread in threads:
        thread.start()
    try:
        yield
    finally:
        over.set()
        for thread in threads:
            thread.join(60)
        assert not any(thread.is_alive() for thread in threads)


@contextmanager
def prowling(uid: int, gid: int, ports: range, roots: Sequence[Path]) -> Iterator[Report]:
    """``stranger.py`` during the block; afterwards what it found is there."""
    modules = [TESTS / "unit", TESTS / "e2e", os.environ.get("PYTHONPATH", "")]
    words = [str(uid), str(gid), f"{ports[0]}-{ports[-1]}", *map(str, roots)]
    report = Report()
    with subprocess.Popen(
        [sys.executable, str(Path(__file__).with_name("stranger.py")), *words],
        stdin=subprocess.PIPE,
        stdout=subprocess.PIPE,
        text=True,
        env={**os.environ, "PYTHONPATH": ":".join(map(str, modules))},
    ) as process:
        try:
            assert process.stdout is not None
            assert process.stdout.readline() == "ready\n"
            yield report
            said, _ = process.communicate(timeout=60)
            vars(report).update(json.loads(said))
        finally:
            process.kill()
