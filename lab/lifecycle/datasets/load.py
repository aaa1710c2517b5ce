"""Data become the disks of an image: read, loaded by a server, masked, and at rest."""

from __future__ import annotations

import re
import secrets
import shutil
from collections.abc import Sequence
from contextlib import suppress
from dataclasses import replace
from pathlib import Path

from lab import host
from lab.config.enginefile import family_of
from lab.datasets import directory
from lab.datasets.dump import STATEMENT_LIMIT
from lab.datasets.generate import estimate
from lab.datasets.rules import Rules
from lab.datasets.source import (
    DumpDirectory,
    DumpFile,
    Source,
    Sysbench,
    Tpcc,
)
from lab.datasets.survey import suits
from lab.drafts import replaced
from lab.errors import InvalidSpec
from lab.imagebuild import isolate
from lab.lifecycle.core.context import Context
from lab.lifecycle.datasets import apart, physical, transfer
from lab.lifecycle.datasets.loader import Refused, Server, boot, put, refused
from lab.lifecycle.datasets.masking import columns_of, mask
from lab.lifecycle.datasets.outside import Outside, outside
from lab.lifecycle.datasets.physical import Stored
from lab.lifecycle.datasets.spool import Spool
from lab.lifecycle.datasets.worth import Accept, anything, check_source
from lab.lifecycle.images import image as images
from lab.lifecycle.images.order import check_upgrades
from lab.lifecycle.images.provenance import Provenance
from lab.lifecycle.images.publish import BASE
from lab.lifecycle.images.ready import Image
from lab.names import Owner, VolumeName
from lab.options import OptionFile, Options
from lab.paths import PRIVATE, REACHABLE, make_directory
from lab.progress import ByteProgress
from lab.sizes import NodeSize
from lab.storage import Volume
from lab.units import GIB, MIB
from lab.values import dataclass

_SPOOL, _MASKED = "spool", "masked"
"""Volumes with SQL."""
_BACKUP = "backup"
"""A volume with a physical backup."""
MASK = "the masking rules"
STAGE = "stage"
"""The node whose server has data that is not masked; its disks are destroyed."""
_ERROR = re.compile(r"^ERROR(?: \d+ \(\w+\))? at line (\d+)", re.MULTILINE)
_STATEMENT = 64 * MIB
"""Bytes of one statement of what a token sends, at most: max_allowed_packet is rarely larger."""
_SECONDS = 3600
"""Of processor time to read what a token sends, at most."""
_MEMORY = 1024 * MIB
"""Of the loader, in bytes."""
_GROWTH = 2
"""What tables need of their dump's size, at most, with indexes: measured 1.1 to 1.6."""
_MASK_GROWTH = 4
"""What tables need of it while they are masked, in one transaction each, and rebuilt."""
_ROWS_GROWTH = 6
"""What files of rows need of it, at most: 0.1 in a FLOAT has 19 digits. The disk is sparse."""
_BACKUP_GROWTH = 1.25
"""What the files of a backup grow to while they are prepared, upgraded and used."""
_LOOK_EVERY = 64 * MIB
"""Bytes that are written between two looks at the free space."""
_ROOM = 3 * GIB
"""Of a disk: the system, logs, and what the server needs while it loads, in bytes."""


@dataclass(frozen=True)
class _Data:
    """What a server is to load, in files: a physical backup, then SQL."""

    backup: Stored | None
    spool: Spool | None

    @property
    def size(self) -> int:
        """In bytes."""
        return (self.backup.size if self.backup else 0) + (self.spool.size if self.spool else 0)


@dataclass(frozen=True)
class Load:
    """What is loaded for a version of the dataset ``name``."""

    name: str
    image: Image
    """Whose server loads it, into clones of its disks."""
    made: Provenance
    source: Source
    accept: Accept
    """Of the tables that are there then."""
    rules: Rules | None
    """By which it is masked; None: it is not."""


