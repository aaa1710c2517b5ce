"""``lab dataset``: images with data, named and versioned, from which labs are made."""

from __future__ import annotations

import time
from collections.abc import Callable, Iterator
from contextlib import ExitStack, contextmanager, suppress
from dataclasses import asdict, replace
from pathlib import Path

from lab.blueprints import blueprint, with_options
from lab.blueprints.dialects import check_loads
from lab.config.enginefile import family_of
from lab.datasets import queries
from lab.datasets import source as sources
from lab.datasets.live import check_programs, require_server
from lab.datasets.rules import parse as parse_rules
from lab.datasets.rules import scan as scan_columns
from lab.datasets.source import (
    DumpFile,
    LabCapture,
    Server,
    Source,
    StandardInput,
    Uploaded,
)
from lab.errors import Conflict, InvalidSpec, LabError, NotFound
from lab.imagebuild.manifest import BuiltImage
from lab.lifecycle.captures import retire
from lab.lifecycle.core.build_lock import build_lock
from lab.lifecycle.core.context import Context
from lab.lifecycle.datasets import of_lab
from lab.lifecycle.datasets.engine import (
    Chosen,
    check_engine,
    check_source,
    choose,
    default_engine,
)
from lab.lifecycle.datasets.load import (
    MASK,
    Load,
    load,
    loader_size,
    loading_options,
    size_of,
)
from lab.lifecycle.datasets.masking import require_mimesis
from lab.lifecycle.datasets.worth import Accept, anything, has_tables, no_less
from lab.lifecycle.images import image as images
from lab.lifecycle.images import publish
from lab.lifecycle.images.image import version_named, versions_of
from lab.lifecycle.images.initial import check_initial
from lab.lifecycle.images.order import required
from lab.lifecycle.images.provenance import Provenance, read_provenance, write_provenance
from lab.lifecycle.nodes.inspect import record_of
from lab.locks.named import lock
from lab.names import Owner, check_dataset_name, dataset_key, node_name
from lab.paths import Home
from lab.requests.datasets import CreateDataset
from lab.sizes import NodeSize
from lab.state.records import ImageRecord, LabRecord
from lab.state.store import Store
from lab.values import dataclass
from lab.views.datasets import DatasetView, PersonalColumn


def create(ctx: Context, asked: CreateDataset) -> DatasetView:
    """Make the first version of a dataset from its source, and then of the further SQL.

    Its engine is one that labs of the blueprint can use. Nothing is left when it fails. Raises
    InvalidSpec, Conflict if there is such a dataset, HostUnfit, NotReady.
    """
    name = asked.name
    check_dataset_name(name)
    source, selection = _source(ctx, asked), asked.selection
    require_server(selection, source)
    if selection.defaults_file:
        path = str(Path(selection.defaults_file).absolute())
        selection = replace(selection, defaults_file=path)
    lab_project = ""
    if isinstance(source, LabCapture):
        chosen = Chosen(_check_lab(ctx, source, asked), "")
        lab_project = record_of(ctx, source.lab).project
    else:
        chosen = choose(ctx, asked.blueprint, asked.engine, source)
    loading_options(asked.settings, asked.my_cnf)
    made = Provenance(
        asked.source,
        chosen.blueprint,
        tuple(str(Path(file).absolute()) for file in asked.files),
        asked.keep,
        check_rules(asked.mask),
        selection,
        sql=asked.sql,
        engine=chosen.engine,
        settings=asked.settings,
        my_cnf=asked.my_cnf,
        warm=queries.check(asked.warm) if asked.warm else "",
        lab_project=lab_project,
    )
    any_tables = asked.force or isinstance(source, LabCapture)
    accept = anything if any_tables else has_tables(str(source))
    with _series(ctx, name):
        check_free(ctx.store, name, ctx.origin.project)
        return _make(ctx, name, made, source, ctx.origin.project, accept)


def _source(ctx: Context, asked: CreateDataset) -> Source:
    """What the text of a request names; raises InvalidSpec."""
    source = sources.parse(asked.source)
    if not isinstance(source, Uploaded):
        return source
    upload = ctx.home.uploads / asked.upload
    if not upload.is_file():
        raise InvalidSpec(f"{source} is not there any more", hint="upload the file again")
    return DumpFile(upload, source.packing, str(source))


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


