"""Captures follow demand: what a lab is cloned from is fetched from another host of the fleet.

Only what this host lacks, and only the chunks of it that an earlier, interrupted transfer has not
brought. Images and datasets as they are; templates with their RAM where that fits this host, else
their disks: labs boot from these until the cluster was formed here
(``lab.lifecycle.archives.fetch.unfit``).
"""

from __future__ import annotations

import hashlib
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

from lab.api.core.captures import elsewhere, fits, others, template_named, versions
from lab.api.core.fleet import Fleet
from lab.client.tls import SerializedSocket
from lab.errors import ROOM_RETRY, HostUnfit, Interrupted, LabError
from lab.exchange.talk import Speaker
from lab.fleet.database import Unreachable
from lab.fleet.hosts import LOST_AFTER, Host, Version
from lab.lifecycle.archives.fetch import Fetch, Lacking, lacking
from lab.lifecycle.archives.import_archive import import_archive
from lab.lifecycle.captures.template_record import check_quota
from lab.lifecycle.core.context import Context
from lab.lifecycle.datasets.dataset import remove
from lab.lifecycle.images.image import versions_of
from lab.lifecycle.images.provenance import read_provenance
from lab.names import parse_dataset
from lab.requests.archives import ImportOptions
from lab.requests.images import BuildTemplate
from lab.requests.labs import CreateLab
from lab.spec import LabSpec
from lab.texts import harmless
from lab.wait import Deadline

PATH = "/v1/fleet/archives"
STALL = 600.0
"""Seconds without a byte after which a transfer is given up."""
PIECE = 256 << 10
"""Bytes of a request that are sent at once; an empty message ends it."""
_CONNECT = 3.0
_LOOK = 0.5
"""Seconds between two looks whether the job was cancelled."""
_TRIES = 5
"""For a transfer that brings nothing; one that brings something has as many again."""
_PAUSE = 2.0
"""Seconds until a transfer whose connection broke is resumed: the other service may be starting."""
_BUFFER = 1 << 20
_MESSAGE = 8 << 20
"""Bytes of a message, at most: a frame of an archive is smaller."""
_PROGRESS = 256 << 10
"""Bytes of an archive that are more than what comes before its parts."""


class Broken(HostUnfit):
    """The connection to the other host ended before the archive did."""


def fetch(ctx: Context, fleet: Fleet, request: LabSpec, project: str | None) -> None:
    """Have what a lab is cloned from here, as far as another host can give it.

    ``project``: whose datasets may be used; None: all. What no host gives is made here, as without
    a fleet. Raises HostUnfit for a dataset that could not be fetched.
    """
    with suppress(Unreachable):  # then as it was known last
        fleet.refresh()
    if request.image:
        _images(ctx, fleet, [request.image], "")
    if request.dataset:
        _dataset(ctx, fleet, request, project)
    has = {key for host in others(fleet) for key in host.facts.images}
    found = lacking(ctx, request, has)
    if not found.template:
        return
    owned = [one for one in versions(ctx.home, ctx.store) if fits(request, one, project)]
    dataset = max(owned, key=_number).at if request.dataset and owned else ""
    named = template_named(ctx.settings, request, dataset)
    _images(ctx, fleet, found.images, named)
    if not (isinstance(request, CreateLab) and request.cold):
        cluster = BuildTemplate.of(request, name="", ttl=None, dataset=dataset, with_ram=False)
        _template(ctx, fleet, cluster, named, project)


def _number(version: Version) -> int:
    return version.version


def _images(ctx: Context, fleet: Fleet, keys: Sequence[str], named: str) -> None:
    """Fetch images that are not here; first from hosts that have the template ``named`` as well.

    Two builds of an image differ, and a template fits the one that it was formed from.
    """
    for key in keys:
        hosts = [host for host in others(fleet) if key in host.facts.images]
        hosts.sort(key=lambda host: named not in host.facts.templates)
        with fleet.one_at_a_time(f"image {key}", ctx.progress.halt):
            record = ctx.store.images.find(key)
            if record is None or record.state != "ready":
                _from_one(ctx, fleet, hosts, Fetch("image", key))


