"""The command line of ssh for a node: its host key is known, nothing is asked."""

from __future__ import annotations

from dataclasses import dataclass, field
from pathlib import Path

from lab.names import LOOPBACK


@dataclass(frozen=True)
class SshLogin:
    """What ssh needs for a node: root's key, and the node's line of ``known_hosts``."""

    port: int
    private_key: str = field(repr=False)
    known_hosts: str


def ssh_command(private: Path, port: int, *more: str) -> list[str]:
    """The command; ``private``: the directory of key and known hosts, ``more``: options."""
    options = [
        "IdentitiesOnly=yes",
        f"UserKnownHostsFile={private / 'known_hosts'}",
        "GlobalKnownHostsFile=/dev/null",
        "StrictHostKeyChecking=yes",
        "LogLevel=ERROR",
        *more,
    ]
    argv = ["ssh", "-i", str(private / "id_ed25519"), "-p", str(port)]
    for option in options:
        argv += ["-o", option]
    return [*argv, f"root@{LOOPBACK}"]
