"""``lab dataset``: images with data, named and versioned, from which labs are made."""

from __future__ import annotations

import json
import re
import secrets
import time
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from dataclasses import asdict, dataclass, field, replace
from functools import partial
from pathlib import Path
from typing import Any

from lab import host
from lab.blueprints import blueprint
from lab.datasets import directory
from lab.datasets import source as sources
from lab.datasets.columns import Column
from lab.datasets.generate import estimate
from lab.datasets.live import Selection, require_server
from lab.datasets.rules import Rules
from lab.datasets.rules import parse as parse_rules
from lab.datasets.rules import read as read_rules
from lab.datasets.rules import scan as scan_columns
from lab.datasets.source import (
    BackupDirectory,
    BackupStream,
    DumpDirectory,
    DumpFile,
    LabCapture,
    Source,
    StandardInput,
    Sysbench,
    Tpcc,
    Uploaded,
)
from lab.datasets.survey import suits
from lab.errors import Conflict, InvalidSpec, LabError, LimitReached, NotFound
from lab.exchange.pipes import reading
from lab.imagebuild import isolate
from lab.imagebuild.recipe import load as load_recipe
from lab.lifecycle import promotion
from lab.lifecycle.captures import retire
from lab.lifecycle.core.build_lock import build_lock
from lab.lifecycle.core.context import Context
from lab.lifecycle.core.views import DatasetView, PersonalColumn
from lab.lifecycle.datasets import physical
from lab.lifecycle.datasets import spool as spools
from lab.lifecycle.datasets.loader import Refused, Server, TableFacts, boot, put, refused
from lab.lifecycle.datasets.masking import columns_of, mask, require_mimesis
from lab.lifecycle.datasets.pace import Pace
from lab.lifecycle.datasets.physical import Stored
from lab.lifecycle.datasets.spool import Spool
from lab.lifecycle.images import image as images
from lab.lifecycle.images import publish
from lab.lifecycle.images.engine import choose
from lab.lifecycle.images.publish import BASE
from lab.lifecycle.images.ready import Image
from lab.lifecycle.images.versions import named, versions_of
from lab.lifecycle.nodes.inspect import record_of
from lab.names import Owner, VolumeName, check_dataset_name, dataset_key
from lab.paths import PRIVATE, REACHABLE, make_directory, writing
from lab.spec import GIB, MIB, LabSpec, NodeSize, format_size
from lab.state.records import ImageRecord
from lab.state.store import Store
from lab.storage import Volume
from lab.storage.stream import StreamReader

INFO = "dataset.json"
"""The name of what is recorded of a version, in the directory of its image."""
MASK = "the masking rules"
STAGE = "stage"
"""The node whose server has data that is not masked; its disks are destroyed."""
_ALL = Selection()
_SPOOL, _MASKED = "spool", "masked"
"""Volumes with SQL."""
_BACKUP = "backup"
"""A volume with a physical backup."""
_ERROR = re.compile(r"^ERROR \d+ \(\w+\) at line (\d+)", re.MULTILINE)
_MEMORY = 1024 * MIB
"""Of the loader, in bytes."""
_GROWTH = 2
"""What tables need of their dump's size, at most, with indexes: measured 1.1 to 1.6."""
_BACKUP_GROWTH = 1.25
"""What the files of a backup grow to while they are prepared, upgraded and used."""
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
class Made:
    """How a version was made: enough to make the next one.

    ``source``: its text; ``files``: absolute paths of further SQL; ``keep``: how many versions are
    kept, 0 for all.
    """

    source: str
    blueprint: str
    files: tuple[str, ...] = ()
    keep: int = 0
    mask: str = ""
    """The file of masking rules, as it was."""
    selection: Selection = field(default_factory=Selection)
    """Of a live server."""
    loaded: int = 0
    """Bytes of SQL, and of a physical backup."""
    tables: tuple[TableFacts, ...] = field(default_factory=tuple)
    columns: tuple[Column, ...] = field(default_factory=tuple)
    sql: str = ""
    """Further SQL, executed after that of ``files``."""
    lab_project: str = ""
    """Of the lab that it is made from: another lab may have its name later."""


