"""The command lines of ssh and scp for a node: its host key is known, nothing is asked."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import field
from pathlib import Path
from typing import Annotated

from lab.marks import Public, public
from lab.values import dataclass

_SSH_PORT = 22


@dataclass(frozen=True)
class SshLogin:
    """The SSH login of a node: root's private key, and the line for `known_hosts`."""

    host: Annotated[str, public("127.0.0.1")]
    """The address, as seen from the service's host."""
    port: Public[int]
    private_key: Public[str] = field(repr=False)
    known_hosts: Annotated[str, public("[127.0.0.1]:23307 ssh-ed25519 AAAA...")]


def known_as(host: str, port: int) -> str:
    """How ssh names a server in its file of known hosts (sshd(8), SSH_KNOWN_HOSTS FILE FORMAT)."""
    return host if port == _SSH_PORT else f"[{host}]:{port}"


def ssh_command(private: Path, host: str, port: int, *more: str) -> list[str]:
    """The command; ``private``: the directory of key and known hosts, ``more``: options."""
    options = [
        f"IdentityFile={_quoted(private / 'id_ed25519')}",
        "IdentitiesOnly=yes",
        f"UserKnownHostsFile={_quoted(private / 'known_hosts')}",
        "GlobalKnownHostsFile=/dev/null",
        "StrictHostKeyChecking=yes",
        "LogLevel=ERROR",
        # The ones that cost an emulated processor least: a quarter more goes through.
        "Ciphers=^aes128-ctr",
        "MACs=^umac-64-etm@openssh.com",
        f"Port={port}",
        *more,
    ]
    # No files of options: an agent or ports that they forward are not for who is root in a node.
    argv = ["ssh", "-F", "none"]
    for option in options:
        argv += ["-o", option]
    return [*argv, f"root@{host}"]


def with_options(command: Sequence[str], *more: str) -> list[str]:
    """Add further options to a command of ``ssh_command``."""
    *argv, login = command
    for option in more:
        argv += ["-o", option]
    return [*argv, login]


def scp_command(command: Sequence[str], *words: str) -> list[str]:
    """Scp by its SFTP protocol with the options of ``command``, of ``ssh_command``."""
    _, *options, _ = command
    return ["scp", "-s", "-q", "-r", "-p", *options, "--", *words]


def _quoted(path: Path) -> str:
    """A path as the value of an option: not split at blanks, and no token of ssh."""
    text = str(path).replace("%", "%%").replace("\\", "\\\\").replace('"', '\\"')
    return f'"{text}"'