def load(ctx: Context, key: str, asked: Load) -> Provenance:
    """Make the disks of the image ``key`` with the data of a source; what is known of them.

    Raises InvalidSpec, HostUnfit, LimitReached and NotReady; what was made stays if it fails.
    """
    made, source, work = asked.made, asked.source, ctx.home.build(key)
    files = [Path(file) for file in made.files]
    try:
        isolate.remove_tree(work)
        make_directory(work, PRIVATE)
        _check_room(ctx, source, files, masks=asked.rules is not None)
        if made.sql:
            files.append(_further(work, made.sql))
        data = _data(ctx, asked, files, work)
        if data.spool is not None and data.backup is None and asked.accept is not anything:
            check_source(data.spool.found, str(source))
        _check_growth(ctx, source, data.size, masks=asked.rules is not None)
        server, found = _loaded(ctx, Owner("image", key), asked, data)
        with ctx.progress.step("rest", "stopping the server"):
            if made.warm:
                server.try_queries(made.warm)
            tables, columns = server.analyse(), columns_of(server)
            asked.accept(tables)
            server.rest(asked.image)
    finally:
        isolate.remove_tree(work)
    if foreign := [t for t in tables if t.engine.lower() not in ("innodb", "sequence")]:
        some = ", ".join(f"{t.database}.{t.name} ({t.engine})" for t in foreign[:5])
        ctx.progress.note("dataset", f"Galera replicates tables of InnoDB only, not {some}")
    return replace(
        made,
        loaded=data.size,
        tables=tuple(tables),
        columns=columns,
        accounts=found.accounts,
        definers=found.definers,
    )


def _data(ctx: Context, asked: Load, files: Sequence[Path], work: Path) -> _Data:
    """The files that a server loads, in the directory ``work``; raises InvalidSpec, HostUnfit."""
    source, engine, backup, sql = asked.source, asked.image.engine, None, None
    dialect = family_of(engine.name).dialect
    with ctx.progress.step("read", f"reading {source}"):
        pace = ByteProgress(ctx.progress, "read", size_of(source, files))
        read = _Watch(ctx, pace)
        seconds = apart.SECONDS if ctx.data is None else _SECONDS
        if isinstance(source, physical.Physical):
            at = work / "backup"
            backup = apart.backup(
                source, at, engine.version, dialect, read, Stored, seconds=seconds
            )
            physical.check(backup, source, at)
            if backup.upgrade:
                check_upgrades(ctx.home, asked.image.recipe)
            if not files:
                return _Data(backup, None)
        else:
            sql = source
        limit = STATEMENT_LIMIT if ctx.data is None else _STATEMENT
        spool = apart.spool(
            sql, files, work / "spool", asked.name, read, asked.made.selection, limit=limit,
            dialect=dialect, version=engine.version, seconds=seconds,
        )  # fmt: skip
    for note in spool.found.notes:
        ctx.progress.note("dataset", note)
    for misfit in suits(spool.found, engine.name, engine.version):
        if misfit.fatal:
            raise InvalidSpec(f"{source}: {misfit.what}", hint=misfit.hint)
        ctx.progress.note("dataset", misfit.what)
    return _Data(backup, spool)


def _further(work: Path, sql: str) -> Path:
    """A file with the further SQL that came as a text."""
    path = work / "further.sql"
    with replaced(path) as file:
        file.write_text(sql, encoding="utf-8")
    return path


@dataclass
class _Watch:
    """Watches how much is read: what is compressed says how much only while it is unpacked."""

    ctx: Context
    pace: ByteProgress
    looked: int = -_LOOK_EVERY

    def __call__(self, done: int) -> None:
        """So many bytes were read; raises LimitReached, and HostUnfit if space becomes scarce."""
        ctx = self.ctx
        if ctx.data is not None:
            ctx.data(done)
        if done - self.looked >= _LOOK_EVERY:
            self.looked, root = done, ctx.home.root
            host.check_space(shutil.disk_usage(root).free, ctx.settings.space_floor, root)
        self.pace(done)


def _loaded(ctx: Context, owner: Owner, asked: Load, data: _Data) -> tuple[Server, Outside]:
    """A server on the disks of ``owner``, and what the source had beside databases.

    With masking rules one that has only masked data.

    Masking leaves what was there in undo logs, redo logs and free blocks. So a first server loads
    and masks, and its dump is loaded by a second one on fresh disks.
    """
    image, made, profile = asked.image, asked.made, ctx.settings.profile_of("")
    options = loading_options(made.settings, made.my_cnf)
    size = replace(loader_size(), disk=_disk(ctx, image, _GROWTH * data.size))
    disks = _disks(ctx, owner, BASE if asked.rules is None else STAGE, data)
    if asked.rules is None:
        server = boot(ctx, owner, BASE, image, size, profile, disks, options)
        _fill(server, data)
        found = outside(server, masked=False)
    else:
        masked = put(ctx, VolumeName(owner, STAGE, _MASKED), _ROWS_GROWTH * data.size + GIB)
        large = replace(size, disk=_disk(ctx, image, _MASK_GROWTH * data.size))
        server = boot(ctx, owner, STAGE, image, large, profile, [*disks, masked], options)
        _fill(server, data)
        found = outside(server, masked=True)
        with ctx.progress.step("mask", "masking the data"):
            columns = mask(server, asked.rules, _secret(ctx, owner, asked.name))
            accounts = bool(found.accounts)
            written = transfer.write(
                server, _MASKED, columns, accounts=accounts, files=data.backup is None
            )
            server.discard(keep=[masked.name])
        server = boot(ctx, owner, BASE, image, size, profile, [masked], options)
        with ctx.progress.step("load", "loading the masked data"):
            transfer.read(server, _MASKED, written)
    return server, found


