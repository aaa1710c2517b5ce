"""Runs a program in a node over SSH: its streams, its signals, its exit code.

The program's streams are those of ssh, which has flow control, so they have no limit. Signals go
through the connection that is there: a second session of it, in which the guest's shell sends them
to the program's process group.
"""

from __future__ import annotations

import codecs
import os
import secrets
import shlex
import signal
import subprocess
import sys
import tempfile
import threading
from collections.abc import Callable, Mapping, Sequence
from contextlib import ExitStack
from pathlib import Path
from typing import IO

from lab.cli.terminal.signals import Interrupts
from lab.errors import InvalidSpec, LabError, NotReady
from lab.lifecycle.nodes.ssh import with_options
from lab.run import environment, require
from lab.texts import harmless

_LONGEST = 100_000
"""Bytes of a command: Linux takes 128 KiB for one word, which it is for the guest's login shell."""
_GRACE = 10.0
"""Seconds that a program has to end after its time limit, and a connection after a second signal.
"""
_CONNECT = 60
"""Seconds that ssh may take to connect: a guest on a busy host takes some to answer."""
_PIECE = 1 << 16

_WRAPPER = """\
at=/run/lab-exec.$1 node=$2
shift 2
if ! command -v -- "$1" >/dev/null 2>&1; then
    printf 'lab: error: %s has no program %s\\n' "$node" "$1" >&2
    exit 127
fi
exec 3>&2 2>/dev/null
set -m
(exec "$@") <&0 2>&3 3>&- &
set +m
echo "$!" >"$at"
wait "$!"
status=$?
rm -f "$at"
exit "$status"
"""
"""A script of bash, which starts the program in a process group of its own (``set -m``).

So no signal for the program ends the script, which says by which one the program ended. With ``set
+m`` its ``wait`` is for the end, not also for a stop. ``wait -f`` would be as well, but it can loop
without end where the program ends just then: bash 5.2 looks at a job that it has freed
(wait_for_single_pid in jobs.c).
"""
_SIGNAL = """\
for try in {{1..50}}; do [ -s {at} ] && break; sleep 0.1; done; kill -s {name} -- -"$(cat {at})"
"""


def run_in_node(
    ssh: Sequence[str],
    node: str,
    argv: Sequence[str],
    interrupts: Interrupts,
    *,
    stdin: bool,
    timeout: float,
    into: IO[bytes] | None = None,
    env: Mapping[str, str] | None = None,
) -> int:
    """Run ``argv`` in a node by the command ``ssh``; its exit code, 128 + n after signal n.

    ``into``: what gets its stdout instead of ours; ``env``: the environment of ssh.

    The first signal is passed to the program; a second one kills it; a third ends the connection.
    Raises InvalidSpec for a command that is too long, HostUnfit without ssh, NotReady if the node
    does not answer SSH, the connection breaks, or the program does not end in ``timeout`` seconds.
    """
    require("ssh", package="openssh-client")
    # A socket needs a short path.
    with tempfile.TemporaryDirectory(prefix="lab-x-", dir="/tmp") as directory:
        program = _InNode(ssh, env, node, argv, Path(directory))
        with interrupts.to(program.hear):
            return program.run(stdin=stdin, timeout=timeout, into=into)


