"""The program as a user runs it: one process a command, in a home that vanishes afterwards."""

from __future__ import annotations

import json
import os
import re
import secrets
import shutil
import subprocess
import sys
import tempfile
import time
from collections.abc import Iterator, Mapping, Sequence
from contextlib import ExitStack, contextmanager, suppress
from dataclasses import dataclass, field
from pathlib import Path
from typing import IO, Any

from lab.errors import LabError
from lab.host.system import hypervisor, system
from lab.paths import REACHABLE

ROOT = Path(__file__).resolve().parents[1]
COMMAND_SECONDS = 2400.0
"""After this long a command is taken for hung."""

_ENDING_SECONDS = 60.0


class Failed(Exception):
    """A command of ours failed, or a lab that was called ready is not."""


@contextmanager
def awake(uri: str = "") -> Iterator[None]:
    """Keep libvirt's daemon running for the block, where guests are libvirt's.

    systemd starts it at the first connection, and it ends two minutes after the last guest: a
    measurement that begins then would include up to a second of its start. Raises Failed.
    """
    if hypervisor(system()) != "libvirt":
        yield
        return
    from lab.hypervisor.libvirt.connection import connect, default_uri

    try:
        connection = connect(uri or os.environ.get("LAB_LIBVIRT_URI") or default_uri())
    except LabError as error:
        raise Failed(str(error)) from error
    try:
        yield
    finally:
        connection.close()


@dataclass(frozen=True)
class Ran:
    """A command that succeeded: what it printed (as JSON, None for nothing) and its seconds."""

    seconds: float
    value: Any


@dataclass(frozen=True)
class Home:
    """A home of its own for the benchmark. ``token`` keeps its names from those of others.

    ``env``: what its commands find in their environment beside the usual; ``code``: the checkout
    whose program is run, with the Python of its .venv unless it is this one.
    """

    root: Path
    token: str
    env: Mapping[str, str] = field(default_factory=dict)
    code: Path = ROOT

    def name(self, number: int) -> str:
        """A lab's name; guests of all homes share one name space."""
        return f"bench-{self.token}-{number}"

    def directories(self, name: str) -> list[Path]:
        """Where the files of a lab are."""
        return [self.root / "labs" / name, self.root / "storage" / "labs" / name]

    def start(
        self, *words: str, quiet: bool = True, stdin: int | IO[bytes] = subprocess.DEVNULL
    ) -> subprocess.Popen[str]:
        """Start a command. The caller waits for it, or ends it with ``ended``."""
        flags = ["--quiet"] if quiet else []
        python = sys.executable if self.code == ROOT else str(self.code / ".venv/bin/python")
        return subprocess.Popen(
            [python, "-m", "lab", *flags, *words],
            env={**environment(os.environ, self.root, self.code), **self.env},
            cwd=self.root,  # where there is no lab.toml
            stdin=stdin,
            stdout=subprocess.PIPE,
            stderr=subprocess.PIPE,
            text=True,
            start_new_session=True,  # Ctrl-C is ours to pass on
        )

    def run(self, *words: str, stdin: int | IO[bytes] = subprocess.DEVNULL) -> Ran:
        """Run a command from the start of its process to its end; raises Failed."""
        began = time.perf_counter()
        with ended(self.start(*words, stdin=stdin)) as process:
            out, err = process.communicate(timeout=COMMAND_SECONDS)
        took = time.perf_counter() - began
        if process.returncode:
            raise Failed(f"lab {' '.join(words)} exited {process.returncode}: {one_line(err)}")
        return Ran(took, json.loads(out) if out.startswith(("{", "[")) else None)


@contextmanager
def ended(*processes: subprocess.Popen[str]) -> Iterator[subprocess.Popen[str]]:
    """See that ``processes`` are over after the block, as if Ctrl-C had been pressed if not."""
    try:
        yield processes[0]
    finally:
        for process in processes:
            if process.poll() is None:
                process.terminate()
        for process in processes:
            try:
                process.wait(_ENDING_SECONDS)
            except subprocess.TimeoutExpired:
                process.kill()
                process.wait()


@contextmanager
def scratch_home(parent: Path, code: Path = ROOT) -> Iterator[Home]:
    """A new home below ``parent``; afterwards nothing of it is left, guests included."""
    parent.mkdir(parents=True, exist_ok=True)
    root = Path(tempfile.mkdtemp(prefix="lab-bench-", dir=parent))
    root.chmod(REACHABLE)  # QEMU may run as a user of its own
    home = Home(root, secrets.token_hex(2), code=code)
    with ExitStack() as afterwards:
        afterwards.callback(shutil.rmtree, root)
        afterwards.callback(_clear, home)
        yield home


def _clear(home: Home) -> None:
    """Remove all guests of ``home``; what cannot be removed is reported."""
    for words in (("down", "--all", "--yes"), ("gc", "--orphans")):
        with suppress(subprocess.TimeoutExpired):
            try:
                home.run(*words)
            except Failed as error:
                print(f"left behind? {error}", file=sys.stderr)  # noqa: T201


def environment(ours: Mapping[str, str], root: Path, code: Path = ROOT) -> dict[str, str]:
    """Our environment for a command, without settings of the user's that would change it.

    Such as the one that keeps Python from storing bytecode: each command would compile what has
    changed since somebody stored it, and a newer checkout seem slower than an older one.
    """
    others = ("LAB_", "PYTHONDONTWRITEBYTECODE")
    kept = {name: value for name, value in ours.items() if not name.startswith(others)}
    path = os.pathsep.join(filter(None, [str(code), ours.get("PYTHONPATH", "")]))
    return {**kept, "LAB_HOME": str(root), "PYTHONPATH": path}


def together(home: Home, commands: Sequence[Sequence[str]]) -> tuple[float, list[Any], list[str]]:
    """Run ``commands`` at once: seconds until the last ended, what they printed, what failed."""
    began = time.perf_counter()
    processes = [home.start(*words) for words in commands]
    values, failures = [], []
    with ended(*processes):
        for process in processes:
            out, err = process.communicate(timeout=COMMAND_SECONDS)
            if process.returncode:
                failures.append(one_line(err))
            else:
                values.append(json.loads(out))
        took = time.perf_counter() - began
    return took, values, failures


def one_line(text: str) -> str:
    """What a command said of its failure, for a list of failures."""
    text = re.sub(r"bench-[0-9a-f]+-\d+", "LAB", text)  # so that equal failures are equal
    lines = (line.strip() for line in text.splitlines() if line.strip())
    return "; ".join(lines).removeprefix("lab: error: ")