def create(
    ctx: Context,
    name: str,
    text: str,
    *,
    plan: str = "galera",
    files: Sequence[Path] = (),
    keep: int = 0,
    rules: Path | None = None,
    selection: Selection = _ALL,
    mask: str = "",
    sql: str = "",
    upload: Path | None = None,
) -> DatasetView:
    """Make the first version of a dataset from the source ``text``, and then of SQL ``files``.

    ``rules``: a file of masking rules, which is applied to all of it before anything is captured.
    ``selection``: what of a live server is loaded; its password is in the environment or a file.
    ``mask``, ``sql``: rules and further SQL as texts; ``upload``: the file of an Uploaded source.
    Its engine is MariaDB, which labs of the blueprint ``plan`` must be able to use. Nothing is left
    when it fails. Raises InvalidSpec, Conflict if there is such a dataset, HostUnfit, NotReady.
    """
    check_dataset_name(name)
    source = sources.parse(text)
    require_server(selection, source)
    if selection.defaults_file:
        path = str(Path(selection.defaults_file).absolute())
        selection = replace(selection, defaults_file=path)
    if isinstance(source, LabCapture):
        plan = _check_promotion(ctx, source, files, bool(rules or mask or sql))
    paths = tuple(str(Path(file).absolute()) for file in files)
    text_of_rules = _rules_text(rules) if rules else check_rules(mask)
    made = Made(text, plan, paths, keep, text_of_rules, selection, sql=sql)
    if isinstance(source, LabCapture):
        made = replace(made, lab_project=record_of(ctx, source.lab).project)
    project = ctx.origin.project
    with _series(ctx, name):
        check_free(ctx.store, name, project)
        return _make(ctx, name, made, project, upload)


def check_free(store: Store, name: str, project: str) -> None:
    """Raise Conflict if there is a dataset of that name, or what is left of another project's."""
    there = sorted(
        (record for record in store.images.all() if record.dataset == name),
        key=lambda record: record.version,
    )
    if any(record.project != project for record in there):
        raise Conflict(f"the name {name} is taken by another dataset", hint="choose another name")
    if ready := [r for r in there if r.state == "ready" and not r.removing]:
        raise Conflict(
            f"dataset {name} exists: its latest version is {ready[-1].version}",
            hint=f"`lab dataset refresh {name}` makes the next version",
        )


def refresh(ctx: Context, name: str, *, keep: int | None = None) -> DatasetView:
    """Make the next version from the same source; versions beyond those to keep are removed.

    Those that labs use go with the last of these labs. ``keep``: None for what ``create`` was
    given. Raises as ``create``, and NotFound.
    """
    with _series(ctx, name):
        record = named(ctx, name)
        made = _made(ctx, record)
        check_refreshable(name, made)
        source = sources.parse(made.source)
        if (
            isinstance(source, LabCapture)
            and record_of(ctx, source.lab).project != made.lab_project
        ):
            raise NotFound(
                f"the lab {source.lab} that dataset {name} was made from is gone",
                hint="another project has a lab of that name now",
            )
        view = _make(ctx, name, replace(made, keep=made.keep if keep is None else keep),
                     record.project)  # fmt: skip
        there = [one for one in versions_of(ctx, name) if not one.removing]
        if most := made.keep if keep is None else keep:
            for old in there[:-most]:
                remove(ctx, f"{name}@{old.version}", defer=True)
        return view


def check_refreshable(name: str, made: Made) -> None:
    """Raise InvalidSpec if the source of a dataset can be read only once."""
    source = sources.parse(made.source)
    if isinstance(source, StandardInput | Uploaded):
        what = "an upload" if isinstance(source, Uploaded) else "standard input"
        raise InvalidSpec(
            f"dataset {name} was read from {what}, which cannot be read again",
            hint=f"`lab dataset rm {name}`, then create it again",
        )


def made_by(ctx: Context, job: str) -> DatasetView | None:
    """The version that a job of the service has made; None if it has not.

    What an interrupted attempt left is removed. Raises Conflict if that cannot be done now.
    """
    for record in ctx.store.images.all():
        if record.dataset and record.job == job:
            if record.state == "ready":
                return _view(ctx, record)
            retire.remove(ctx, record.key)
    return None


