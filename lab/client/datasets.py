"""Datasets of a service."""

from __future__ import annotations

import uuid
from collections.abc import Sequence
from contextlib import suppress
from dataclasses import dataclass, field
from typing import BinaryIO
from urllib.parse import urlencode

import msgspec
from websockets.exceptions import ConnectionClosed

from lab.client.archives import PIECE, broken, heard
from lab.client.create import submitted
from lab.client.jobs import Jobs
from lab.client.models import read
from lab.client.transport import Wire, path_of
from lab.client.tunnel import open_socket
from lab.errors import NotFound
from lab.progress import Listener, ignore
from lab.requests.datasets import CreateDataset
from lab.views.datasets import DatasetView, PersonalColumn, UploadView

_OF_SERVICE = ("upload", "lab_created_at")


class Datasets:
    """Datasets; its methods raise as those of ``Client`` do."""

    def __init__(self, wire: Wire, jobs: Jobs, url: str, token: str) -> None:
        self._wire = wire
        self._jobs = jobs
        self._url = url
        self._token = token

    def all(self) -> list[DatasetView]:
        """All versions of all datasets that the token sees, by name."""
        answer = self._wire.ask("GET", path_of("datasets"))
        return [view for one in read(answer.body, list[_Dataset]) for view in one.versions]

    def get(self, which: str) -> DatasetView:
        """A version, such as ``shop@2``, or the latest of ``shop``; raises NotFound."""
        return _latest(read(self._wire.ask("GET", path_of("datasets", which)).body, _Dataset))

    def scan(self, which: str) -> list[PersonalColumn]:
        """Columns that look personal and that no masking rule covers; raises NotFound."""
        answer = self._wire.ask("GET", path_of("datasets", which, "scan"))
        return read(answer.body, list[PersonalColumn])

    def upload(self, source: BinaryIO, name: str) -> UploadView:
        """Send a dump, called ``name``: ``create`` loads ``upload:ID``, within an hour.

        Raises InvalidSpec for a name that is not one of a dump (.sql, .sql.gz, .sql.xz, ...).
        """
        query = urlencode({"name": name})
        some = getattr(source, "read1", source.read)  # a pipe's data as it arrives
        with open_socket(self._url, self._token, "datasets", "upload", query=query) as connection:
            with suppress(ConnectionClosed):  # the last message has the reason
                while piece := some(PIECE):
                    connection.send(piece)
                connection.send("")
            with suppress(ConnectionClosed):
                for message in connection:
                    if (done := heard(str(message), ignore)) is not None:
                        return read(done, UploadView)
            raise broken(connection)

    def create(
        self,
        name: str,
        source: str,
        *,
        blueprint: str = "galera",
        keep: int = 0,
        mask: str = "",
        sql: str = "",
        tables: Sequence[str] = (),
        where: Sequence[str] = (),
        schema_only: Sequence[str] = (),
        defaults_file: str = "",
        warm: str = "",
        engine: str = "",
        settings: Sequence[str] = (),
        my_cnf: str = "",
        force: bool = False,
        shared: bool = False,
        timeout: float | None = None,
        listener: Listener | None = None,
    ) -> DatasetView:
        """Load a dataset and return its first version.

        ``source``: ``generate:...``, ``lab:NAME``, ``upload:ID``; for administrators also a path of
        the service's host and ``mysql://...``. As texts ``mask``: masking rules, ``sql``: further
        SQL, ``warm``: queries whose data labs have in memory. ``engine``: such as mariadb:10.11;
        empty: the default series of MariaDB. ``settings``, ``my_cnf``: options of the servers that
        load and mask, NAME=VALUE and as the text of an option file. ``force``: also a source that
        leaves no table. ``shared``: for all projects, by
        administrators. If this raises, the job is cancelled and undone. Raises InvalidSpec,
        Forbidden, NotFound, Conflict, LimitReached, HostUnfit, NotReady after ``timeout`` seconds.
        """
        asked = CreateDataset(
            name=name,
            source=source,
            blueprint=blueprint,
            keep=keep,
            mask=mask,
            sql=sql,
            tables=tuple(tables),
            where=tuple(where),
            schema_only=tuple(schema_only),
            defaults_file=defaults_file,
            warm=warm,
            engine=engine,
            settings=tuple(settings),
            my_cnf=my_cnf,
            force=force,
            shared=shared,
        )
        return self.send(asked, timeout=timeout, listener=listener)

    def send(
        self,
        asked: CreateDataset,
        *,
        timeout: float | None = None,
        listener: Listener | None = None,
    ) -> DatasetView:
        """``create`` by a request; its ``upload`` and ``lab_created_at`` are the service's."""
        fields = msgspec.to_builtins(asked).items()
        body = {name: value for name, value in fields if value and name not in _OF_SERVICE}
        return self._make(path_of("datasets"), body, timeout, listener)

    def refresh(
        self,
        name: str,
        *,
        force: bool = False,
        timeout: float | None = None,
        listener: Listener | None = None,
    ) -> DatasetView:
        """Make the next version from the same source; raises as ``create``.

        ``force``: also if the source has much less than the latest version.
        """
        path = path_of("datasets", name, "refresh") + ("?force=true" if force else "")
        return self._make(path, None, timeout, listener)

    def remove(self, which: str, *, defer: bool = False, listener: Listener | None = None) -> bool:
        """Remove a version, or all of a dataset; whether it is gone.

        ``defer``: what labs use is removed with the last of them. Raises NotFound, Conflict.
        """
        query = {"defer": "true"} if defer else {}
        self._jobs.done("DELETE", path_of("datasets", which), query, None, listener)
        if not defer:
            return True
        name, _, version = which.partition("@")
        there = [view for view in self.all() if view.name == name]
        return not [view for view in there if version in ("", str(view.version))]

    def _make(
        self, path: str, body: object, timeout: float | None, listener: Listener | None
    ) -> DatasetView:
        key = str(uuid.uuid4())
        answer, about = submitted(
            self._jobs,
            lambda: self._wire.ask("POST", path, body=body, key=key),
            timeout=timeout,
            listener=listener,
        )
        if about:
            return self.get(about.partition(":")[2])
        return _latest(read(answer.body, _Dataset))


@dataclass(frozen=True)
class _Dataset:
    """A dataset as the service describes it, as far as it is used here."""

    name: str
    versions: list[DatasetView] = field(default_factory=list)


def _latest(found: _Dataset) -> DatasetView:
    ready = [view for view in found.versions if view.state == "ready"] or found.versions
    if not ready:
        raise NotFound(f"there is no dataset {found.name!r}")
    return ready[-1]
