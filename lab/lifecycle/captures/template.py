"""Templates: captures of freshly formed clusters, made on first use, then cloned."""

from __future__ import annotations

import hashlib
import json
import time
from collections.abc import Collection, Iterator
from contextlib import AbstractContextManager, ExitStack, contextmanager, nullcontext, suppress
from dataclasses import astuple, replace
from functools import partial
from typing import IO, cast

from lab.bundle.packing import packing
from lab.errors import CommandFailed, Conflict, Interrupted, LabError, NotFound, NotReady
from lab.hypervisor import Guest, GuestShape
from lab.imagebuild.recipe import load
from lab.lifecycle.captures import manifests
from lab.lifecycle.captures.capture import Capture
from lab.lifecycle.captures.freeze import freeze, memory_file
from lab.lifecycle.captures.manifests import Damaged
from lab.lifecycle.captures.template_record import (
    base,
    discard,
    finish,
    labs_of,
    locked,
    making,
    record_for,
    size_of,
    vacant,
)
from lab.lifecycle.captures.warm import warm_up
from lab.lifecycle.core.build_lock import build_lock
from lab.lifecycle.core.context import Context
from lab.lifecycle.images import failures
from lab.lifecycle.images.image import ImageSpec, using_key
from lab.lifecycle.images.order import (
    Order,
    changed,
    choose,
    falls_back,
    is_there,
    resolve,
    using,
)
from lab.lifecycle.images.ready import Image, Images
from lab.lifecycle.nodes import evidence
from lab.lifecycle.nodes.evidence import Subject, Witness
from lab.lifecycle.nodes.form import Formation, form
from lab.lifecycle.nodes.nodes import plan as plan_nodes
from lab.lifecycle.nodes.personalise import rehearse
from lab.lifecycle.nodes.ports import reserve_segment
from lab.lifecycle.nodes.preflight import preflight
from lab.lifecycle.nodes.start_slots import start_slot
from lab.locks.named import lock
from lab.names import Owner, template_ref
from lab.options import shown
from lab.sizes import NodeSize
from lab.spec import LabSpec
from lab.state.records import TemplateRecord
from lab.views.catalog import TemplateView
from lab.views.labs import PlannedNode

RULES = 3
"""The version of how templates are captured: part of their keys."""


@contextmanager
def images_and_capture(
    ctx: Context, order: Order, timeout: float, *, cold: bool = False
) -> Iterator[tuple[Images, Capture | None]]:
    """The images of an order, and the template to clone, kept from removal in the block.

    What is not there is made first. ``cold``: there is no template, labs boot from the disks of the
    images. ``timeout``: seconds that the nodes of a new template may take to get ready.

    The images are those of the first choice of the order that can be used. If it cannot be built,
    or its first template does not form, the next one is used, where the failure is the engine's
    own (``falls_back``); others are raised at once, and the last one if every choice fails.
    """
    failed: list[ImageSpec] = []
    with ExitStack() as held:
        found = None
        while found is None:
            began, (choice, why) = time.time(), choose(ctx, order)
            try:
                found = _take(ctx, order, choice, why, timeout, held, cold, fell_back=bool(failed))
            except Interrupted:
                raise
            except LabError as error:
                held.close()
                if not falls_back(ctx, order, choice, began, failed, error):
                    raise
                failed.append(choice)
        yield found


def _take(
    ctx: Context,
    order: Order,
    choice: ImageSpec,
    why: str,
    timeout: float,
    held: ExitStack,
    cold: bool,
    *,
    fell_back: bool,
) -> tuple[Images, Capture | None] | None:
    """Images and template of ``choice``; None if the failure of another command changes the choice.

    ``why`` is reported if an image or template must be made, or after a fallback.
    """
    exists = is_there(ctx, choice)
    if not exists and changed(ctx, order, choice, "image", choice.key):
        return None
    if why and (fell_back or not exists):
        ctx.progress.note("engine", why)
    images = held.enter_context(using(ctx, order, choice))
    if cold:
        return images, None
    key = key_of(ctx, order, images)
    missing = current(ctx, key) is None
    if missing and changed(ctx, order, choice, "template", key):
        held.close()
        return None
    if why and missing and exists and not fell_back:
        ctx.progress.note("engine", why)
    return images, held.enter_context(_template_kept(ctx, key, order, images, timeout))


@contextmanager
def _template_kept(
    ctx: Context, key: str, order: Order, images: Images, timeout: float
) -> Iterator[Capture]:
    """The template of that key, made first if there is none; kept from removal in the block."""
    while True:
        name = current(ctx, key)
        if name is not None:
            with kept(ctx, name, images) as capture:
                if capture is not None:
                    ctx.store.templates.update(name, used_at=time.time())
                    yield capture
                    return
        _ensure(ctx, key, order, images, timeout)