def datasets(ctx: Context) -> list[DatasetView]:
    """All versions of all datasets, by name, also those being made."""
    found = [record for record in ctx.store.images.all() if record.dataset]
    found.sort(key=lambda record: (record.dataset, record.version))
    return [_view(ctx, record) for record in found]


def dataset(ctx: Context, text: str) -> DatasetView:
    """One version, the latest unless ``text`` says which; raises NotFound."""
    return _view(ctx, named(ctx, text, removing=True), columns=True)


def described(ctx: Context, record: ImageRecord, *, columns: bool = False) -> DatasetView:
    """What there is to say of a version; ``columns``: with its columns."""
    return _view(ctx, record, columns=columns)


def memory_of(store: Store, text: str) -> int:
    """Bytes of memory of the guest that makes a dataset of a source; raises as ``foreseen``."""
    source = sources.parse(text)
    if isinstance(source, LabCapture):
        return max(node.size.memory for node in store.lab_with_nodes(source.lab).plans[:1])
    return _MEMORY


def how_made(ctx: Context, record: ImageRecord) -> Made:
    """How a version was made; raises NotFound if that is lost."""
    return _made(ctx, record)


def foreseen(store: Store, text: str, upload: Path | None = None) -> int:
    """Bytes of SQL, or of disks, of a source, as far as they are known before; 0: not known.

    Raises InvalidSpec, and NotFound for an unknown lab.
    """
    source = sources.parse(text)
    if isinstance(source, LabCapture):
        return sum(node.size.disk for node in store.lab_with_nodes(source.lab).plans[:1])
    return upload.stat().st_size if upload else _size_of(source, ())


def scan(ctx: Context, text: str) -> list[PersonalColumn]:
    """The columns of a version that look personal and that its rules do not cover."""
    made = _made(ctx, named(ctx, text, removing=True))
    rules = parse_rules(made.mask.encode(), MASK) if made.mask else None
    return [
        PersonalColumn(str(one.column), one.reason, one.rule)
        for one in scan_columns(made.columns, rules)
    ]


def remove(ctx: Context, text: str, *, defer: bool = False) -> bool:
    """Remove the version ``shop@2``, or all versions of ``shop``; whether they are gone.

    One that labs use is refused, or with ``defer`` no new lab gets it, and it is removed with the
    last of these labs. Raises NotFound, and Conflict: the others are removed.
    """
    record = named(ctx, text, removing=True)
    wanted = [record] if "@" in text else versions_of(ctx, record.dataset)
    kept: list[Conflict] = []
    for one in wanted:
        try:
            retire.remove(ctx, one.key)
        except Conflict as error:
            kept.append(error)
            if defer and one.state == "ready":
                ctx.store.images.update(one.key, removing=True)
                what = f"{one.dataset}@{one.version} is removed with its last lab: {error.what}"
                ctx.progress.note("dataset", what)
    if kept and not defer:
        raise kept[0]
    return not kept


def _rules_text(path: Path) -> str:
    """The content of a file of rules; raises InvalidSpec."""
    read_rules(path)
    require_mimesis()
    return path.read_text(encoding="utf-8")


def check_rules(text: str) -> str:
    """``text`` if it is empty, or masking rules; raises InvalidSpec, HostUnfit without mimesis."""
    if text:
        parse_rules(text.encode(), MASK)
        require_mimesis()
    return text


@contextmanager
def _series(ctx: Context, name: str) -> Iterator[None]:
    """Hold the lock of a dataset's versions: two commands do not make the same one."""
    with build_lock(ctx, "image", f"dataset.{name}"):
        yield


def _check_promotion(ctx: Context, source: LabCapture, files: Sequence[Path], changed: bool) -> str:
    """The blueprint of a lab that becomes a dataset; raises NotFound and InvalidSpec."""
    record = record_of(ctx, source.lab)
    if record.engine != "mariadb":
        raise InvalidSpec(f"{source}: its engine is {record.engine}, a dataset's is mariadb")
    if files or changed:
        raise InvalidSpec(
            f"{source}: a lab becomes a dataset as it is: neither masked nor with further SQL",
            hint="execute the statements in a branch of the lab, and make the dataset from that",
        )
    return record.blueprint


