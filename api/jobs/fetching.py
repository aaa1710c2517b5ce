"""Captures follow demand: what a lab is cloned from is fetched from another host of the fleet.

Only what this host lacks, and only the chunks of it that an earlier, interrupted transfer has not
brought. Images and datasets as they are; templates with their RAM where that fits this host, else
their disks: labs boot from these until the cluster was formed here
(``lab.lifecycle.archives.fetch.unfit``).
"""

from __future__ import annotations

import io
import json
import time
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager, suppress
from dataclasses import replace
from typing import Any

import msgspec
from websockets.exceptions import ConnectionClosed, InvalidStatus, WebSocketException
from websockets.sync.client import connect
from websockets.sync.connection import Connection

from lab.api.core.captures import elsewhere, others, template_named
from lab.api.core.fleet import Fleet
from lab.errors import HostUnfit, Interrupted, LabError
from lab.exchange.talk import Speaker
from lab.fleet.database import Unreachable
from lab.fleet.hosts import Host
from lab.lifecycle.archives.fetch import Fetch, Lacking, is_dataset_here, lacking
from lab.lifecycle.archives.import_archive import import_archive
from lab.lifecycle.core.context import Context
from lab.lifecycle.images.order import recipe_of
from lab.requests.archives import ImportOptions
from lab.requests.images import BuildTemplate
from lab.requests.labs import ClusterRequest, CreateLab
from lab.spec import LabSpec
from lab.texts import harmless

PATH = "/v1/fleet/archives"
STALL = 600.0
"""Seconds without a byte after which a transfer is given up."""
_CONNECT = 3.0
_LOOK = 0.5
"""Seconds between two looks whether the job was cancelled."""
_TRIES = 5
_PAUSE = 2.0
"""Seconds until a transfer whose connection broke is resumed: the other service may be starting."""
_BUFFER = 1 << 20
_MESSAGE = 8 << 20
"""Bytes of a message, at most: a frame of an archive is smaller."""


class Broken(HostUnfit):
    """The connection to the other host ended before the archive did."""


def fetch(ctx: Context, fleet: Fleet, request: ClusterRequest, project: str | None) -> None:
    """Have what a lab is cloned from here, as far as another host can give it.

    ``project``: whose datasets may be used; None: all. What no host gives is made here, as without
    a fleet. Raises HostUnfit for a dataset that could not be fetched.
    """
    spec = request.spec
    with suppress(Unreachable):  # then as it was known last
        fleet.refresh()
    if spec.dataset and not is_dataset_here(ctx, spec.dataset):
        _dataset(ctx, fleet, spec, project)
    cold = isinstance(request, CreateLab) and request.cold
    cluster = BuildTemplate.of(replace(spec, name="", ttl=None))
    with fleet.one_at_a_time(json.dumps(msgspec.to_builtins(cluster)), ctx.progress.halt):
        found = lacking(ctx, spec)
        if found.template and not cold and _template(ctx, fleet, cluster, found, project):
            return
        for key in found.images:
            hosts = [host for host in others(fleet) if key in host.facts.images]
            with fleet.one_at_a_time(key, ctx.progress.halt):
                if key in lacking(ctx, spec).images:
                    _from_one(ctx, fleet, hosts, Fetch("image", key))


def _dataset(ctx: Context, fleet: Fleet, spec: LabSpec, project: str | None) -> None:
    recipe = recipe_of(spec.blueprint, spec.engine) if spec.engine else ""
    there = [
        one for one in elsewhere(fleet, spec.dataset, project) if recipe in ("", one[1].recipe)
    ]
    if not there:
        return  # `resolve` says that there is none
    latest = there[0][1]
    hosts = [host for host, version in there if version == latest]
    owned = replace(ctx, origin=replace(ctx.origin, project=latest.project))
    with fleet.one_at_a_time(latest.at, ctx.progress.halt):
        if is_dataset_here(ctx, latest.at):
            return
        if not _from_one(owned, fleet, hosts, Fetch("dataset", latest.at, project=project)):
            raise HostUnfit(
                f"the dataset {latest.at} could not be fetched from"
                f" {' or '.join(host.name for host in hosts)}",
                hint="the job's events, or `lab events`, say why",
            )


def _template(
    ctx: Context, fleet: Fleet, cluster: BuildTemplate, found: Lacking, project: str | None
) -> bool:
    spec = cluster.spec
    named = template_named(spec, spec.dataset)
    hosts = [host for host in others(fleet) if named in host.facts.templates]
    keys = (found.engine, *(key for key in found.all if key != found.engine))
    return _from_one(
        ctx, fleet, hosts, Fetch("template", "", msgspec.to_builtins(cluster), keys, project)
    )


