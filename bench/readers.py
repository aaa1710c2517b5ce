"""What those who read cost: programs that poll the service, pages that are open, ``lab ls``."""

from __future__ import annotations

import heapq
import json
import os
import re
import selectors
import socket
import statistics
import subprocess
import sys
import tempfile
import time
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import replace
from pathlib import Path
from urllib.parse import urlsplit

from bench.figures import Figure, Target
from bench.labs import Failed, Home, ended
from bench.measure import UP, Log, labs_removed
from bench.probe import cpu
from bench.service import served
from lab.client import Client
from lab.paths import Home as LabHome
from lab.units import MIB

CLIENTS = 20
REAL = 3
FAKES = 100
PAGES = 50
STREAM = 1 << 30
"""Bytes of a stream through `lab exec`."""
PACE = 500
"""Answers a second for all clients: as fast as they can, they would take a core of their own."""
SETTLED = 5.0
"""Seconds after which labs that came up, or were read, are idle."""
_PIECE = 1 << 20
_FAKE = {"LAB_HYPERVISOR": "fake", "LAB_STORAGE": "fake"}


def readers(home: Home, other: Home, runs: int, seconds: float, log: Log) -> list[Figure]:
    """All of it; ``other``: a home for labs of fakes. ``seconds``: how long clients poll."""
    return [
        *_real(home, runs, seconds, log),
        *_fakes(replace(other, env=_FAKE | _roomy(other.root)), seconds, log),
    ]


def _roomy(root: Path) -> dict[str, str]:
    """The environment of a service for which labs of fakes have all the memory they ask for."""
    config = root / "config"
    (config / "lab").mkdir(parents=True)
    (config / "lab" / "config.toml").write_text('[serve]\nmemory = "1T"\n')
    return {"XDG_CONFIG_HOME": str(config)}


def _real(home: Home, runs: int, seconds: float, log: Log) -> list[Figure]:
    listed: list[float] = []
    rates: list[float] = []
    slowest: list[float] = []
    alone: list[float] = []
    beside: list[float] = []
    paced: list[float] = []
    shares: list[float] = []
    pages: list[float] = []
    streams: tuple[list[float], list[float]] = ([], [])
    with log.attempt(f"{CLIENTS} clients, {REAL} labs"), labs_removed(home):
        home.run("template", "build", "single")
        for number in range(1, REAL + 1):
            home.run(*UP, "--name", home.name(number))
        time.sleep(SETTLED)
        listed += [home.run("ls").seconds for _ in range(max(2 * runs + 1, 3))]
        for _ in range(min(runs, 3)):
            for rates_of, output in zip(streams, (True, False), strict=True):
                rates_of.append(_stream(home, home.name(1), output=output))
        token = LabHome(home.root).admin_token
        with served(home) as (url, process), Client(url, token.read_text().strip()) as client:
            client.labs()
            time.sleep(SETTLED)  # nobody reads any more
            before, began = cpu([process.pid]), time.monotonic()
            time.sleep(seconds / 2)
            shares.append(100 * (cpu([process.pid]) - before) / (time.monotonic() - began) / REAL)
            # In turns: the machine is not the same for minutes.
            for _ in range(2 * runs):
                alone.append(_single(client, home))
                pause = CLIENTS / PACE
                with _polling(url, token, "/v1/labs", CLIENTS, pause=pause) as answered:
                    time.sleep(1.0)  # all of them poll
                    beside.append(_single(client, home))
                paced.append(answered.rate)
            with _polling(url, token, "/v1/labs", CLIENTS) as answered:
                time.sleep(seconds)
            rates.append(answered.rate)
            slowest.append(answered.p99)
            lab = home.name(1)
            one = _questions(home, lab, url, token, 1, seconds / 4)
            pages.append(_questions(home, lab, url, token, PAGES, seconds / 4) / max(one, 1.0))
    lasts = f"{seconds:g} s"
    ratios = [one / other for one, other in zip(beside, alone, strict=False)]
    return [
        Figure(
            f"`lab ls`, {REAL} labs of 3 nodes", "s", tuple(listed), Target(0.25),
            f"process start to exit; all nodes are asked; {SETTLED:g} s after the last came up",
        ),
        Figure(
            "`lab exec`: output of 1 GiB", "MB/s", tuple(streams[0]), Target(20, at_least=True),
            "process start to exit; by SSH, whose encryption is an emulated guest's work",
        ),
        Figure(
            "the same: input of 1 GiB", "MB/s", tuple(streams[1]), Target(20, at_least=True),
        ),
        Figure(
            f"answers to `GET /v1/labs`, {CLIENTS} clients, {REAL} labs of 3 nodes", "1/s",
            tuple(rates), Target(500, at_least=True), f"each asks again at once, for {lasts}",
        ),
        Figure("the same: 99 of 100 answers within", "s", tuple(slowest), Target(0.05)),
        Figure(
            f"warm `single` by `POST /v1/labs` beside {PACE} answers a second, to one without", "x",
            tuple(ratios), Target(1.3),
            f"made in turns; the clients got {statistics.fmean(paced or [0]):.0f} a second",
        ),
        Figure(
            "processor time of the service for an idle lab of 3 nodes", "%", tuple(shares),
            Target(1), f"of one core, over {seconds / 2:g} s in which nobody reads",
        ),
        Figure(
            f"statements that a server gets, {PAGES} open pages to one", "x", tuple(pages),
            Target(1.2), "each is fetched again every second",
        ),
    ]  # fmt: skip