def _make(
    ctx: Context, name: str, made: Made, project: str, upload: Path | None = None
) -> DatasetView:
    source = sources.parse(made.source)
    if isinstance(source, LabCapture):
        return _promote(ctx, name, made, source, project)
    if isinstance(source, Uploaded):
        if upload is None or not upload.is_file():
            raise InvalidSpec(f"{source} is not there any more", hint="upload the file again")
        source = DumpFile(upload, source.packing, str(source))
    plan = blueprint(made.blueprint)
    spec = LabSpec(made.blueprint, engine="mariadb")
    recipe = load_recipe(choose(ctx, plan, spec).recipe)
    profile = ctx.settings.profile_of("")
    version = _next(ctx, name)
    key = dataset_key(recipe.name, name, version)
    base = images.key_of(recipe, ctx.settings.layout, profile)
    with (
        images.using(ctx, recipe, base, profile) as image,
        build_lock(ctx, "image", key),
    ):
        began = time.time()
        record = ImageRecord(
            key, recipe.name, recipe.engine, "", "building", began, began,
            dataset=name, version=version, parent=base, project=project, job=ctx.origin.job,
        )  # fmt: skip
        with images.making(ctx, record):
            done = _load(ctx, key, image, made, name, source)
            facts = publish.derive(ctx, key, images.built(ctx, base))
            _write(ctx, key, done)
            images.is_ready(ctx, key, facts, time.time() - began)
    return replace(_view(ctx, ctx.store.images.get(key)), steps=tuple(ctx.progress.steps))


def _promote(ctx: Context, name: str, made: Made, source: LabCapture, project: str) -> DatasetView:
    began = time.time()
    with promotion.captured(ctx, source) as (capture, nodes_images):
        base = record_of(ctx, source.lab).image
        of = ctx.store.images.get(base)
        version = _next(ctx, name)
        key = dataset_key(of.recipe, name, version)
        with build_lock(ctx, "image", key):
            record = ImageRecord(
                key, of.recipe, of.engine, "", "building", began, began,
                dataset=name, version=version, project=project, job=ctx.origin.job,
            )  # fmt: skip
            with images.making(ctx, record):
                owner = Owner("image", key)
                server = promotion.wake(ctx, owner, STAGE, capture, nodes_images)
                with ctx.progress.step("rest", "stopping the server"):
                    server.forget()
                    tables, columns = server.analyse(), columns_of(server)
                    server.rest(nodes_images[server.node.image])
                with ctx.progress.step("copy", "copying the disks"):
                    copies = promotion.copy_disks(ctx, server.node, nodes_images)
                    server.discard()
                    facts = publish.derive(ctx, key, images.built(ctx, base), copies)
                _write(ctx, key, replace(made, tables=tuple(tables), columns=columns))
                images.is_ready(ctx, key, facts, time.time() - began)
    return replace(_view(ctx, ctx.store.images.get(key)), steps=tuple(ctx.progress.steps))


def _next(ctx: Context, name: str) -> int:
    """The number of a dataset's next version."""
    return max((record.version for record in versions_of(ctx, name)), default=0) + 1


def _load(ctx: Context, key: str, image: Image, made: Made, name: str, source: Source) -> Made:
    files = [Path(file) for file in made.files]
    rules = parse_rules(made.mask.encode(), MASK) if made.mask else None
    work = ctx.home.build(key)
    try:
        isolate.remove_tree(work)
        make_directory(work, PRIVATE)
        _check_room(ctx, source, files)
        if made.sql:
            files.append(_further(work, made.sql))
        data = _data(ctx, source, files, work, image, made, name)
        tables, columns = _load_data(ctx, Owner("image", key), image, data, rules, name)
    finally:
        isolate.remove_tree(work)
    if foreign := [t for t in tables if t.engine.lower() not in ("innodb", "sequence")]:
        some = ", ".join(f"{t.database}.{t.name} ({t.engine})" for t in foreign[:5])
        ctx.progress.note("dataset", f"Galera replicates tables of InnoDB only, not {some}")
    return replace(made, loaded=data.size, tables=tuple(tables), columns=columns)