def _template(
    ctx: Context, fleet: Fleet, cluster: BuildTemplate, named: str, project: str | None
) -> None:
    hosts = [host for host in others(fleet) if named in host.facts.templates]
    plain = msgspec.to_builtins(cluster)
    what = hashlib.sha256(json.dumps(plain, sort_keys=True).encode()).hexdigest()
    with fleet.one_at_a_time(f"template {what}", ctx.progress.halt):
        found: Lacking = lacking(ctx, cluster)
        if found.images or not found.template or not hosts:
            return
        check_quota(ctx)  # before all of it has come
        keys = (found.engine, *(key for key in found.all if key != found.engine))
        _from_one(ctx, fleet, hosts, Fetch("template", "", plain, keys, project))


def _dataset(ctx: Context, fleet: Fleet, spec: LabSpec, project: str | None) -> None:
    """Fetch the latest version that the lab can have, unless it is here."""
    name, number = parse_dataset(spec.dataset)
    gone = {one.version for one in versions_of(ctx, name) if one.removing}
    here = [one.version for one in versions(ctx.home, ctx.store) if fits(spec, one, project)]
    if number and number in here:
        return
    there = [
        one for one in elsewhere(fleet, spec, project) if one[1].version > max(here, default=0)
    ]
    there = [one for one in there if one[1].version not in gone]
    if not there:
        return  # if it is not here, `resolve` says so
    latest = there[0][1]
    hosts = [host for host, version in there if version == latest]
    # As what it is recorded here: the other host refuses if it is another project's by now.
    owned = replace(ctx, origin=replace(ctx.origin, project=latest.project))
    wanted = Fetch("dataset", latest.at, project=project, owner=latest.project)
    with fleet.one_at_a_time(f"dataset {latest.at}", ctx.progress.halt):
        ready = [one for one in versions_of(ctx, name) if one.state == "ready"]
        if latest.version in [one.version for one in ready]:
            return
        if not _from_one(owned, fleet, _answering(ctx, fleet, hosts), wanted):
            raise HostUnfit(
                f"the dataset {latest.at} could not be fetched from"
                f" {' or '.join(host.name for host in hosts)}",
                hint="the events of the job say why",
                retry_after=ROOM_RETRY,
            )
    _drop_copies(ctx, fleet, latest)


def _drop_copies(ctx: Context, fleet: Fleet, latest: Version) -> None:
    """Remove earlier versions that were fetched too, that another host has, and no lab uses."""
    there = {one for host in others(fleet) for one in host.facts.versions}
    for one in versions(ctx.home, ctx.store):
        if one.name != latest.name or one.version >= latest.version or one not in there:
            continue
        record = next(r for r in versions_of(ctx, one.name) if r.version == one.version)
        with suppress(LabError):
            if not read_provenance(ctx, record).source:
                remove(ctx, one.at)


def _answering(ctx: Context, fleet: Fleet, hosts: Sequence[Host]) -> list[Host]:
    """Those of ``hosts`` that answer, waited for until one does or all are lost."""
    names, deadline = {host.name for host in hosts}, Deadline.after(LOST_AFTER + 10)
    while True:
        found = [host for host in others(fleet) if host.name in names]
        if any(host.answers for host in found) or not found or deadline.passed:
            return [host for host in found if host.answers]
        ctx.progress.halt()
        time.sleep(_LOOK)
        with suppress(Unreachable):
            fleet.refresh()


def _from_one(ctx: Context, fleet: Fleet, hosts: Sequence[Host], wanted: Fetch) -> bool:
    """Fetch from the first of ``hosts`` that gives it; whether one did."""
    what = f"the {wanted.kind} {wanted.which}".rstrip()
    for host in hosts:
        if not host.answers:
            continue
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
    left = _TRIES
    while True:
        archive = _Archive(host.name, ctx.progress.halt)
        try:
            _fetched(ctx, fleet, host, wanted, archive)
        except Broken as error:
            left = _TRIES if archive.read_bytes > _PROGRESS else left - 1
            if not left:
                raise
            ctx.progress.note("fetch", f"{error}; it is resumed")
        else:
            return
        until = time.monotonic() + _PAUSE
        while time.monotonic() < until:
            ctx.progress.halt()
            time.sleep(0.1)
        with suppress(Unreachable):
            fleet.refresh()
        # It may be elsewhere since its last start.
        host = next((one for one in others(fleet) if one.name == host.name), host)