@contextmanager
def kept(ctx: Context, name: str, images: Images) -> Iterator[Capture | None]:
    """The template ``name``, kept from removal in the block; None if it is not sound."""
    with lock(ctx.home, "template", name, shared=True):
        yield _sound(ctx, name, images)


def key_of(ctx: Context, order: Order, images: Images) -> str:
    """What a template for an order is known by: all that decides whether it fits.

    Where nodes differ, image, size and role of each are part of it. Services are not: ports of the
    host are forwarded from outside at each start, and where a captured guest listens follows from
    its image and the files of the blueprint, whose version is raised when these change.
    """
    spec = order.spec
    parts: list[object] = [
        RULES,
        ctx.home.id,
        images.engine.key,
        order.blueprint.name,
        order.blueprint.version,
        spec.node_count,
        spec.memory,
        spec.cpus,
        spec.disk,
        order.profile.content(),
        ctx.hypervisor.fingerprint(shape_of(images.engine, spec.size)),
    ]
    nodes = [(images.planned(node), node) for node in order.nodes]
    alike = (images.engine, spec.size, nodes[0][1].role)
    if any((image, node.size, node.role) != alike for image, node in nodes):
        for image, node in nodes:
            fingerprint = ctx.hypervisor.fingerprint(shape_of(image, node.size))
            parts.append([node.role, image.key, *astuple(node.size), fingerprint])
    # The engines of nodes are said by their images.
    if said := replace(spec.chosen.of_template, node=()).said:
        parts.append(said)
    return hashlib.sha256(json.dumps(parts).encode()).hexdigest()[:14]


def shape_of(image: Image, size: NodeSize) -> GuestShape:
    """What of a template's guest decides whether its RAM fits."""
    disks = len(image.volumes) + 1  # its seed
    return GuestShape(size.memory, size.cpus, disks, image.boot.kind)


def fitting(ctx: Context, capture: Capture, images: Images) -> Capture:
    """The capture of a lab in use, without RAM and with the reason where that does not fit."""
    if not capture.warm:
        return capture
    if ctx.hypervisor.memory is None:
        return capture.without_ram(ctx.hypervisor.capabilities().why_cold)
    for node in capture.nodes:
        size = node.size or NodeSize()
        if node.fingerprint != ctx.hypervisor.fingerprint(shape_of(images[node.image], size)):
            what = capture.source or capture.label
            return capture.without_ram(
                f"{what} was taken with another QEMU, libvirt, processor or setting"
            )
    return capture


@contextmanager
def images_kept(ctx: Context, record: TemplateRecord) -> Iterator[Images]:
    """The images of a template, kept from removal in the block; raises NotFound."""
    with ExitStack() as held:
        keys = (record.image, *sorted(record.images - {record.image}))
        engine, *others = [held.enter_context(using_key(ctx, key)) for key in keys]
        yield Images(engine, {image.recipe: image for image in others})


def is_for(name: str, key: str) -> bool:
    """Whether the template ``name`` is what ``key`` asks for."""
    return base(name) == key


def build(ctx: Context, asked: LabSpec, *, with_ram: bool = False) -> TemplateView:
    """Make the template for the labs that ``asked`` describes now, if it does not exist.

    ``with_ram``: also if the one that exists has no RAM. That one serves until then, and is removed
    unless labs are clones of it.
    """
    order = resolve(ctx, asked)
    preflight(ctx, order.nodes)
    timeout = ctx.settings.ready_timeout
    with images_and_capture(ctx, order, timeout) as (_, capture):
        name = cast("Capture", capture).owner.name
    if with_ram and not ctx.store.templates.get(name).warm:
        # Without its lock, which labs that are cloned from it share.
        with images_and_capture(ctx, order, timeout, cold=True) as (images, _):
            name = _follow(ctx, name, order, images, timeout)
    return view(ctx.store.templates.get(name))


def _follow(ctx: Context, former: str, order: Order, images: Images, timeout: float) -> str:
    """Form a template beside ``former``, which has no RAM; its name."""
    name = vacant(ctx, base(former), keep=former)
    text = f"making the template {name}, with RAM"
    with build_lock(ctx, "template", name), ctx.progress.step("template", text):
        _make(ctx, name, order, images, timeout)
    with suppress(Conflict):  # in use
        remove(ctx, former)
    return name


def templates(ctx: Context) -> list[TemplateView]:
    """All templates, also those being made and broken ones."""
    return [view(record) for record in ctx.store.templates.all()]


def remove(ctx: Context, key: str) -> None:
    """Remove a template; raises NotFound, and Conflict while labs are clones of it."""
    name = named(ctx, key).key
    with locked(ctx, name):
        if users := labs_of(ctx, name):
            raise Conflict(
                f"the template {name} is used by {', '.join(users)}",
                hint=f"`lab down {' '.join(users)}` first",
            )
        discard(ctx, name)