def refresh(
    ctx: Context, name: str, *, engine: str = "", keep: int | None = None, force: bool = False
) -> DatasetView:
    """Make the next version from the same source; versions beyond those to keep are removed.

    Those that labs use go with the last of these labs. ``engine``: empty for that of the latest
    version. ``keep``: of the versions on the same engine; None for what ``create`` was given;
    ``force``: also if the source has much less than the latest version. Raises as ``create``,
    NotFound, and Conflict for such a source: all versions stay.
    """
    with _series(ctx, name):
        record = version_named(ctx, name)
        made = read_provenance(ctx, record)
        source = refreshable(name, made)
        if engine:
            chosen = another_engine(ctx.home, name, made, engine)
            made = replace(made, blueprint=chosen.blueprint, engine=chosen.engine)
        if isinstance(source, LabCapture):
            of = record_of(ctx, source.lab)
            if of.project != made.lab_project:
                raise NotFound(
                    f"the lab {source.lab} that dataset {name} was made from is gone",
                    hint="another project has a lab of that name now",
                )
            _check_whole(of)
        accept = anything if force else no_less(f"{name}@{record.version}", made.tables)
        made = replace(made, keep=made.keep if keep is None else keep)
        view = _make(ctx, name, made, source, record.project, accept)
        its = ctx.store.images.get(view.image).recipe
        there = [one for one in versions_of(ctx, name) if one.recipe == its and not one.removing]
        if most := made.keep:
            for old in there[:-most]:
                remove(ctx, f"{name}@{old.version}", defer=True)
        return view


def another_engine(home: Home, name: str, made: Provenance, engine: str) -> Chosen:
    """What the next version of a dataset is made on whose request names an engine.

    Raises InvalidSpec for one that is not known or loads no datasets, and for a dataset of a lab.
    """
    if isinstance(sources.parse(made.source), LabCapture):
        raise InvalidSpec(
            f"dataset {name} is made of a lab, and has its engine",
            hint="`lab dump`, then `lab dataset create --engine` from that",
        )
    try:
        return check_engine(home, made.blueprint, engine)
    except InvalidSpec:  # not of this blueprint, perhaps of another one
        return check_engine(home, "", engine)


def refreshable(name: str, made: Provenance) -> Source:
    """The source of a dataset; raises InvalidSpec if it can be read only once."""
    if not made.source:
        raise InvalidSpec(
            f"dataset {name} was imported: its source is not known here",
            hint="refresh it where it was made, then import it again",
        )
    source = sources.parse(made.source)
    if isinstance(source, StandardInput | Uploaded):
        what = "an upload" if isinstance(source, Uploaded) else "standard input"
        raise InvalidSpec(
            f"dataset {name} was read from {what}, which cannot be read again",
            hint=f"`lab dataset rm {name}`, then create it again",
        )
    return source


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
    return _view(ctx, version_named(ctx, text, removing=True), columns=True)


def described(ctx: Context, record: ImageRecord, *, columns: bool = False) -> DatasetView:
    """What there is to say of a version; ``columns``: with its columns."""
    return _view(ctx, record, columns=columns)


def guest_size(store: Store, source: Source | None) -> NodeSize:
    """The guest that makes a dataset of a source, one at a time; None: what is not known."""
    if isinstance(source, LabCapture):
        with suppress(LabError):  # a lab that is gone fails when it is read
            return store.lab_with_nodes(source.lab).plans[0].size
    return loader_size()


def foreseen(store: Store, source: Source) -> int:
    """Bytes of SQL, or of disks, of a source, as far as they are known before; 0: not known.

    Raises NotFound for an unknown lab.
    """
    if isinstance(source, LabCapture):
        return sum(node.size.disk for node in store.lab_with_nodes(source.lab).plans[:1])
    return size_of(source, ())


def scan(ctx: Context, text: str) -> list[PersonalColumn]:
    """The columns of a version that look personal and that its rules do not cover."""
    made = read_provenance(ctx, version_named(ctx, text, removing=True))
    rules = parse_rules(made.mask.encode(), MASK) if made.mask else None
    return [
        PersonalColumn(str(one.column), one.reason, one.rule)
        for one in scan_columns(made.columns, rules)
    ]


def remove(ctx: Context, text: str, *, defer: bool = False) -> bool:
    """Remove the version ``shop@2``, or all versions of ``shop``; whether they are gone.

    Where labs use one of them nothing is removed; or, with ``defer``, no new lab gets that one, and
    it is removed with the last of its labs. Raises NotFound, and Conflict.
    """
    record = version_named(ctx, text, removing=True)
    wanted = [record] if "@" in text else versions_of(ctx, record.dataset)
    with ExitStack() as locks:
        free: list[ImageRecord] = []
        for one in wanted:
            try:
                locks.enter_context(lock(ctx.home, "image", one.key, wait=False))
                retire.check_unused(ctx, one.key)
                free.append(one)
            except Conflict as error:
                if not defer:
                    raise
                if one.state == "ready":
                    ctx.store.images.update(one.key, removing=True)
                    what = f"{one.dataset}@{one.version} is removed with its last lab: {error.what}"
                    ctx.progress.note("dataset", what)
        for one in free:
            retire.discard(ctx, one.key)
    return len(free) == len(wanted)


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


def _check_lab(ctx: Context, source: LabCapture, asked: CreateDataset) -> str:
    """The blueprint of a lab that becomes a dataset; raises NotFound and InvalidSpec."""
    record = record_of(ctx, source.lab)
    if asked.engine:
        raise InvalidSpec(
            f"{source}: the dataset gets the engine of the lab, {record.engine} "
            f"{record.engine_version}",
            hint="leave out the engine",
        )
    if not family_of(record.engine).loads_datasets:
        raise InvalidSpec(f"{source}: its engine, {record.engine}, loads no datasets")
    if asked.files or asked.mask or asked.sql or asked.settings or asked.my_cnf:
        raise InvalidSpec(
            f"{source}: a lab becomes a dataset as it is: neither masked nor with further SQL or"
            " options",
            hint="execute the statements in a branch of the lab, and make the dataset from that",
        )
    _check_whole(record)
    return record.blueprint