def _disks(ctx: Context, owner: Owner, node: str, data: _Data) -> list[Volume]:
    """The volumes of ``node`` that have the data."""
    files = {_BACKUP: data.backup, _SPOOL: data.spool}
    return [
        put(ctx, VolumeName(owner, node, name), file.path) for name, file in files.items() if file
    ]


def _fill(server: Server, data: _Data) -> None:
    if data.backup is not None:
        physical.load(server, _BACKUP, data.backup)
    if data.spool is not None:
        _read(server, data.spool)


def _read(server: Server, spool: Spool) -> None:
    ctx = server.ctx
    disk = VolumeName(server.node.owner, server.node.name, _SPOOL)
    with ctx.progress.step("load", "loading the data"):
        try:
            server.read(_SPOOL, spool.size, ByteProgress(ctx.progress, "load", spool.size))
        except Refused as error:
            where, secret = spool.path.name, False
            if found := _ERROR.search(str(error)):
                (content,) = ctx.storage.snapshot([disk], "refused")
                with ctx.storage.read(content) as read:
                    data = (piece for _, piece in read.extents)
                    where, secret = spool.blame(data, int(found[1]))
            raise refused(error, where, secret=secret) from None


def loading_options(settings: Sequence[str], my_cnf: str) -> Options:
    """Options of the servers that load and mask; raises InvalidSpec."""
    files = (OptionFile(my_cnf),) if my_cnf else ()
    return Options(set=tuple(settings), my_cnf=files)


def _secret(ctx: Context, owner: Owner, name: str) -> bytes:
    """The secret of a dataset's masked values: that of its versions, so that they stay equal."""
    path = ctx.home.private(owner) / "mask-secret"
    make_directory(path.parent.parent, REACHABLE)
    make_directory(path.parent, PRIVATE)
    for record in images.versions_of(ctx, name):
        there = ctx.home.private(Owner("image", record.key)) / path.name
        if there != path:
            with suppress(FileNotFoundError):  # it has none, or is being removed
                secret = there.read_bytes()
                break
    else:
        secret = secrets.token_bytes(32)
    with replaced(path) as file:
        file.write_bytes(secret)
    return secret


def loader_size() -> NodeSize:
    """Memory and processors of the guest that loads; there is one at a time."""
    # The client reads and splits the SQL beside the server, which executes it in one session.
    return NodeSize(memory=_MEMORY, cpus=min(2, host.processors()))


def size_of(source: Source, files: Sequence[Path]) -> int:
    """Bytes that will be read, as far as they are known before; 0: not known."""
    if isinstance(source, Sysbench | Tpcc):
        known = estimate(source)
    elif isinstance(source, DumpFile) and not source.packing and source.path.is_file():
        known = source.path.stat().st_size
    elif isinstance(source, DumpDirectory):
        known = directory.size(source)
    elif isinstance(source, physical.Physical):
        known = physical.size(source)
    else:
        known = 0
    if not known:
        return 0
    return known + sum(file.stat().st_size for file in files if file.is_file())


def _check_room(ctx: Context, source: Source, files: Sequence[Path], *, masks: bool) -> None:
    """Raise HostUnfit unless disk and memory are enough for a source of known size."""
    size = size_of(source, files)
    _check_growth(ctx, source, size, beside=size + GIB, masks=masks)
    host.check_memory([_MEMORY], host.memory(), ctx.settings.memory_floor)


def _check_growth(ctx: Context, source: Source, size: int, *, masks: bool, beside: int = 0) -> None:
    """Raise HostUnfit unless there is space for what data of ``size`` become, and ``beside``."""
    growth = _BACKUP_GROWTH if isinstance(source, physical.Physical) else _GROWTH
    if masks:
        growth = _MASK_GROWTH + 1  # and the masked dump, beside both
    space = ctx.storage.space()
    host.check_space(
        space.free,
        ctx.settings.space_floor,
        ctx.home.root,
        needed=int(growth * size) + beside,
        what="the dataset",
    )


def _disk(ctx: Context, image: Image, size: int) -> int:
    """The bytes of a node's disk for tables of ``size``; 0: the image's are enough."""
    least = images.snapshots(ctx, image)[image.grows].size
    needed = -(-(size + _ROOM) // GIB) * GIB
    return needed if needed > least else 0