def named(ctx: Context, key: str) -> TemplateRecord:
    """The record of a template, by its key or the start of it; raises NotFound."""
    records = {record.key: record for record in ctx.store.templates.all()}
    return records[meant(records, key)]


def meant(keys: Collection[str], key: str) -> str:
    """The one of ``keys`` that is ``key``, or starts with it; raises NotFound."""
    found = [key] if key in keys else [one for one in keys if key and one.startswith(key)]
    if len(found) != 1:
        what = "no template" if not found else "more than one template"
        raise NotFound(f"there is {what} {key!r}", hint="`lab template ls` lists them")
    return found[0]


def current(ctx: Context, key: str) -> str | None:
    """The ready template of this key: a broken one may be followed by ``<key>.2`` and so on."""
    ready = [r for r in ctx.store.templates.all() if base(r.key) == key and r.state == "ready"]
    return max(ready, key=lambda record: record.created_at).key if ready else None


def _sound(ctx: Context, name: str, images: Images) -> Capture | None:
    """The capture of a template that is whole, else None, and the template is marked broken."""
    record = ctx.store.templates.find(name)
    if record is None or record.state != "ready":
        return None
    try:
        capture = manifests.read(ctx.home.manifest(template_ref(name)))
        if capture.warm and not record.warm:
            capture = capture.without_ram(record.why)
        if capture.in_use:  # what the RAM of others fits is part of their names
            capture = fitting(ctx, capture, images)
        manifests.check(ctx, capture, images)
    except (Damaged, NotFound) as error:
        mark_broken(ctx, name, str(error))
        return None
    return capture


def mark_broken(ctx: Context, name: str, why: str) -> None:
    """Clone no more labs from a template; the caller holds its lock, shared or not.

    Labs that were cloned from it are not affected. ``lab gc`` removes it once there are none.
    """
    ctx.progress.note("template", f"the template {name} is broken and is not used: {why}")
    ctx.store.templates.update(name, state="broken", why=why)


def give_up_ram(ctx: Context, name: str, why: str) -> None:
    """Have labs boot from a template's disks from now on; the caller holds its lock, shared or not.

    Its RAM files stay until it is removed: others may be mapping them now.
    """
    text = f"labs of the template {name} boot from its disks from now on: {why}"
    if not ctx.store.templates.get(name).source:
        text += f"; after `lab template rm {name}` the next `lab up` forms a new template"
    ctx.progress.note("template", text)
    ctx.store.templates.update(name, warm=False, why=why)


def _ensure(ctx: Context, key: str, order: Order, images: Images, timeout: float) -> None:
    with build_lock(ctx, "template", key, unless=lambda: current(ctx, key) is not None) as held:
        if held and recorded(ctx, key, order, images) is None:
            former = {r.state for r in ctx.store.templates.all() if base(r.key) == key}
            name = vacant(ctx, key)
            why = _why[former == {"building"}] if former else "first use"
            ctx.progress.note("template", f"{why}: forming a cluster to clone from{_time(ctx)}")
            with ctx.progress.step("template", f"making the template {name} ({why})"):
                _make(ctx, name, order, images, timeout)


_why = {False: "the previous template is broken", True: "its creation was interrupted before"}
"""Of a template that is made again, whether there is only one that was never completed."""


def _time(ctx: Context) -> str:
    """How long forming takes, where that was measured: minutes without output look like a hang."""
    emulated = ctx.hypervisor.capabilities().accelerator == "tcg"
    return ", usually 1 to 3 minutes without KVM" if emulated else ""


def recorded(ctx: Context, key: str, order: Order, images: Images) -> str | None:
    """What ``current`` returns; a lost record is recreated, so the lock of ``key`` has to be held.

    The manifest says that the template was finished.
    """
    if name := current(ctx, key):
        return name
    for directory in sorted(ctx.home.templates.iterdir()):
        name = directory.name
        if base(name) != key or ctx.store.templates.find(name) is not None:
            continue
        path = ctx.home.manifest(template_ref(name))
        try:
            capture = manifests.read(path)
        except Damaged:
            continue
        record = record_for(
            ctx, name, order, images,
            warm=capture.warm, began=path.stat().st_mtime, source=capture.source,
        )  # fmt: skip
        ctx.store.templates.add(replace(record, state="ready", size=size_of(ctx, name)))
        ctx.progress.note("template", f"registered the template {name} again: its record was lost")
        return name
    return None