def _data(
    ctx: Context,
    source: Source,
    files: Sequence[Path],
    work: Path,
    image: Image,
    made: Made,
    name: str,
) -> _Data:
    """The files that a server loads, in the directory ``work``; raises InvalidSpec, HostUnfit."""
    engine, backup, sql = image.engine, None, None
    with ctx.progress.step("read", f"reading {source}"):
        pace = Pace(ctx.progress, "read", _size_of(source, files))
        read = partial(_within, ctx, pace)
        if isinstance(source, BackupDirectory | BackupStream):
            backup = physical.write(source, work / "backup", engine.version, read)
            if not files:
                return _Data(backup, None)
        else:
            sql = source
        spool = spools.write(sql, files, work / "spool", name, read, made.selection)
    for misfit in suits(spool.found, engine.name, engine.version):
        ctx.progress.note("dataset", misfit.what)
    return _Data(backup, spool)


def _further(work: Path, sql: str) -> Path:
    """A file with the further SQL that came as a text."""
    path = work / "further.sql"
    with writing(path):
        path.touch(0o600)
        path.write_text(sql, encoding="utf-8")
    return path


def _within(ctx: Context, pace: Pace, done: int) -> None:
    """So many bytes of SQL were read; raises LimitReached if the project may not have them."""
    if ctx.data is not None and done > ctx.data:
        raise LimitReached(
            f"the dataset has more than {format_size(ctx.data)} of SQL, which is the limit here",
            hint="load less, or remove datasets and labs of the project",
        )
    pace(done)


def _load_data(
    ctx: Context, owner: Owner, image: Image, data: _Data, rules: Rules | None, name: str
) -> tuple[list[TableFacts], tuple[Column, ...]]:
    """Make the disks of ``owner``; with ``rules`` those of a server that has only masked data.

    Masking leaves what was there in undo logs, redo logs and free blocks. So a first server loads
    and masks, and its dump is loaded by a second one on fresh disks.
    """
    profile = ctx.settings.profile_of("")
    size = NodeSize(memory=_MEMORY, disk=_disk(ctx, image, data.size))
    disks = _disks(ctx, owner, BASE if rules is None else STAGE, data)
    if rules is None:
        server = boot(ctx, owner, BASE, image, size, profile, disks)
        _fill(server, data)
    else:
        masked = put(ctx, VolumeName(owner, STAGE, _MASKED), 2 * data.size + GIB)
        server = boot(ctx, owner, STAGE, image, size, profile, [*disks, masked])
        _fill(server, data)
        with ctx.progress.step("mask", "masking the data"):
            databases = mask(server, rules, _secret(ctx, owner, name))
            length = server.write(_MASKED, databases) if databases else 0
            server.discard(keep=[masked.name])
        server = boot(ctx, owner, BASE, image, size, profile, [masked])
        with ctx.progress.step("load", "loading the masked data"):
            try:
                server.read(_MASKED, length, Pace(ctx.progress, "load", length))
            except Refused as error:
                raise refused(error, "the masked data") from None
    with ctx.progress.step("rest", "stopping the server"):
        tables, columns = server.analyse(), columns_of(server)
        server.rest(image)
    return tables, columns


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
            server.read(_SPOOL, spool.size, Pace(ctx.progress, "load", spool.size))
        except Refused as error:
            where = spool.path.name
            if found := _ERROR.search(str(error)):
                (content,) = ctx.storage.snapshot([disk], "refused")
                with reading(partial(ctx.storage.send, content, plain=True)) as stream:
                    data = (chunk for _, chunk in StreamReader(stream).extents())
                    where = spool.blame(data, int(found[1]))
            raise refused(error, where) from None