class _InNode:
    def __init__(
        self,
        ssh: Sequence[str],
        env: Mapping[str, str] | None,
        node: str,
        argv: Sequence[str],
        directory: Path,
    ) -> None:
        self._node = node
        self._name = argv[0]
        self._token = secrets.token_hex(8)
        # ssh runs LocalCommand by the user's shell, once it is logged in.
        self._env = environment(env) | {"SHELL": "/bin/sh"}
        self._connected, self._log = directory / "connected", directory / "log"
        self._way = with_options(ssh, f"ControlPath={directory / 's'}")
        command = shlex.join(
            ["exec", "/bin/bash", "-c", _WRAPPER, "bash", self._token, node, *argv]
        )
        if len(command.encode()) > _LONGEST:
            raise InvalidSpec(
                f"the command is longer than {_LONGEST} bytes",
                hint="pass data by stdin: `lab exec --stdin`",
            )
        self._argv = [
            *with_options(
                [*self._way[:-1], "-T", "-E", str(self._log), self._way[-1]],
                "ControlMaster=yes",
                "PermitLocalCommand=yes",
                f"LocalCommand=: >{self._connected}",
                f"ConnectTimeout={_CONNECT}",
                # So that a guest that is halted or gone does not keep its caller.
                "ServerAliveInterval=15",
                "ServerAliveCountMax=8",
            ),
            command,
        ]
        self._process: subprocess.Popen[bytes] | None = None
        self._heard: list[int] = []
        self._ended = False

    def run(self, *, stdin: bool, timeout: float, into: IO[bytes] | None) -> int:
        sys.stdout.flush()
        shown = into is None and sys.stdout.isatty()
        out = subprocess.PIPE if shown or into else None
        err = subprocess.PIPE if sys.stderr.isatty() else None
        errors: list[OSError | LabError] = []

        def keep(source: IO[bytes]) -> None:
            try:
                _keep(source, into)
            except (OSError, LabError) as error:
                errors.append(error)
                self._kill()

        with ExitStack() as stack:
            # In a session of its own: Ctrl-C is for the program in the node, not for ssh.
            self._process = subprocess.Popen(
                self._argv,
                stdin=None if stdin else subprocess.DEVNULL,
                stdout=out,
                stderr=err,
                env=self._env,
                start_new_session=True,
            )
            for pipe in filter(None, (self._process.stdout, self._process.stderr)):
                stack.callback(pipe.close)
            stack.callback(self._process.wait, _GRACE)
            stack.callback(self._kill)
            threads = []
            if self._process.stdout is not None:
                threads.append(
                    _thread(keep, self._process.stdout)
                    if into
                    else _thread(_show, self._process.stdout, 1)
                )
            if self._process.stderr is not None:
                threads.append(_thread(_show, self._process.stderr, 2))
            if self._heard:
                self._kill()
            try:
                status = self._process.wait(timeout)
            except subprocess.TimeoutExpired:
                self._end()
                raise NotReady(
                    f"{self._name} in {self._node} did not end within {timeout:g} s",
                    hint="`--timeout` gives it longer",
                ) from None
            for thread in threads:  # all that was written is there
                thread.join()
        for error in errors:
            raise error
        return self._code(status)

    def hear(self, number: int) -> None:
        """A signal came; called from its handler."""
        self._heard.append(number)
        if self._process is None or self._process.returncode is not None:
            return
        if len(self._heard) > 2 or not self._connected.exists():
            self._kill()
        else:
            self._send("KILL" if len(self._heard) > 1 else signal.Signals(number).name[3:])

    def _code(self, status: int) -> int:
        if self._ended and self._heard:
            return 128 + self._heard[0]
        lines = self._log.read_text(errors="replace").splitlines() if self._log.exists() else []
        if status == 255 and not self._connected.exists():
            raise NotReady(
                f"{self._node} does not answer SSH",
                details=lines,
                hint="`lab exec --agent` needs no network in the node,"
                " `lab console` shows what it does",
            )
        if status == 255 and lines:
            raise NotReady(f"the connection to {self._node} broke", details=lines)
        return 128 - status if status < 0 else status

    def _send(self, name: str) -> subprocess.Popen[bytes]:
        """Have the node's shell send a signal to the program."""
        script = _SIGNAL.format(at=f"/run/lab-exec.{self._token}", name=name)
        command = shlex.join(["exec", "/bin/bash", "-c", script])
        argv = [*with_options(self._way, "ControlMaster=no"), command]
        null = subprocess.DEVNULL
        return subprocess.Popen(
            argv, stdin=null, stdout=null, stderr=null, env=self._env, start_new_session=True
        )

    def _end(self) -> None:
        """End a program whose time is over, and the connection."""
        if self._process is not None and self._connected.exists():
            for name in ("TERM", "KILL"):
                with self._send(name) as sent:
                    try:
                        self._process.wait(_GRACE)
                    except subprocess.TimeoutExpired:
                        sent.kill()
                        continue
                    return

    def _kill(self) -> None:
        """End ssh, if it still runs."""
        process = self._process
        if process is not None and process.returncode is None:
            self._ended = True
            process.kill()


def _thread(run: Callable[..., None], *args: object) -> threading.Thread:
    thread = threading.Thread(target=run, args=args, daemon=True)
    thread.start()
    return thread


def _keep(source: IO[bytes], sink: IO[bytes] | None) -> None:
    """Copy a stream; after an error the rest is not read."""
    while sink is not None and (data := os.read(source.fileno(), _PIECE)):
        sink.write(data)


def _show(source: IO[bytes], sink: int) -> None:
    """Copy a stream to a terminal, which must not be controlled by a guest."""
    text = codecs.getincrementaldecoder("utf-8")("replace")
    while data := os.read(source.fileno(), _PIECE):
        left = harmless(text.decode(data)).encode(errors="replace")
        while left:
            left = left[os.write(sink, left) :]
