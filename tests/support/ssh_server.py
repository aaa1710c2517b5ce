"""A real SSH server, in place of a guest's: it echoes, runs a few commands, and has a terminal."""

from __future__ import annotations

import asyncio
import subprocess
import threading
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from dataclasses import replace
from pathlib import Path
from typing import Any

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


async def _shell(process: asyncssh.SSHServerProcess[bytes]) -> None:
    """Run the command here, as sshd does: by a shell, in a session of its own."""
    program = await asyncio.create_subprocess_exec(
        "/bin/sh", "-c", process.command or "exit 0",
        stdin=subprocess.PIPE, stdout=subprocess.PIPE, stderr=subprocess.PIPE,
        start_new_session=True,
    )  # fmt: skip
    taking = asyncio.create_task(_take(process, program.stdin))
    await asyncio.gather(
        _give(program.stdout, process.stdout), _give(program.stderr, process.stderr)
    )
    process.exit(await program.wait())
    taking.cancel()


async def _take(process: asyncssh.SSHServerProcess[bytes], to: Any) -> None:
    with suppress(OSError, asyncssh.Error):
        while data := await process.stdin.read(1 << 16):
            to.write(data)
            await to.drain()
    to.close()


async def _give(source: Any, to: Any) -> None:
    while data := await source.read(1 << 16):
        with suppress(OSError, asyncssh.Error):  # the reader is gone
            to.write(data)
            await to.drain()


class _Sftp(asyncssh.SFTPServer):
    """One that ends with an exit status, as OpenSSH's: scp takes none for a failure."""

    def exit(self) -> None:
        self.channel.exit(0)


@contextmanager
def shell_server(private: Path) -> Iterator[int]:
    """A server whose commands and files are this host's, its key and ours in ``private``; its port.

    In place of a guest's, where a test is about what is run there.
    """
    login = asyncssh.generate_private_key("ssh-ed25519")
    key = private / "id_ed25519"
    key.touch(mode=0o600)
    key.write_bytes(login.export_private_key())
    with _serving(login, process_factory=_shell, encoding=None, sftp_factory=_Sftp) as (port, host):
        (private / "known_hosts").write_text(f"[127.0.0.1]:{port} {host}\n")
        yield port


def _move(here: Site, node: NodeRecord, port: int) -> None:
    with here.service.core.store.transaction():
        here.service.core.store.nodes.remove(node.lab, node.name)
        here.service.core.store.nodes.add([replace(node, ssh_port=port)])


class _Clients(asyncssh.SSHServer):
    """The server of one connection; ``connections``: those of all that are open."""

    def __init__(self, connections: set[asyncssh.SSHServerConnection]) -> None:
        self._all = connections
        self._own: asyncssh.SSHServerConnection | None = None

    def connection_made(self, conn: asyncssh.SSHServerConnection) -> None:
        self._own = conn
        self._all.add(conn)

    def connection_lost(self, _: Exception | None) -> None:
        if self._own is not None:
            self._all.discard(self._own)


@contextmanager
def _serving(login: asyncssh.SSHKey, **options: Any) -> Iterator[tuple[int, str]]:
    """A server that lets ``login`` in: its port, and its public key. ``options``: of asyncssh."""
    options = {"process_factory": _session, **options}
    host = asyncssh.generate_private_key("ssh-ed25519")
    allowed = asyncssh.import_authorized_keys(login.export_public_key().decode())
    loop, started = asyncio.new_event_loop(), threading.Event()
    ports: list[int] = []
    clients: set[asyncssh.SSHServerConnection] = set()

    async def serve() -> None:
        server = await asyncssh.listen(
            "127.0.0.1", 0, server_factory=lambda: _Clients(clients), server_host_keys=[host],
            authorized_client_keys=allowed, **options,
        )  # fmt: skip
        ports.append(server.get_port())
        started.set()
        try:
            async with server:
                await asyncio.get_running_loop().create_future()
        finally:
            # The loop ends with us, and a client may be just about to leave.
            for client in [*clients]:
                client.abort()
                await client.wait_closed()

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
