"""Archives of a service's images and templates, sent and fetched through WebSockets."""

from __future__ import annotations

import json
import queue
import threading
from collections.abc import Mapping
from contextlib import ExitStack, nullcontext, suppress
from dataclasses import replace
from typing import Any, TypeVar
from urllib.parse import urlencode

from websockets.exceptions import ConnectionClosed
from websockets.sync.connection import Connection

from lab.client.models import read
from lab.client.problem import error_of
from lab.client.tunnel import open_socket
from lab.errors import HostUnfit
from lab.exchange import files
from lab.exchange.frames import Sink
from lab.progress import Event, Listener, ignore
from lab.requests.archives import ExportArchive, ImportArchive
from lab.views.archives import ExportView, ImportView

T = TypeVar("T")

PIECE = 1 << 18
"""Bytes that are sent at once."""


class Archives:
    """Archives, for administrators; its methods raise as those of ``Client`` do."""

    def __init__(self, url: str, token: str) -> None:
        self._url = url
        self._token = token

    def fetch(self, asked: ExportArchive, *, listener: Listener = ignore) -> ExportView:
        """Write the archive of an image or a template, as ``lab image export`` does.

        A file is made when the first bytes arrive.
        """
        to, flags = asked.to, {"native": asked.to.native}
        if asked.kind == "template":
            flags |= {"image": asked.image, "ram": asked.ram}
        target = nullcontext(to.sink) if to.sink else files.target(to.where, resume=to.resume)
        with (
            self._open(asked.kind, asked.which, "archive", asked=flags) as connection,
            ExitStack() as held,
        ):
            sink: Sink | None = None
            with suppress(ConnectionClosed):
                for message in connection:
                    if isinstance(message, bytes):
                        sink = sink or held.enter_context(target)
                        sink.write(message)
                    elif (done := heard(message, listener)) is not None:
                        return replace(read(done, ExportView), to=to.where)
            raise broken(connection)

    def send(self, asked: ImportArchive, *, listener: Listener = ignore) -> ImportView:
        """Have the service import the archive of an image or a template."""
        how, flags = asked.how, {"resume": asked.how.resume}
        if asked.kind == "template":
            flags |= {"warm_only": how.warm_only, "ram": how.ram}
        messages: queue.SimpleQueue[str | None] = queue.SimpleQueue()
        with (
            files.source(asked.where) as source,
            self._open(asked.kind, "archive", asked=flags) as connection,
        ):
            some = getattr(source, "read1", source.read)  # a pipe's data as it arrives
            threading.Thread(target=_listen, args=(connection, messages), daemon=True).start()
            done = None
            with suppress(ConnectionClosed):  # the last message has the reason
                while done is None and (piece := some(PIECE)):
                    connection.send(piece)
                    while done is None and not messages.empty():
                        done = heard(messages.get(), listener)
                connection.send("")
            while done is None and (message := messages.get()) is not None:
                done = heard(message, listener)
            if done is not None:
                return read(done, ImportView)
            raise broken(connection)

    def _open(self, kind: str, *path: str, asked: Mapping[str, bool]) -> Connection:
        query = urlencode({name: str(value).lower() for name, value in asked.items()})
        return open_socket(self._url, self._token, f"{kind}s", *path, query=query)


def _listen(connection: Connection, messages: queue.SimpleQueue[str | None]) -> None:
    """Put the service's messages into ``messages``, and None at the end."""
    with suppress(ConnectionClosed):
        for message in connection:
            messages.put(str(message))
    messages.put(None)


def heard(message: str | None, listener: Listener) -> Any:
    """The result of a transfer, None while it runs; raises its error."""
    data = json.loads(message or "{}")
    if "problem" in data:
        raise error_of(data["problem"])
    if "event" in data:
        listener(read(data["event"], Event))
    return data.get("done")


def broken(connection: Connection) -> HostUnfit:
    """The error of a transfer that ended before its result."""
    why = connection.close_reason or "the connection to the service broke"
    return HostUnfit("the transfer was interrupted", hint="run the command again", details=[why])
