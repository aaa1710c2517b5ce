"""The programs that `lab ssh` and `lab console` start against a service: `ssh|console LAB NODE`.

URL and token come from the environment and the config files, so neither is in a command line.
"""

from __future__ import annotations

import contextlib
import os
import sys
import termios
import tty
from collections.abc import Iterator, Sequence

from lab.errors import LabError

_ESCAPE = b"\x1d"
"""Ctrl-], as in `virsh console`."""


def main(argv: Sequence[str]) -> int:
    """Connect stdin and stdout with a node; the exit code."""
    from lab.cli.terminal.failure import describe
    from lab.client import credentials
    from lab.client.tunnel import open_tunnel, relay

    kind, lab, node = argv
    try:
        with open_tunnel(
            credentials.find_url(), credentials.find_token(), lab, node, kind
        ) as connection:
            if kind == "ssh":
                relay(connection, 0, 1)
            else:
                sys.stderr.write(f"Connected to {node} of {lab}; Ctrl-] leaves.\n")
                with _raw(0):
                    relay(connection, 0, 1, leave=_ESCAPE)
                sys.stderr.write("\n")
    except LabError as error:
        sys.stderr.write(describe(error))
        return error.exit_code
    except KeyboardInterrupt:
        return 130
    return 0


@contextlib.contextmanager
def _raw(file: int) -> Iterator[None]:
    """Put ``file`` into raw mode for the block, if it is a terminal."""
    if not os.isatty(file):
        yield
        return
    before = termios.tcgetattr(file)
    tty.setraw(file)
    try:
        yield
    finally:
        termios.tcsetattr(file, termios.TCSAFLUSH, before)


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