def _stream(home: Home, lab: str, *, output: bool) -> float:
    """MB a second of a stream of ``STREAM`` bytes: output of a node, or else input."""
    program = ("head", "-c", str(STREAM), "/dev/zero") if output else ("wc", "-c")
    words = ("exec", *(() if output else ("--stdin",)), lab, "--node", "n1", "--", *program)
    began = time.perf_counter()
    with tempfile.TemporaryFile(dir=home.root) as holes:
        holes.truncate(0 if output else STREAM)
        with ended(home.start(*words, stdin=holes.fileno())) as process:
            pipe, size, last = process.stdout.fileno() if process.stdout else -1, 0, b""
            while piece := os.read(pipe, _PIECE):
                size, last = size + len(piece), piece
            process.wait()
    took = time.perf_counter() - began
    passed = size if output else int(last or 0)
    if passed != STREAM or process.returncode:
        raise Failed(f"lab {' '.join(words)}: {passed} bytes, exit status {process.returncode}")
    return STREAM / took / 1e6


def _fakes(home: Home, seconds: float, log: Log) -> list[Figure]:
    rates, slowest = [], []
    with log.attempt(f"{CLIENTS} clients, {FAKES} labs of fakes"), served(home) as (url, _):
        token = LabHome(home.root).admin_token
        with Client(url, token.read_text().strip()) as client:
            for number in range(1, FAKES + 1):
                client.create("galera", nodes=3, name=home.name(number), memory=384 * MIB)
        with _polling(url, token, "/v1/labs", CLIENTS) as answered:
            time.sleep(seconds)
        rates.append(answered.rate)
        slowest.append(answered.p99)
    name = f"answers to `GET /v1/labs`, {CLIENTS} clients, {FAKES} labs"
    note = "labs of fakes, without guests; an answer has all of them"
    return [
        Figure(name, "1/s", tuple(rates), Target(200, at_least=True), note),
        Figure("the same: 99 of 100 answers within", "s", tuple(slowest)),
    ]


def _single(client: Client, home: Home) -> float:
    began = time.perf_counter()
    lab = client.create("single", name=home.name(9))
    took = time.perf_counter() - began
    client.delete(lab.name)
    if lab.started != "warm":
        raise Failed(f"{lab.name} started {lab.started}")
    return took


class _Answered:
    """What clients got: answers a second, and the time within which 99 of 100 came."""

    rate = 0.0
    p99 = 0.0


