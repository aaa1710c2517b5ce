"""A real SSH server, in place of a guest's: it echoes, runs a few commands, and has a terminal."""

from __future__ import annotations

import asyncio
import threading
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

import asyncssh


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
def ssh_server(port: int, private: Path) -> Iterator[None]:
    """A server at ``port`` of the loopback that lets in who has the key of ``private``.

    Its own key is written there, as that of a guest is.
    """
    host = asyncssh.generate_private_key("ssh-ed25519")
    public = host.export_public_key().decode().strip()
    (private / "known_hosts").write_text(f"[127.0.0.1]:{port} {public}\n")
    login = asyncssh.read_private_key(private / "id_ed25519").export_public_key().decode()
    started = threading.Event()
    loop = asyncio.new_event_loop()

    async def serve() -> None:
        server = await asyncssh.listen(
            "127.0.0.1", port, server_host_keys=[host], process_factory=_session,
            authorized_client_keys=asyncssh.import_authorized_keys(login),
        )  # fmt: skip
        started.set()
        async with server:
            await asyncio.get_running_loop().create_future()

    def run() -> None:
        asyncio.set_event_loop(loop)
        task = loop.create_task(serve())
        task.add_done_callback(lambda _: loop.stop())
        ended.append(task)
        loop.run_forever()
        loop.run_until_complete(loop.shutdown_asyncgens())
        loop.close()

    ended: list[asyncio.Task[None]] = []
    thread = threading.Thread(target=run, daemon=True)
    thread.start()
    assert started.wait(10)
    try:
        yield
    finally:
        loop.call_soon_threadsafe(ended[0].cancel)
        thread.join(10)