def _from_one(ctx: Context, fleet: Fleet, hosts: Sequence[Host], wanted: Fetch) -> bool:
    """Fetch from the first of ``hosts`` that gives it; whether one did."""
    what = f"the {wanted.kind} {wanted.which}".rstrip()
    for host in hosts:
        try:
            with ctx.progress.step("fetch", f"fetching {what} from {host.name}"):
                _resumed(ctx, fleet, host, wanted)
        except Interrupted:
            raise
        except LabError as error:
            ctx.progress.note("fetch", f"{what} was not fetched: {error}")
        else:
            return True
    return False


def _resumed(ctx: Context, fleet: Fleet, host: Host, wanted: Fetch) -> None:
    """Fetch from ``host``; where the connection breaks, the rest a little later."""
    for attempt in range(1, _TRIES + 1):
        try:
            _fetched(ctx, fleet, host, wanted)
        except Broken as error:
            if attempt == _TRIES:
                raise
            ctx.progress.note("fetch", f"{error}; it is resumed")
            until = time.monotonic() + _PAUSE
            while time.monotonic() < until:
                ctx.progress.halt()
                time.sleep(0.1)
        else:
            return


def _fetched(ctx: Context, fleet: Fleet, host: Host, wanted: Fetch) -> None:
    with _connected(fleet, host) as peer:
        peer.send(msgspec.json.encode(wanted).decode())
        archive = _Archive(peer, host.name, ctx.progress.halt)
        with io.BufferedReader(archive, _BUFFER) as source:
            import_archive(
                ctx, wanted.kind, source, ImportOptions(resume=True), speaker=Speaker(archive.voice)
            )


@contextmanager
def _connected(fleet: Fleet, host: Host) -> Iterator[Connection]:
    """A WebSocket to another host; raises Broken, and HostUnfit if it refuses."""
    url = f"wss{host.url.removeprefix('https')}{PATH}"
    try:
        with connect(
            url, ssl=fleet.context(), server_hostname=host.name, compression=None, proxy=None,
            open_timeout=_CONNECT, close_timeout=_CONNECT, max_size=_MESSAGE,
        ) as peer:  # fmt: skip
            yield peer
    except InvalidStatus as error:
        raise HostUnfit(
            f"the host {host.name} gives no archives: status {error.response.status_code}",
            hint="its program may be an older one",
        ) from None
    except (OSError, WebSocketException) as error:
        raise _broken(host.name, error) from error


def _broken(name: str, error: Exception) -> Broken:
    return Broken(f"the connection to the host {name} broke: {error or type(error).__name__}")


class _Archive(io.RawIOBase):
    """What the other host sends, and ``voice``, which says what is wanted of it."""

    def __init__(self, peer: Connection, name: str, halt: Callable[[], None]) -> None:
        super().__init__()
        self.voice = _Voice(peer, name)
        self._peer, self._name, self._halt = peer, name, halt
        self._rest = memoryview(b"")

    def readable(self) -> bool:
        """It is read only."""
        return True

    def readinto(self, buffer: Any, /) -> int:
        """What has arrived; 0 at the end. Raises Broken, HostUnfit with the other host's reason."""
        if not self._rest:
            self._rest = memoryview(self._message())
        size = min(len(buffer), len(self._rest))
        buffer[:size] = self._rest[:size]
        self._rest = self._rest[size:]
        return size

    def _message(self) -> bytes:
        """The next message, empty at the end."""
        late = time.monotonic() + STALL
        while True:
            self._halt()
            try:
                message = self._peer.recv(timeout=_LOOK)
            except TimeoutError:
                if time.monotonic() > late:
                    raise Broken(f"the host {self._name} sent nothing for {STALL:.0f} s") from None
                continue
            except (OSError, ConnectionClosed) as error:
                raise _broken(self._name, error) from error
            if isinstance(message, bytes):
                return message
            raise _refused(self._name, message)


class _Voice:
    """Lines that are sent to the other host."""

    def __init__(self, peer: Connection, name: str) -> None:
        self._peer, self._name = peer, name

    def write(self, data: bytes, /) -> None:
        """Send a line; raises Broken."""
        try:
            self._peer.send(data.decode())
        except (OSError, ConnectionClosed) as error:
            raise _broken(self._name, error) from error

    def flush(self) -> None:
        """Nothing is held back."""


def _refused(name: str, text: str) -> LabError:
    """Why another host gives nothing, in its words."""
    found: Any = None
    with suppress(ValueError, RecursionError):
        found = json.loads(text)
    detail = found.get("detail") if isinstance(found, dict) else None
    why = harmless(str(detail)[:500]) if detail else "it sent what is no archive"
    return HostUnfit(f"the host {name}: {why}")