def _check_whole(lab: LabRecord) -> None:
    """Raise InvalidSpec if the node of a lab that would wake does not have all data."""
    if lab.plan.options.topology == "fan-in":
        last = node_name(lab.node_count)
        raise InvalidSpec(
            f"lab {lab.name} is a fan-in: n1, of which a dataset would be made, has only its own"
            " data",
            hint=f"{last}, the last node, has everything: make the dataset of a dump of it",
        )


@dataclass(frozen=True)
class _Filling:
    """How the disks of a version are filled, on the image that its server is from."""

    recipe: str
    engine: str
    parent: str
    """The key of the image that its disks are clones of; empty for copies."""
    fill: Callable[[str], tuple[Provenance, BuiltImage]]
    """Makes the disks of the image of this key."""


def _make(
    ctx: Context, name: str, made: Provenance, source: Source, project: str, accept: Accept
) -> DatasetView:
    """Make the next version of a dataset; ``accept``: of the tables that it has."""
    if isinstance(source, Server):
        check_programs(source)
    if isinstance(source, LabCapture):
        opened = _of_lab(ctx, made, source, accept)
    else:
        opened = _loaded(ctx, name, made, source, accept)
    with opened as filling:
        there = [record.version for record in versions_of(ctx, name)]
        version = 1 + max([ctx.above, *there])
        key = dataset_key(filling.recipe, name, version)
        with build_lock(ctx, "image", key):
            began = time.time()
            record = ImageRecord(
                key, filling.recipe, filling.engine, "", "building", began, began, dataset=name,
                version=version, parent=filling.parent, project=project, job=ctx.origin.job,
            )  # fmt: skip
            with images.making(ctx, record):
                ctx.home.create_directory(Owner("image", key))
                write_provenance(ctx, key, made)  # what is known until it is filled
                done, built = filling.fill(key)
                write_provenance(ctx, key, done)
                images.is_ready(ctx, key, built, time.time() - began)
    return replace(_view(ctx, ctx.store.images.get(key)), steps=tuple(ctx.progress.steps))


@contextmanager
def _loaded(
    ctx: Context, name: str, made: Provenance, source: Source, accept: Accept
) -> Iterator[_Filling]:
    """Data that a server loads into clones of its image's disks."""
    plan = blueprint(made.blueprint)
    base = images.spec_of(ctx, required(ctx.home, plan, made.engine or default_engine(plan)))
    check_source(source, base.recipe.engine)
    options = loading_options(made.settings, made.my_cnf)
    check_initial(with_options("single", options, 1), [base.recipe.engine], ["server"])
    rules = parse_rules(made.mask.encode(), MASK) if made.mask else None
    with images.using(ctx, base) as image:
        check_loads(image.engine)

        def fill(key: str) -> tuple[Provenance, BuiltImage]:
            done = load(ctx, key, Load(name, image, made, source, accept, rules))
            return done, publish.derive(ctx, key, images.built(ctx, base.key))

        yield _Filling(base.name, base.recipe.engine, base.key, fill)


@contextmanager
def _of_lab(
    ctx: Context, made: Provenance, source: LabCapture, accept: Accept
) -> Iterator[_Filling]:
    """Copies of the disks of a lab."""
    with of_lab.captured(ctx, source) as (capture, nodes_images, node):
        base = ctx.store.images.get(nodes_images[node.image].key)

        def fill(key: str) -> tuple[Provenance, BuiltImage]:
            return of_lab.copied(ctx, key, node, made, capture, nodes_images, accept)

        yield _Filling(base.recipe, base.engine, "", fill)


def _view(ctx: Context, record: ImageRecord, *, columns: bool = False) -> DatasetView:
    try:
        made = read_provenance(ctx, record, columns=columns)
    except LabError:
        made = Provenance("", "")
    view = images.image(ctx, record.key)
    return DatasetView(
        name=record.dataset,
        version=record.version,
        state="removing" if record.removing else record.state,
        image=record.key,
        engine=f"{record.engine} {record.engine_version}".strip(),
        source=made.source or ("imported" if made.blueprint else ""),
        size=record.size,
        loaded=made.loaded,
        tables=tuple(asdict(table) for table in made.tables),
        created_at=record.created_at,
        seconds=record.build_seconds,
        masked=made.masked or bool(made.mask),
        used_by=view.used_by,
        project=record.project,
        blueprint=made.blueprint,
        keep=made.keep,
        columns=tuple(f"{one} {one.type}" for one in made.columns) if columns else (),
        options=(*made.settings, *(["an option file"] if made.my_cnf else [])),
        accounts=made.accounts,
        definers=made.definers,
    )
