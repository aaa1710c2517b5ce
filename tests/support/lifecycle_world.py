"""The whole lifecycle on the fakes, with a hook before each of its steps.

A step is anything that could fail or be the last thing that a killed process did: a call of
storage or hypervisor, a commit of the record, the begin or end of a step that progress reports.
"""

from __future__ import annotations

import os
import signal
import threading
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, field, fields, replace
from functools import partial
from pathlib import Path
from typing import Any

from sqlalchemy import Connection, event
from sqlalchemy.engine import Engine

from lab.config.settings import Settings
from lab.errors import LabError
from lab.fake.hypervisor import FakeHypervisor
from lab.fake.images import build
from lab.fake.storage import FakeStorage
from lab.hypervisor import Capabilities
from lab.imagebuild.manifest import BuiltImage
from lab.lifecycle.captures import template
from lab.lifecycle.core.context import Context
from lab.lifecycle.images import image
from lab.lifecycle.labs.down import down
from lab.lifecycle.labs.query import query
from lab.lifecycle.labs.up import up
from lab.names import LOOPBACK
from lab.observe.account import Account
from lab.observe.ways import Rows
from lab.options import Options
from lab.paths import Home
from lab.progress import Event, Progress
from lab.requests.labs import CreateLab
from lab.sizes import NodeSize
from lab.state.store import Store
from lab.units import MIB
from lab.views.labs import LabView, NodeView

Hook = Callable[[str], None]
Verb = Callable[[Context], object]

SIZE = NodeSize(memory=384 * MIB)
_OPTIONS = {field.name for field in fields(Options)}


def lab_request(blueprint: str, name: str = "", **values: Any) -> CreateLab:
    """The request for a lab of small nodes; ``values``: fields of it and of its options."""
    values = {"memory": SIZE.memory, **values}
    chosen = {key: values.pop(key) for key in _OPTIONS & values.keys()}
    return CreateLab(blueprint=blueprint, name=name, options=Options(**chosen).said, **values)


REQUEST = lab_request("galera", nodes=2)


def unobserved(view: LabView) -> list[NodeView]:
    """The nodes of a lab, but for when they were asked."""
    return [replace(node, observed_at=None) for node in view.nodes]


def count(ctx: Context, node: str | None = None, name: str = "shop") -> object:
    """The rows of table ``t`` of a lab, as ``node`` counts them, else the node for users."""
    return query(ctx, name, node, "SELECT COUNT(*) FROM t").rows[0][0]


def roles(view: LabView) -> list[str]:
    """The roles of a lab's nodes, in their order."""
    return [node.role for node in view.nodes]


_KEPT = ("images/", "templates/", "logs/images/")
"""Files of images and templates, looked at through their records."""
_IGNORED = (
    "state.db",
    "locks/",
    "fake-guests/",
    "ca.",
    "reserve",
    "bundles/",
    "failures.json",
    "reachable.json",
)


def _ports() -> tuple[int, int]:
    """The first and last port of labs in this process of the suite, of seven in a row.

    Fake guests listen nowhere, so only tests do at their ports: with one range for all processes,
    two of them would at the same time.
    """
    worker = int(os.environ.get("PYTEST_XDIST_WORKER", "gw0").removeprefix("gw"))
    first = 29000 + 420 * (worker % 7)
    return first, first + 419


def ignore(_: str) -> None:
    """A hook that does nothing."""


