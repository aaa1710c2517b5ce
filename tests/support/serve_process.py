"""``lab serve`` as a process, on the fakes."""

from __future__ import annotations

import os
import subprocess
import sys
import threading
import time
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, field
from pathlib import Path

import httpx


@dataclass
class Serving:
    """A running ``lab serve``."""

    process: subprocess.Popen[str]
    url: str
    token: str
    talk: list[str]
    # Made once: each reads all certificates of the system.
    client: httpx.Client = field(default_factory=lambda: httpx.Client(timeout=120))

    def ask(self, method: str, path: str, body: object = None, **headers: str) -> httpx.Response:
        sent = {"Authorization": f"Bearer {self.token}"}
        sent |= {name.replace("_", "-"): value for name, value in headers.items()}
        return self.client.request(method, self.url + path, json=body, headers=sent)

    def until_logged(self, word: str, seconds: float = 90.0) -> str:
        end = time.monotonic() + seconds
        while time.monotonic() < end:
            for line in self.talk:
                if word in line:
                    return line
            time.sleep(0.02)
        raise AssertionError(f"{word!r} is not in {self.talk}")


def environment(root: Path) -> dict[str, str]:
    """The environment of programs that work in ``root``, on the fakes."""
    wanted = {"LAB_HOME": root / "home", "XDG_CONFIG_HOME": root / "config",
              "LAB_HYPERVISOR": "fake", "LAB_STORAGE": "fake", "LAB_OWNER": "tester",
              "LAB_MEMORY_FLOOR": "1M", "LAB_SPACE_FLOOR": "1M", "LAB_PORT_RANGE": "32000-32999",
              }  # fmt: skip
    return {**os.environ, **{name: str(value) for name, value in wanted.items()}}


def configure(env: Mapping[str, str], text: str) -> None:
    path = Path(env["XDG_CONFIG_HOME"]) / "lab" / "config.toml"
    path.parent.mkdir(parents=True)
    path.write_text(text)


@contextmanager
def serving(
    env: Mapping[str, str], *flags: str, program: Sequence[str] = (sys.executable, "-m", "lab")
) -> Iterator[Serving]:
    """``lab serve`` on a free port, for the block; ``program``: how lab is called."""
    argv = [*program, "serve", "--port", "0", *flags]
    process = subprocess.Popen(
        argv, env=dict(env), stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True
    )
    talk: list[str] = []
    assert process.stderr is not None
    # Extended line by line: each is there as soon as it was said.
    lines = iter(process.stderr.readline, "")
    reader = threading.Thread(target=talk.extend, args=[lines], daemon=True)
    reader.start()
    found = Serving(process, "", "", talk)
    try:
        found.url = found.until_logged("serving at").split()[-1]
        found.token = (Path(env["LAB_HOME"]) / "admin-token").read_text().strip()
        yield found
    finally:
        if process.poll() is None:
            process.kill()
        process.wait(20)
        reader.join(5)
        assert process.stdout is not None
        process.stdout.close()
        process.stderr.close()
        found.client.close()