def _make(ctx: Context, name: str, order: Order, images: Images, timeout: float) -> None:
    owner, began = Owner("template", name), time.time()
    warm = ctx.hypervisor.memory is not None
    with making(ctx, name, order, images, warm=warm):
        nodes = tuple(plan_nodes(owner, order.nodes, images))
        formation = Formation(
            owner,
            images,
            order.blueprint,
            order.profile,
            nodes,
            reserve_segment(ctx, owner),
            partial(memory_file, ctx) if warm else None,
        )
        # A time that the user chose may be too short for any engine.
        late = (NotReady,) if timeout >= ctx.settings.ready_timeout else ()
        given = _given(order)
        with (
            start_slot(ctx, ours=not given) as give_back,
            _evidence(ctx, name, formation),
        ):
            formed = give_back if given else lambda: None
            with _engines_failure(ctx, images.engine, order, *late):
                form(ctx, formation, timeout, formed=formed)
            if warm:
                warm_up(ctx, nodes, images)
            with ctx.progress.step("capture", "capturing disks" + (" and RAM" if warm else "")):
                with _engines_failure(ctx, images.engine, order, *late, CommandFailed):
                    rehearse(ctx, nodes, order.blueprint, images, timeout=timeout)
                capture = freeze(ctx, template_ref(name), nodes, images, order.blueprint, warm=warm)
        finish(ctx, capture, time.time() - began)
    if not order.spec.image:
        failures.withdraw(ctx, images.engine.recipe)


@contextmanager
def _evidence(ctx: Context, name: str, formation: Formation) -> Iterator[None]:
    """Keep a bundle of the nodes if what is done with them fails, before they are removed."""
    began = time.time()
    try:
        yield
    except Interrupted:
        raise
    except LabError as failed:
        error = failed

        def write(file: IO[bytes]) -> None:
            subject = _subject(ctx, name, formation)
            found = evidence.collect(ctx, subject, 1, evidence.SOON)
            with packing(file, f"template-{name}") as out:
                evidence.write(ctx, out, subject, found, why=str(error), began=began)

        if any(guest.tags.get("owner") == f"template:{name}" for guest in _guests(ctx)):
            evidence.keep(ctx, f"template-{name}", error, write)
        raise


def _subject(ctx: Context, name: str, formation: Formation) -> Subject:
    states = {guest.name: guest.state for guest in _guests(ctx)}
    nodes = []
    for node in formation.nodes:
        state = states.get(node.guest, "stopped")
        engine = formation.images[node.image].engine
        nodes.append(
            Witness(
                node.name,
                node.guest,
                node.image,
                server=node.has_sql,
                role=node.role,
                state=state,
                engine=f"{engine.name} {engine.version}".strip(),
                silent="" if state == "running" else f"it is {state}",
            )
        )
    image = formation.images.engine
    facts = {
        "name": f"template {name}", "state": "building", "blueprint": formation.blueprint.name,
        "engine": f"{image.engine.name} {image.engine.version}", "image": image.key,
        "profile": formation.profile.name,
    }  # fmt: skip
    return Subject(f"template-{name}", facts, nodes)


def _guests(ctx: Context) -> Collection[Guest]:
    return ctx.hypervisor.guests().values()


def _given(order: Order) -> bool:
    """Whether a user decides what the servers of a template have, read or execute."""
    options = order.blueprint.options
    return bool(order.spec.image or options.set or options.my_cnf or options.init)


def _engines_failure(
    ctx: Context, image: Image, order: Order, *kinds: type[LabError]
) -> AbstractContextManager[None]:
    """Record what fails in the block as the engine's failure (failures.py).

    Not if the user chose the image, other engines beside it, or what its servers start with, and
    not if it has formed a cluster before: the same image works here then.
    """
    # Nor if nodes are smaller than usual: a server may need more.
    size, usual = order.spec.size, NodeSize()
    if (
        _given(order)
        or order.blueprint.options.node
        or size.memory < usual.memory
        or size.cpus < usual.cpus
        or any(r.image == image.key and r.state != "building" for r in ctx.store.templates.all())
    ):
        return nullcontext()
    log = ctx.home.image_log(image.key)
    return failures.recorded(
        ctx, load(image.recipe, engines=ctx.home.engines), "could not form a cluster", log, *kinds
    )


def view(record: TemplateRecord) -> TemplateView:
    """A template, as it is shown."""
    return TemplateView(
        key=record.key,
        blueprint=record.blueprint,
        image=record.image,
        nodes=record.node_count,
        memory=record.memory,
        cpus=record.cpus,
        disk=record.disk or None,
        state=record.state,
        warm=record.warm,
        profile=record.profile,
        size=record.size,
        created_at=record.created_at,
        used_at=record.used_at,
        form_seconds=record.form_seconds,
        why=record.why,
        each=tuple(
            PlannedNode(name, **{**own, "disk": own["disk"] or None})
            for name, own in record.nodes.items()
        ),
        source=record.source,
        options=shown(record.options),
    )