def _fetched(ctx: Context, fleet: Fleet, host: Host, wanted: Fetch, archive: _Archive) -> None:
    with _connected(fleet, host) as peer:
        archive.begin(peer, msgspec.json.encode(wanted).decode())
        with io.BufferedReader(archive, _BUFFER) as source:
            import_archive(
                ctx, wanted.kind, source, ImportOptions(resume=True), speaker=Speaker(archive)
            )


@contextmanager
def _connected(fleet: Fleet, host: Host) -> Iterator[Connection]:
    """A WebSocket to another host; raises Broken, and HostUnfit if it refuses."""
    url = f"wss{host.url.removeprefix('https')}{PATH}"
    tls = fleet.context()
    tls.sslsocket_class = SerializedSocket
    try:
        peer = connect(
            url, ssl=tls, server_hostname=host.name, compression=None, proxy=None,
            open_timeout=_CONNECT, close_timeout=_CONNECT, max_size=_MESSAGE,
            ping_interval=None,  # what is read late, as a disk is slow, is not broken
        )  # fmt: skip
    except InvalidStatus as error:
        status = error.response.status_code
        if status >= 500:
            raise _broken(host.name, f"status {status}") from None
        raise HostUnfit(
            f"the host {host.name} gives no archives: status {status}",
            hint="its program may be an older one",
        ) from None
    except (OSError, WebSocketException) as error:
        raise _broken(host.name, error) from error
    with peer:
        yield peer


def _broken(name: str, why: object) -> Broken:
    return Broken(f"the connection to the host {name} broke: {why or type(why).__name__}")


class _Archive(io.RawIOBase):
    """What another host sends; what is written is what we say of it."""

    def __init__(self, name: str, halt: Callable[[], None]) -> None:
        super().__init__()
        self.read_bytes = 0
        self._name, self._halt = name, halt
        self._peer: Connection | None = None
        self._rest = memoryview(b"")
        self._ended = False

    def begin(self, peer: Connection, wanted: str) -> None:
        """Say what is wanted; raises Broken."""
        self._peer = peer
        for at in range(0, len(wanted), PIECE):
            self._say(wanted[at : at + PIECE])
        self._say("")

    def readable(self) -> bool:
        """It is read, by a buffer."""
        return True

    def write(self, data: Any, /) -> int:
        """Send a line; raises Broken. Once all has come, nobody needs to hear it."""
        try:
            self._say(bytes(data).decode())
        except Broken:
            if not self._ended:
                raise
        return len(data)

    def readinto(self, buffer: Any, /) -> int:
        """What has arrived; 0 at the end. Raises Broken, HostUnfit with the other host's reason."""
        if not self._rest:
            self._rest = memoryview(self._message())
            self._ended = self._ended or not self._rest
        size = min(len(buffer), len(self._rest))
        buffer[:size] = self._rest[:size]
        self._rest = self._rest[size:]
        self.read_bytes += size
        return size

    def _say(self, text: str) -> None:
        assert self._peer is not None  # noqa: S101  # for the type checker
        try:
            self._peer.send(text)
        except (OSError, ConnectionClosed) as error:
            raise _broken(self._name, error) from error

    def _message(self) -> bytes:
        """The next message, empty at the end."""
        assert self._peer is not None  # noqa: S101  # for the type checker
        late = time.monotonic() + STALL
        while not self._ended:
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
        return b""


def _refused(name: str, text: str) -> LabError:
    """Why another host gives nothing, in its words."""
    found: Any = None
    with suppress(ValueError, RecursionError):
        found = json.loads(text)
    detail = found.get("detail") if isinstance(found, dict) else None
    why = harmless(str(detail)[:500]) if detail else "it sent what is no archive"
    return HostUnfit(f"the host {name}: {why}")
