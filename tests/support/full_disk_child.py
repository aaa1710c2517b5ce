"""Run by ``test_full_disk`` with a home on a small tmpfs of its own: real volumes, no guests.

Fills the disk to the last byte, then runs the program's verbs; prints a line of JSON for each:
the words, the exit code, and what was written to stdout and stderr.
"""

from __future__ import annotations

import contextlib
import io
import json
import os
import sys
import time
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import replace
from pathlib import Path

from lab.cli import main
from lab.cli.backend.local import Lifecycle, LocalSession
from lab.cli.backend.session import Session
from lab.config.settings import Settings
from lab.lifecycle.core.context import Context
from lab.names import Owner, VolumeName
from lab.progress import Listener, Progress
from lab.state.records import LabRecord, NodeRecord
from lab.storage.qcow2 import Qcow2Storage
from tests.support.lifecycle_world import World

VERBS = (
    "ls", "ls -o json", "status shop", "gc --dry-run", "gc", "snapshot take shop",
    "up galera --name new", "stop shop --node n2", "down shop", "ls -o name", "down two",
    "ls -o name",
)  # fmt: skip


class OnFullDisk(Lifecycle):
    """The lifecycle with real volumes in ``world``'s home."""

    def __init__(self, world: World, floor: int) -> None:
        self._world, self._floor = world, floor

    def settings(self, given: object = None) -> Settings:
        del given
        return replace(self._world.settings, space_floor=self._floor)

    @contextmanager
    def open(self, settings: Settings, listener: Listener) -> Iterator[Session]:
        with opened(self._world) as ctx:
            yield LocalSession(replace(ctx, settings=settings, progress=Progress(listener)))


@contextmanager
def opened(world: World) -> Iterator[Context]:
    with world.open() as ctx:
        storage = Qcow2Storage(world.home.storage, world.home.id, None)
        yield replace(ctx, storage=storage, settings=replace(ctx.settings, space_floor=0))


def fill(path: Path) -> None:
    fd = os.open(path, os.O_CREAT | os.O_WRONLY | os.O_APPEND)
    for size in (1 << 16, 4096, 1):
        with contextlib.suppress(OSError):
            while True:
                os.write(fd, b"x" * size)
    os.close(fd)


def run(lifecycle: Lifecycle, words: str) -> dict[str, object]:
    out, err = io.StringIO(), io.StringIO()
    with contextlib.redirect_stdout(out), contextlib.redirect_stderr(err):
        code = main(words.split(), lifecycle=lifecycle)
    return {"words": words, "code": code, "out": out.getvalue(), "err": err.getvalue()}


def recorded(ctx: Context, name: str) -> None:
    """A stopped lab with two nodes, each with a real volume that holds something."""
    ctx.store.labs.add(
        LabRecord(
            name, "mariadb", "0.0", "image", "stopped", "secret", "lab", "tester", time.time(),
            blueprint="galera", node_count=2, memory=384 << 20, cpus=1, disk=0,
            template="template", started="warm", ready_seconds=1.0,
        )
    )  # fmt: skip
    nodes = [NodeRecord(name, f"n{i}", i, "member", f"lab-{name}-n{i}", 1, 2) for i in (1, 2)]
    ctx.store.nodes.add(nodes)
    ctx.home.create_directory(Owner("lab", name))
    content = ctx.home.root / "content"
    for node in nodes:
        content.write_bytes(os.urandom(1 << 20))
        volume = VolumeName(Owner("lab", name), node.name, "os")
        ctx.store.resources.intend_all(volume.owner, [("volume", str(volume))])
        ctx.storage.import_raw(volume, content, {"owner": str(volume.owner), "node": node.name})


def program(root: Path, reserve: str) -> None:
    world = World(root)
    with opened(world) as ctx:
        for name in ("shop", "two"):
            recorded(ctx, name)
    if reserve == "without":
        (root / "reserve").unlink()
    fill(root / "fill")
    lifecycle = OnFullDisk(world, 1 << 20)
    for words in VERBS:
        print(json.dumps(run(lifecycle, words)), flush=True)  # noqa: T201


if __name__ == "__main__":
    program(Path(sys.argv[1]), sys.argv[2])
