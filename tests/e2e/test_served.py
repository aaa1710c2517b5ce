"""What clones serve: no key or certificate that another lab has, whatever was used before.

Files may be new while a program serves what it has read earlier, so clients look here.
"""

from __future__ import annotations

import hashlib
import socket
import ssl
import struct
import subprocess
import threading
from collections.abc import Iterator, Sequence
from contextlib import contextmanager, suppress
from typing import Any

import pytest

from tests.e2e.e2e_site import Site

pytestmark = pytest.mark.e2e

_SECONDS = 30.0


def _host_key(host: str, port: int) -> str:
    """The host key that a client of a node's SSH server is shown."""
    argv = ["ssh-keyscan", "-t", "ed25519", "-T", "100", "-p", str(port), host]
    done = subprocess.run(argv, capture_output=True, text=True, timeout=120, check=False)
    keys = [line.split()[2] for line in done.stdout.splitlines() if not line.startswith("#")]
    assert keys, done
    return ",".join(sorted(keys))


def _certificate(host: str, port: int) -> str:
    """The digest of the certificate that a client of a server is shown, if it asks for TLS."""
    context = ssl.create_default_context()
    context.check_hostname, context.verify_mode = False, ssl.CERT_NONE
    with socket.create_connection((host, port), timeout=_SECONDS) as plain:
        greeting = plain.recv(4096)
        assert greeting[4:5] == b"\n", greeting
        request = struct.pack("<IIB23x", 0x200 | 0x800 | 0x8000, 1 << 24, 45)
        plain.sendall(len(request).to_bytes(3, "little") + b"\1" + request)
        with context.wrap_socket(plain) as secure:
            found = secure.getpeercert(binary_form=True)
    assert found
    return hashlib.sha256(found).hexdigest()


def _served(view: Any) -> dict[str, str]:
    """All that clients of a lab are shown as its own, by node and service."""
    found = {}
    for node in view["nodes"]:
        found[f"{node['name']} ssh"] = _host_key(node["host"], node["ssh_port"])
        if _has_server(node):
            found[f"{node['name']} tls"] = _certificate(node["host"], node["sql_port"])
    return found


def _has_server(node: Any) -> bool:
    """Whether what is served at a node's SQL port is its own: a proxy passes on a server's."""
    return bool(node["sql_port"]) and node["role"] != "proxy"


def _view(site: Site, name: str) -> Any:
    return site.lab("status", name, "-o", "json").json["lab"]


def _use(site: Site, view: Any) -> None:
    """Use all services of a lab, as its clients do."""
    name = view["name"]
    for node in view["nodes"]:
        site.lab("ssh", name, "--node", node["name"], "--", "true")
    _served(view)
    servers = {_certificate(node["host"], node["sql_port"]) for node in view["nodes"]
               if _has_server(node)}  # fmt: skip
    for endpoint, addresses in view["addresses"].items():
        if endpoint in ("rw", "ro"):  # through a proxy, where there is one: it has no key
            host, _, port = addresses[0].rpartition(":")
            assert _certificate(host, int(port)) in servers, endpoint


@contextmanager
def _connecting(servers: Sequence[tuple[str, int]]) -> Iterator[None]:
    """Clients that connect to the SSH ports all the time, as those do that wait for a node.

    Each waits for its answer, and then a while: a guest starts a process for each connection, which
    takes an emulated one a second, and would do little else.
    """
    ends = threading.Event()

    def connect(host: str, port: int) -> None:
        while not ends.wait(2.0):
            with suppress(OSError), socket.create_connection((host, port), timeout=30) as one:
                one.recv(256)

    threads = [threading.Thread(target=connect, args=server) for server in servers]
    for thread in threads:
        thread.start()
    try:
        yield
    finally:
        ends.set()
        for thread in threads:
            thread.join(_SECONDS)


def _all_apart(site: Site, *words: str) -> None:
    """A lab, branches, a rollback and a restart of it: each serves what no other has served."""
    name, new = site.name("serv"), site.name("twin")
    seen: dict[str, str] = {}

    def check(what: str, lab: str) -> None:
        view = _view(site, lab)
        for service, value in _served(view).items():
            assert value not in seen, f"{service} of {what} is that of {seen[value]}"
            seen[value] = f"{service} of {what}"
        _use(site, view)  # the host keys are those that ssh is to accept

    site.lab("up", *words, "--name", name, timeout=900)  # the first builds images
    check("the lab", name)
    session = site.start("ssh", name, "--", "echo $PPID; sleep 600")
    try:
        assert session.stdout is not None
        serves = int(session.stdout.readline())  # the process that has this connection
        site.lab("exec", name, "--", "/bin/ls", f"/proc/{serves}/fd")
        site.lab("snapshot", "take", name, "--label", "used")
    finally:
        session.terminate()  # its ssh ends with it
        session.communicate(timeout=_SECONDS)
    for _ in range(2):
        site.lab("branch", name, new, "--at", "used")
        there = site.lab("exec", new, "--", "/bin/ls", f"/proc/{serves}/fd", code=None)
        assert "No such file" in there.stderr + there.stdout, "it has the host key in memory"
        check("a branch", new)
        site.lab("down", new)
    for _ in range(2):
        site.lab("rollback", name, "--to", "used")
        check("a rollback", name)
    site.lab("stop", name)
    with _connecting([(one["host"], one["ssh_port"]) for one in _view(site, name)["nodes"]]):
        site.lab("start", name, timeout=600)
    check("a restart", name)
    site.lab("down", name)
    assert site.settled() == []


@pytest.mark.rare
def test_a_server_that_was_used(image: Site) -> None:
    """`lab branch`, `rollback --to` and `start` of a lab whose SSH and SQL were in use."""
    _all_apart(image, "single")


@pytest.mark.rare
@pytest.mark.parametrize(
    "words",
    [
        ("galera", "--nodes", "2", "--proxy", "haproxy"),
        ("group", "--nodes", "3", "--proxy", "router"),
    ],
    ids=["haproxy", "router"],
)
def test_servers_behind_a_proxy_that_were_used(image: Site, words: tuple[str, ...]) -> None:
    """The same of each node of a cluster, and through its proxy."""
    _all_apart(image, *words)
