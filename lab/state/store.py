"""The way to the record. Data in, data out: no connection or row leaves this package."""

from __future__ import annotations

import contextlib
from collections.abc import Collection, Iterator
from types import TracebackType

from sqlalchemy import select

from lab.names import LAB_NAME_LIMIT
from lab.paths import Home
from lab.state import schema
from lab.state.database import Database
from lab.state.events import Events
from lab.state.jobs import Audit, Jobs
from lab.state.keyed import Keyed
from lab.state.nodes import Nodes
from lab.state.reading import Engines, together, with_engines
from lab.state.records import (
    BenchRecord,
    ImageRecord,
    LabRecord,
    LabWithNodes,
    StandbyRecord,
    TemplateRecord,
)
from lab.state.resources import Resources
from lab.state.service import TokenRecord


class Store:
    """The state of a home. Opens when first used; safe for use by several threads.

    Every method is a transaction of its own, or part of the one that ``transaction``
    opened. All of them raise HostUnfit (cannot be read or written, written by a newer
    version), Conflict (another process writes for too long) and LabError (damaged).
    """

    def __init__(self, home: Home) -> None:
        self._database = Database(home)
        self.labs = Keyed(self._database, schema.labs, LabRecord, "lab")
        self.nodes = Nodes(self._database)
        self.standbys = Keyed(self._database, schema.standbys, StandbyRecord, "standby")
        self.images = Keyed(self._database, schema.images, ImageRecord, "image")
        self.templates = Keyed(self._database, schema.templates, TemplateRecord, "template")
        self.resources = Resources(self._database)
        self.events = Events(self._database)
        self.benches = Keyed(self._database, schema.benches, BenchRecord, "benchmark")
        self.tokens = Keyed(self._database, schema.tokens, TokenRecord, "token")
        self.jobs = Jobs(self._database)
        self.audit = Audit(self._database)

    def close(self) -> None:
        """Close the connections; the next use opens new ones."""
        self._database.close()

    def version(self) -> object:
        """What is equal to an earlier answer only if nothing was stored since, by anybody."""
        return self._database.version()

    def labs_version(self) -> object:
        """``version`` of labs, nodes and standbys alone; see ``Database.version_of``."""
        return self._database.version_of(schema.labs, schema.nodes, schema.standbys)

    def tokens_version(self) -> object:
        """``version`` of tokens alone; see ``Database.version_of``."""
        return self._database.version_of(schema.tokens)

    def sync(self) -> None:
        """Make what was stored survive a power loss, which may undo the last few changes else."""
        self._database.sync()

    def __enter__(self) -> Store:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, _: TracebackType | None
    ) -> None:
        self.close()

    @contextlib.contextmanager
    def transaction(self) -> Iterator[None]:
        """All that this thread does with the store in the block happens at once, or not at all.

        No other process writes meanwhile: keep it short, and do nothing slow in it.
        """
        with self._database.write():
            yield

    def free_name(self, prefix: str, also: Collection[str] = ()) -> str:
        """The first of ``pxc``, ``pxc-2``, ``pxc-3``, ... that no lab has, nor is in ``also``.

        A lab of which only resources are left still has its name. To be sure of the name,
        add the lab in the same ``transaction``.
        """
        resources = schema.resources.c.owner
        with self._database.read() as connection:
            taken = set(connection.execute(select(schema.labs.c.name)).scalars())
            left = select(resources).where(resources.startswith("lab:")).distinct()
            taken |= {owner.removeprefix("lab:") for owner in connection.execute(left).scalars()}
        taken.update(also)
        number, name = 1, prefix[:LAB_NAME_LIMIT].rstrip("-")
        while name in taken:
            number += 1
            name = prefix[: LAB_NAME_LIMIT - len(f"-{number}")].rstrip("-") + f"-{number}"
        return name

    def lab_with_nodes(self, name: str) -> LabWithNodes:
        """A lab and its nodes, as of one moment; raises NotFound."""
        with self._database.read():
            lab, standby = self.labs.get(name), self._standbys().get(name, "")
            return with_engines(lab, self.nodes.of(name), self._engines(), standby)

    def labs_with_nodes(self) -> list[LabWithNodes]:
        """All labs and their nodes, by name, as of one moment; four queries."""
        with self._database.read():
            labs, nodes, engines = self.labs.all(), self.nodes.all(), self._engines()
            standbys = self._standbys()
        return together(labs, nodes, engines, standbys)

    def _standbys(self) -> dict[str, str]:
        """The labels of the snapshots for which labs have a standby, by the names of labs."""
        return {one.lab: one.label for one in self.standbys.all() if one.state == "ready"}

    def _engines(self) -> Engines:
        """The engine and its version in each image, by its key."""
        images = schema.images.c
        with self._database.read() as connection:
            rows = connection.execute(select(images.key, images.engine, images.engine_version))
            return {key: (engine, version) for key, engine, version in rows}
