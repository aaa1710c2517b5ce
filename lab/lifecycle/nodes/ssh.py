"""The command line of ssh for a node: its host key is known, nothing is asked."""

from __future__ import annotations

from dataclasses import dataclass, field
from pathlib import Path

_SSH_PORT = 22


@dataclass(frozen=True)
class SshLogin:
    """What ssh needs for a node: where it is, root's key, and its line of ``known_hosts``."""

    host: str
    port: int
    private_key: str = field(repr=False)
    known_hosts: str


def known_as(host: str, port: int) -> str:
    """How ssh names a server in its file of known hosts (sshd(8), SSH_KNOWN_HOSTS FILE FORMAT)."""
    return host if port == _SSH_PORT else f"[{host}]:{port}"


def ssh_command(private: Path, host: str, port: int, *more: str) -> list[str]:
    """The command; ``private``: the directory of key and known hosts, ``more``: options."""
    options = [
        "IdentitiesOnly=yes",
        f"UserKnownHostsFile={private / 'known_hosts'}",
        "GlobalKnownHostsFile=/dev/null",
        "StrictHostKeyChecking=yes",
        "LogLevel=ERROR",
        *more,
    ]
    # No files of options: an agent or ports that they forward are not for who is root in a node.
    argv = ["ssh", "-F", "none", "-i", str(private / "id_ed25519"), "-p", str(port)]
    for option in options:
        argv += ["-o", option]
    return [*argv, f"root@{host}"]
