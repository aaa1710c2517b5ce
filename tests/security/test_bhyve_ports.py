"""Hostile answers at the sockets that bhyve makes.

A guest that answers no handshake is sent no request. These guests answer it as the agent and the
program next to it do, and a request as they like; ``in_step=False``: the handshake as well.
"""

from __future__ import annotations

import json
import re
import socket
import socketserver
import threading
import time
import tracemalloc
from collections.abc import Callable, Iterator
from contextlib import ExitStack, contextmanager, suppress
from pathlib import Path

import pytest

from lab.errors import CommandFailed, Interrupted, NotReady
from lab.hypervisor.agent import GUEST_AGENT, PERSONALISE, AgentChannel
from lab.hypervisor.bhyve.place import Place
from lab.hypervisor.bhyve.ports import SocketPorts
from lab.names import GuestName

pytestmark = [pytest.mark.bhyve, pytest.mark.rare]  # few changes are about this platform

LIMIT = 0.6
"""Seconds that each exchange may take here."""
GUEST = GuestName("lab-evil-n1")

Answer = Callable[[socket.socket], None]


@contextmanager
def hostile(root: Path, answer: Answer, *, in_step: bool = True) -> Iterator[AgentChannel]:
    """The way into a guest that answers each request with ``answer``.

    ``in_step``: it answers what comes before each request as the guest's own programs do.
    """
    place = Place(root, "home")
    place.directory(GUEST).mkdir()

    class Port(socketserver.BaseRequestHandler):
        def handle(self) -> None:
            with suppress(OSError):
                _meet(self.request, answer, in_step=in_step)

    with ExitStack() as stack:
        for name in (GUEST_AGENT, PERSONALISE):
            path = str(place.socket(GUEST, name))
            server = stack.enter_context(socketserver.ThreadingUnixStreamServer(path, Port))
            serve = threading.Thread(target=server.serve_forever, args=[0.01])
            serve.start()
            stack.callback(serve.join, 10)
            stack.callback(server.shutdown)
        yield AgentChannel(SocketPorts(place, GUEST), GUEST)


def _meet(peer: socket.socket, answer: Answer, *, in_step: bool) -> None:
    """Answer what comes, until the other end is closed."""
    for line in peer.makefile("rb"):
        sign = re.search(rb'"guest-sync-delimited", "arguments": \{"id": (\d+)', line)
        if in_step and sign:
            peer.sendall(b'\xff{"return": %s}\n' % sign[1])
        elif in_step and re.fullmatch(rb"[0-9a-f]{16}\n", line):
            peer.sendall(b"error " + line.strip().hex().encode() + b"\n")
        elif not in_step or line not in (b"begin\n", b"end\n"):
            while True:
                answer(peer)


def endless(peer: socket.socket) -> None:
    peer.sendall(b"x" * 65536)


def lines(peer: socket.socket) -> None:
    peer.sendall(b"x\n" * 30000)


def drip(peer: socket.socket) -> None:
    time.sleep(0.02)
    peer.sendall(b"x")


def silent(peer: socket.socket) -> None:
    while peer.recv(4096):
        continue
    raise ConnectionResetError


def many(peer: socket.socket) -> None:
    """A text of 6 MB, which would be values of 150 MB."""
    peer.sendall(b'{"return": {"pid": [' + b"{}," * 2_000_000 + b"{}]}}\n")


ASKED: dict[str, Callable[[AgentChannel], object]] = {
    "personalise": lambda way: way.personalise(b"clock 00\n", timeout=LIMIT),
    "run": lambda way: way.run(["/bin/true"], timeout=LIMIT),
    "clock": lambda way: way.clock(timeout=LIMIT),
}


@pytest.mark.parametrize("in_step", [True, False])
@pytest.mark.parametrize("answer", [silent, endless, lines, drip, many])
@pytest.mark.parametrize("what", ASKED)
def test_every_answer_has_an_end(short: Path, answer: Answer, what: str, in_step: bool) -> None:
    """Protects the host's memory, and the locks and threads of those who wait for a guest."""
    with hostile(short, answer, in_step=in_step) as way:
        tracemalloc.start()
        began = time.monotonic()
        try:
            with pytest.raises((NotReady, CommandFailed)):
                ASKED[what](way)
            assert time.monotonic() - began < LIMIT + 8.0  # memory is traced, which takes time
            # The output of a program may have 32 MiB, which are copied twice.
            assert tracemalloc.get_traced_memory()[1] < 120_000_000
        finally:
            tracemalloc.stop()


WRONG = (
    '[]', '{}', '7', '"x"', '"error"', 'null', '{"return": []}', '{"return": {"pid": "x"}}',
    '{"return": null}', '{"return": {"pid": true}}', '{"error": 7}', '{"error": null}', 'error zz',
    'error', '{"return": ' + "[" * 9000, '{"return": ' + "9" * 9000 + "}", "\xff", "",
    '{"return": {"pid": 1, "exited": 1}}', '{"return": {"pid": 1, "exited": true, "out-data": 3}}',
)  # fmt: skip


@pytest.mark.parametrize("text", WRONG)
def test_wrong_types_are_no_answers(short: Path, text: str) -> None:
    """Protects rounds over all labs from errors that nobody expects."""

    def answer(peer: socket.socket) -> None:
        peer.sendall(text.encode("latin-1") + b"\n")
        silent(peer)

    with hostile(short, answer) as way:
        for act in ASKED.values():
            with pytest.raises((NotReady, CommandFailed)):
                act(way)
        assert way.ping(LIMIT) in (True, False)


def test_an_error_of_any_length_is_cut(short: Path) -> None:
    """Protects the record and the terminal from what a guest's agent gives as its reason."""

    def answer(peer: socket.socket) -> None:
        peer.sendall(json.dumps({"error": {"desc": "y" * 1_000_000}}).encode() + b"\n")
        silent(peer)

    with hostile(short, answer) as way, pytest.raises(NotReady) as caught:
        way.clock(timeout=5.0)
    assert len(caught.value.details[0]) <= 2048


def test_who_waits_for_a_guest_can_be_stopped(short: Path) -> None:
    """Protects who cancels: a job ends though its guest keeps sending."""
    began = time.monotonic()

    def halt() -> None:
        if time.monotonic() - began > 0.3:
            raise Interrupted("the job was cancelled")

    with hostile(short, drip) as way, pytest.raises(Interrupted):
        way.personalise(b"clock 00\n", timeout=30, halt=halt)
    assert time.monotonic() - began < 10