@contextmanager
def _polling(
    url: str, token: Path, path: str, clients: int, pause: float = 0.0
) -> Iterator[_Answered]:
    """Clients in a process of their own that ask again and again during the block."""
    found = _Answered()
    words = [url, str(token), path, str(clients), str(pause)]
    with subprocess.Popen(
        [sys.executable, "-m", "bench.readers", *words],
        stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True,
    ) as process:  # fmt: skip
        yield found
        out, _ = process.communicate("\n", timeout=60)
    said = json.loads(out)
    found.rate, found.p99 = said["rate"], said["p99"]


class _Reader:
    """A client: its socket, what has come of an answer, and when it asked."""

    def __init__(self, host: str, port: int) -> None:
        self.socket = socket.create_connection((host, port), timeout=60)
        self.came = bytearray()
        self.asked = 0.0

    def answered(self) -> bool:
        """Take what has come; whether the answer is complete. Raises Failed if it is another."""
        part = self.socket.recv(MIB)
        self.came += part
        head, ends, body = self.came.partition(b"\r\n\r\n")
        if not part or (ends and not head.startswith(b"HTTP/1.1 200 ")):
            raise Failed(f"instead of an answer came {bytes(head[:100])!r}")
        length = re.search(rb"(?i)^content-length: *([0-9]+)", head, re.MULTILINE)
        if not ends or length is None or len(body) < int(length[1]):
            return False
        self.came.clear()
        return True


def _poll(url: str, token: Path, path: str, clients: int, pause: float) -> None:
    """Ask until a line comes; print how it went.

    Clients run elsewhere as a rule, so they cost as little as can be here: one thread, and no
    library that would take as much of a core as the service itself.
    """
    parts, times = urlsplit(url), []
    host, port = parts.hostname or "", parts.port or 0
    secret = token.read_text().strip()
    request = f"GET {path} HTTP/1.1\r\nHost: {host}\r\nAuthorization: Bearer {secret}\r\n\r\n"
    began = time.perf_counter()
    due = [
        (began + pause * number / clients, number, _Reader(host, port)) for number in range(clients)
    ]
    numbers = {reader: number for _, number, reader in due}
    with selectors.DefaultSelector() as ready:
        ready.register(sys.stdin, selectors.EVENT_READ)
        for _, _, reader in due:
            ready.register(reader.socket, selectors.EVENT_READ, reader)
        over = False
        while not over:
            while due and due[0][0] <= time.perf_counter():
                _, _, reader = heapq.heappop(due)
                reader.asked = time.perf_counter()
                reader.socket.sendall(request.encode())
            for key, _ in ready.select(max(0.0, due[0][0] - time.perf_counter()) if due else None):
                over = over or key.data is None
                if key.data is not None and key.data.answered():
                    reader, now = key.data, time.perf_counter()
                    times.append(now - reader.asked)
                    again = max(reader.asked + pause, now)
                    heapq.heappush(due, (again, numbers[reader], reader))
    took = time.perf_counter() - began
    times.sort()
    p99 = times[int(len(times) * 0.99)] if times else 0.0
    sys.stdout.write(json.dumps({"rate": len(times) / took, "p99": p99}))


def _questions(home: Home, lab: str, url: str, token: Path, pages: int, seconds: float) -> float:
    """Statements that the first server of a lab got while so many pages were open."""
    with _polling(url, token, f"/v1/labs/{lab}", pages, pause=1.0):
        before = _counted(home, lab)
        time.sleep(seconds)
        return _counted(home, lab) - before


def _counted(home: Home, lab: str) -> float:
    question = "SHOW GLOBAL STATUS LIKE 'Questions'"
    ((_, value),) = home.run("sql", lab, "-e", question, "-o", "json").value["rows"]
    return float(value)


if __name__ == "__main__":
    _poll(sys.argv[1], Path(sys.argv[2]), sys.argv[3], int(sys.argv[4]), float(sys.argv[5]))
