"""Datasets of a service."""

from __future__ import annotations

from contextlib import suppress
from typing import Any, BinaryIO
from urllib.parse import urlencode

from websockets.exceptions import ConnectionClosed

from lab.client.archives import PIECE, broken, heard
from lab.client.jobs import Jobs
from lab.client.models import dataset_of, datasets_of, read
from lab.client.run import run, settable
from lab.client.transport import Wire, path_of
from lab.client.tunnel import open_socket
from lab.progress import Listener, ignore
from lab.request import Request
from lab.requests.datasets import CreateDataset, DeleteDataset, RefreshDataset
from lab.views.datasets import DatasetView, PersonalColumn, UploadView


class Datasets:
    """Datasets; its methods raise as those of ``Client`` do."""

    def __init__(self, wire: Wire, jobs: Jobs, url: str, token: str) -> None:
        self._wire = wire
        self._jobs = jobs
        self._url = url
        self._token = token

    def all(self) -> list[DatasetView]:
        """All versions of all datasets that the token sees, by name."""
        return datasets_of(self._wire.ask("GET", path_of("datasets")).body)

    def get(self, which: str) -> DatasetView:
        """A version, such as ``shop@2``, or the latest of ``shop``; raises NotFound."""
        return dataset_of(self._wire.ask("GET", path_of("datasets", which)).body)

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
        timeout: float | None = None,
        listener: Listener | None = None,
        **fields: Any,
    ) -> DatasetView:
        """Load a dataset and return its first version.

        ``source``: ``generate:...``, ``lab:NAME``, ``upload:ID``; for administrators also a path of
        the service's host and ``mysql://...``. ``fields``: those of ``CreateDataset``, such as
        ``mask="..."``. If this raises, the job is cancelled and undone. Raises InvalidSpec,
        Forbidden, NotFound, Conflict, LimitReached, HostUnfit, NotReady after ``timeout`` seconds.
        """
        asked = CreateDataset(name=name, source=source, **settable(CreateDataset, fields))
        return self._made(asked, timeout, listener)

    def refresh(
        self,
        name: str,
        *,
        engine: str = "",
        force: bool = False,
        timeout: float | None = None,
        listener: Listener | None = None,
    ) -> DatasetView:
        """Make the next version from the same source; raises as ``create``.

        ``engine``: what it is loaded by; empty: as the latest version.
        ``force``: also if the source has much less than the latest version.
        """
        asked = RefreshDataset(name=name, engine=engine, force=force)
        return self._made(asked, timeout, listener)

    def remove(self, which: str, *, defer: bool = False, listener: Listener | None = None) -> bool:
        """Remove a version, or all of a dataset; whether it is gone.

        ``defer``: what labs use is removed with the last of them. Raises NotFound, Conflict.
        """
        asked = DeleteDataset(which=which, defer=defer)
        gone: bool = run(self._wire, self._jobs, asked, None, listener)
        return gone

    def _made(
        self, asked: Request, timeout: float | None, listener: Listener | None
    ) -> DatasetView:
        view: DatasetView = run(self._wire, self._jobs, asked, timeout, listener)
        return view