@dataclass
class World:
    """An installation in ``root``. ``capabilities``, ``boot_seconds``, ``own_seconds``,
    ``capacity``, ``redirects``: the fakes'.
    """

    root: Path
    capabilities: Capabilities | None = None
    version: str = "1"
    boot_seconds: float = 0.0
    own_seconds: float = 0.0
    capacity: int = 1 << 40
    ports: tuple[int, int] = field(default_factory=_ports)
    publish: str = LOOPBACK
    publish_name: str = ""
    ready_timeout: float = 20.0
    answer_timeout: float = 10.0  # a busy machine is no reason for a test to fail
    build: Callable[..., BuiltImage] = build
    redirects: bool = False
    standby: int = 0
    notes: list[str] = field(default_factory=list)

    @property
    def home(self) -> Home:
        return Home(self.root)

    @property
    def settings(self) -> Settings:
        return Settings(
            self.home, "tester", hypervisor="fake", storage="fake",
            ready_timeout=self.ready_timeout, answer_timeout=self.answer_timeout,
            memory_floor=0, port_range=self.ports,
            publish=self.publish, publish_name=self.publish_name, standby=self.standby,
        )  # fmt: skip

    @contextmanager
    def open(self, hook: Hook = ignore) -> Iterator[Context]:
        """A context whose every step calls ``hook`` first."""

        def committing(connection: Connection) -> None:
            if connection.get_execution_options().get("lab_mode") == "write":
                hook("state.commit")

        def hear(heard: Event) -> None:
            if heard.state == "note":
                self.notes.append(heard.text)
            hook(f"{heard.step}.{heard.state}")

        home = self.home
        home.create()
        fake = FakeHypervisor(
            home.root / "fake-guests", home.id, before=lambda s: hook(f"hypervisor.{s}"),
            capabilities=self.capabilities, version=self.version, boot_seconds=self.boot_seconds,
            own_seconds=self.own_seconds, redirects=self.redirects,
        )  # fmt: skip
        storage = FakeStorage(
            home.storage, home.id, before=lambda s: hook(f"storage.{s}"), capacity=self.capacity
        )

        def ask(
            account: Account,
            port: int,
            statements: Sequence[str],
            *,
            timeout: float,
            whole: bool = False,
        ) -> list[Rows]:
            del timeout, whole
            ask_one = partial(
                fake.servers.sql, port, account.user, account.password,
                host=account.host, tls=account.tls, plugin=account.plugin,
            )  # fmt: skip
            found = map(ask_one, statements)
            return [Rows(result.columns, result.rows, result.affected) for result in found]

        event.listen(Engine, "commit", committing)
        try:
            with Store(home) as store:
                yield Context(
                    self.settings, store, storage, fake, Progress(hear), ask, self.build,
                    page=fake.servers.page,
                )  # fmt: skip
        finally:
            event.remove(Engine, "commit", committing)

    def there(self) -> set[str]:
        """All that exists: rows, guests, volumes, files; locks are free or they are listed."""
        with self.open() as ctx:
            found = {f"lab {r.name} {r.state}" for r in ctx.store.labs.all()}
            found |= {f"template {r.key} {r.state}" for r in ctx.store.templates.all()}
            found |= {f"image {r.key} {r.state}" for r in ctx.store.images.all()}
            found |= {f"{r.kind} {r.ref} of {r.owner}" for r in ctx.store.resources.all()}
            found |= {f"guest {name}" for name in ctx.hypervisor.guests()}
            found |= {f"volume {volume.name}" for volume in ctx.storage.volumes()}
        for path in self.root.rglob("*"):
            name = path.relative_to(self.root).as_posix()
            if not name.startswith(_IGNORED) and not path.is_dir():
                # Contents of volumes have names of chance: they are counted.
                found.add(name if "storage/contents/" not in name else "")
        contents = list((self.root / "storage/contents").glob("*"))
        found = {f"{len(contents)} files of volumes" if name == "" else name for name in found}
        return found - {"storage/state.json"}

    def killed(self, verb: Callable[[Context], object], step: int | str) -> str:
        """Run ``verb`` in a process that kills itself before its ``step``-th step (from 0).

        A text: before the first step of that name. The name of that step; empty if the verb came
        to its end before that.
        """
        reading, writing = os.pipe()

        def die() -> None:
            os.write(writing, (step if isinstance(step, str) else counter.done).encode())
            os.kill(os.getpid(), signal.SIGKILL)

        counter = Counter(step if isinstance(step, int) else -1, die)
        hook = at(step, die) if isinstance(step, str) else counter
        child = os.fork()
        if not child:
            code = 1
            try:
                with self.open(hook) as ctx:
                    verb(ctx)
                code = 0
            finally:
                os._exit(code)
        os.close(writing)
        with open(reading, "rb") as pipe:  # noqa: PTH123  a pipe
            name = pipe.read().decode()
        _, status = os.waitpid(child, 0)
        if os.WIFSIGNALED(status):
            return name
        assert os.WEXITSTATUS(status) == 0, "the verb failed before it was killed"
        return ""


@dataclass
class Counter:
    """A hook that does ``act`` at the ``step``-th step (from 0), once."""

    step: int
    act: Callable[[], object]
    done: str = ""
    _count: int = -1
    _lock: threading.Lock = field(default_factory=threading.Lock)

    def __call__(self, step: str) -> None:
        with self._lock:
            self._count += 1
            now = self._count == self.step
            if now:
                self.done = step
        if now:
            self.act()


def raising(error: BaseException) -> Callable[[], None]:
    """What raises ``error``."""

    def act() -> None:
        raise error

    return act


def at(step: str, act: Callable[[], object]) -> Hook:
    """A hook that does ``act`` the first time that ``step`` is about to happen."""
    waiting = [act]

    def hook(now: str) -> None:
        if now == step and waiting:
            waiting.pop()()

    return hook


def in_process(world: World, verb: Callable[[Context], object], hook: Hook = ignore) -> int:
    """Run ``verb`` in a process of its own; its pid. It exits with an error's exit code."""
    child = os.fork()
    if child:
        return child
    code = 1
    try:
        with world.open(hook) as ctx:
            verb(ctx)
        code = 0
    except LabError as error:
        code = error.exit_code
    finally:
        os._exit(code)


def codes(children: list[int]) -> list[int]:
    return sorted(os.waitstatus_to_exitcode(os.waitpid(child, 0)[1]) for child in children)


def named(name: str, blueprint: str = "galera", *, nodes: int = 2, **values: Any) -> CreateLab:
    """The request for the usual lab, with a name."""
    return lab_request(blueprint, name, nodes=nodes, **values)


def make_lab(ctx: Context) -> None:
    up(ctx, named("shop"))


def make_cold(ctx: Context) -> None:
    up(ctx, named("shop", cold=True))


def make_image(ctx: Context) -> None:
    image.build(ctx, "mariadb")


def make_template(ctx: Context) -> None:
    template.build(ctx, REQUEST)


def remove_lab(ctx: Context) -> None:
    down(ctx, "shop")


def nothing(ctx: Context) -> None:
    """Start from an empty installation."""


def remove_new(ctx: Context, baseline: set[str], *, labs: bool = True) -> set[str]:
    """Remove what a verb finished beyond ``baseline``, all of it whole; the logs that stay."""
    for lab in ctx.store.labs.all() if labs else ():
        if f"lab {lab.name} ready" not in baseline:
            assert lab.state == "ready"
            down(ctx, lab.name)
    for made in ctx.store.templates.all():
        if f"template {made.key} ready" not in baseline:
            assert made.state == "ready"
            template.remove(ctx, made.key)
    for built in ctx.store.images.all():
        if f"image {built.key} ready" not in baseline:
            assert built.state == "ready"
            image.remove(ctx, built.key)
    # The log of a build is kept for people.
    return {f"logs/images/{path.name}" for path in (ctx.home.root / "logs/images").iterdir()} - (
        baseline
    )