def _secret(ctx: Context, owner: Owner, name: str) -> bytes:
    """The secret of a dataset's masked values: that of its versions, so that they stay equal."""
    path = ctx.home.private(owner) / "mask-secret"
    make_directory(path.parent.parent, REACHABLE)
    make_directory(path.parent, PRIVATE)
    for record in versions_of(ctx, name):
        there = ctx.home.private(Owner("image", record.key)) / path.name
        if there.is_file() and there != path:
            secret = there.read_bytes()
            break
    else:
        secret = secrets.token_bytes(32)
    with writing(path):
        path.touch(0o600)
        path.write_bytes(secret)
    return secret


def _size_of(source: Source, files: Sequence[Path]) -> int:
    """Bytes that will be read, as far as they are known before; 0: not known."""
    if isinstance(source, Sysbench | Tpcc):
        known = estimate(source)
    elif isinstance(source, DumpFile) and not source.packing and source.path.is_file():
        known = source.path.stat().st_size
    elif isinstance(source, DumpDirectory):
        known = directory.size(source)
    elif isinstance(source, BackupDirectory | BackupStream):
        known = physical.size(source)
    else:
        known = 0
    if not known:
        return 0
    return known + sum(file.stat().st_size for file in files if file.is_file())


def _check_room(ctx: Context, source: Source, files: Sequence[Path]) -> None:
    """Raise HostUnfit unless disk and memory are enough for a source of known size."""
    growth = _BACKUP_GROWTH if isinstance(source, BackupDirectory | BackupStream) else _GROWTH
    needed = int((1 + growth) * _size_of(source, files)) + GIB
    space = ctx.storage.space()
    host.check_space(
        space.free, ctx.settings.space_floor, ctx.home.root, needed=needed, what="the dataset"
    )
    host.check_memory([_MEMORY], host.memory(), ctx.settings.memory_floor)


def _disk(ctx: Context, image: Image, size: int) -> int:
    """The bytes of a node's disk for a dump of ``size``; 0: the image's are enough."""
    least = images.snapshots(ctx, image)[image.grows].size
    needed = -(-(_GROWTH * size + _ROOM) // GIB) * GIB
    return needed if needed > least else 0


def _write(ctx: Context, key: str, made: Made) -> None:
    path = ctx.home.image(key) / INFO
    with writing(path):
        path.touch(0o600)  # rules and SQL may have secrets
        path.write_text(json.dumps(asdict(made), indent=2) + "\n", encoding="utf-8")


def _made(ctx: Context, record: ImageRecord) -> Made:
    path = ctx.home.image(record.key) / INFO
    try:
        values: dict[str, Any] = json.loads(path.read_text(encoding="utf-8"))
        values["files"] = tuple(values["files"])
        values["selection"] = _selection(**values.get("selection", {}))
        values["tables"] = tuple(TableFacts(**table) for table in values["tables"])
        values["columns"] = tuple(_column(**column) for column in values["columns"])
        return Made(**values)
    except (OSError, ValueError, KeyError, TypeError) as error:
        raise NotFound(
            f"dataset {record.dataset}@{record.version} has lost its {INFO}",
            hint="create it again under another name",
        ) from error


def _selection(*, defaults_file: str = "", **names: Sequence[str]) -> Selection:
    return Selection(defaults_file=defaults_file, **{key: tuple(names[key]) for key in names})


def _column(*, references: Sequence[str] | None, **values: Any) -> Column:
    return Column(**values, references=tuple(references) if references else None)  # type: ignore[arg-type]  # three


def _view(ctx: Context, record: ImageRecord, *, columns: bool = False) -> DatasetView:
    try:
        made = _made(ctx, record)
    except LabError:
        made = Made("", "")
    view = images.image(ctx, record.key)
    return DatasetView(
        name=record.dataset,
        version=record.version,
        state="removing" if record.removing else record.state,
        image=record.key,
        engine=f"{record.engine} {record.engine_version}".strip(),
        source=made.source,
        size=record.size,
        loaded=made.loaded,
        tables=tuple(asdict(table) for table in made.tables),
        created_at=record.created_at,
        seconds=record.build_seconds,
        masked=bool(made.mask),
        used_by=view.used_by,
        project=record.project,
        blueprint=made.blueprint,
        keep=made.keep,
        columns=tuple(f"{one} {one.type}" for one in made.columns) if columns else (),
    )
