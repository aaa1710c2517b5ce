"""The programs that connect to nodes, directly and through a service."""

from __future__ import annotations

import os
import shlex
import sys
import tempfile
from collections.abc import Iterator, Mapping, Sequence
from contextlib import AbstractContextManager, contextmanager
from pathlib import Path
from typing import TYPE_CHECKING, Protocol

from lab.values import dataclass

if TYPE_CHECKING:
    from lab.lifecycle.nodes.ssh import SshLogin


@dataclass(frozen=True)
class Program:
    """A command line to run for the user. ``env``: its environment; None: that of this process."""

    argv: Sequence[str]
    env: Mapping[str, str] | None = None


class SqlClient(AbstractContextManager[object], Protocol):
    """A database client's command line, and the file with the password while entered."""

    @property
    def argv(self) -> Sequence[str]:
        """The command; the password is not in it."""

    @property
    def env(self) -> Mapping[str, str]:
        """Its environment."""


@contextmanager
def ssh_through(url: str, login: SshLogin, lab: str, node: str) -> Iterator[Program]:
    """SSH through the service at ``url``; its key is in a file for as long as the block lasts."""
    from lab.lifecycle.nodes.ssh import ssh_command

    with tempfile.TemporaryDirectory(prefix="lab-ssh-") as created:
        directory = Path(created)  # mode 0700
        for name, text in (("id_ed25519", login.private_key), ("known_hosts", login.known_hosts)):
            path = directory / name
            path.touch(mode=0o600)
            path.write_text(text, encoding="utf-8")
        tunnel = _tunnel(url, "ssh", lab, node)
        # ssh replaces `%` and a letter, such as %h by the host.
        way = shlex.join(tunnel.argv).replace("%", "%%")
        argv = ssh_command(directory, login.host, login.port, f"ProxyCommand={way}")
        yield Program(argv, tunnel.env)


def console_through(url: str, lab: str, node: str) -> Program:
    """A node's console, through the service at ``url``."""
    return _tunnel(url, "console", lab, node)


def _tunnel(url: str, kind: str, lab: str, node: str) -> Program:
    # Not from the working directory, which may have a directory `lab` of its own.
    env = {**os.environ, "LAB_URL": url, "PYTHONSAFEPATH": "1"}
    return Program([sys.executable, "-m", "lab.cli.backend.tunnel", kind, lab, node], env)
