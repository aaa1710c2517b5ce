"""A real SSH server, in place of a guest's: it echoes, runs a few commands, and has a terminal."""

from __future__ import annotations

import asyncio
import threading
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import replace

import asyncssh

from lab.names import Owner
from lab.state.records import NodeRecord
from tests.support.serve_world import Site


async def _session(process: asyncssh.SSHServerProcess[str]) -> None:
    command = process.command or "shell"
    if command == "shell":
        process.stdout.write(f"terminal {process.term_type}\r\n")
        line = (await process.stdin.readline()).strip()
        process.stdout.write(f"you said {line}\r\n")
    elif command == "cat":
        async for chunk in process.stdin:
            process.stdout.write(chunk)
    else:
        process.stdout.write(f"ran {command}\n")
    process.exit(7 if command == "fail" else 0)


@contextmanager
def ssh_server(here: Site, lab: str) -> Iterator[None]:
    """A server in place of that of n1 of a lab, which lets in who has the lab's key.

    It has a port of its own, as tests run side by side and the fakes' ports are all the same.
    """
    private = here.service.core.settings.home.private(Owner("lab", lab))
    [node, *_] = here.service.core.store.nodes.of(lab)
    known = private / "known_hosts"
    before = known.read_text()
    with _serving(asyncssh.read_private_key(private / "id_ed25519")) as (port, key):
        known.write_text(f"[127.0.0.1]:{port} {key}\n")
        _move(here, node, port)
        try:
            yield
        finally:
            _move(here, node, node.ssh_port)
            known.write_text(before)


def _move(here: Site, node: NodeRecord, port: int) -> None:
    with here.service.core.store.transaction():
        here.service.core.store.nodes.remove(node.lab, node.name)
        here.service.core.store.nodes.add([replace(node, ssh_port=port)])


@contextmanager
def _serving(login: asyncssh.SSHKey) -> Iterator[tuple[int, str]]:
    """A server that lets ``login`` in: its port, and its public key."""
    host = asyncssh.generate_private_key("ssh-ed25519")
    allowed = asyncssh.import_authorized_keys(login.export_public_key().decode())
    loop, started = asyncio.new_event_loop(), threading.Event()
    ports: list[int] = []

    async def serve() -> None:
        server = await asyncssh.listen(
            "127.0.0.1", 0, server_host_keys=[host], process_factory=_session,
            authorized_client_keys=allowed,
        )  # fmt: skip
        ports.append(server.get_port())
        started.set()
        async with server:
            await asyncio.get_running_loop().create_future()

    task = loop.create_task(serve())
    task.add_done_callback(lambda _: loop.stop())

    def run() -> None:
        asyncio.set_event_loop(loop)
        loop.run_forever()
        loop.run_until_complete(loop.shutdown_asyncgens())
        loop.close()

    thread = threading.Thread(target=run, daemon=True)
    thread.start()
    try:
        assert started.wait(10)
        yield ports[0], host.export_public_key().decode().strip()
    finally:
        loop.call_soon_threadsafe(task.cancel)
        thread.join(10)
