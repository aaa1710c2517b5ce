"""``lab doctor``: what this host offers, what was chosen and why, what is missing."""

from __future__ import annotations

import os
import platform
import shutil
import sys
from collections.abc import Iterator
from pathlib import Path

from lab import host
from lab.blueprints import blueprint
from lab.config.enginefile import clients
from lab.config.settings import Settings
from lab.errors import LabError
from lab.guest import nocloud
from lab.host import system, zfs
from lab.hypervisor import Capabilities
from lab.imagebuild import isolate
from lab.imagebuild.build import SPACE_NEEDED, TOOLS
from lab.imagebuild.recipe import load
from lab.lifecycle.core.context import Context, hypervisor_of, open_context
from lab.lifecycle.images import failures
from lab.lifecycle.images.order import out_of_reach
from lab.lifecycle.nodes.connection import warning
from lab.lifecycle.nodes.ports import check_published
from lab.names import is_loopback
from lab.paths import HOME_LIMIT, RESERVE, mount_point
from lab.remembered import recall
from lab.run import find
from lab.state import open_store
from lab.storage import Storage
from lab.units import format_size
from lab.views.host import Finding


def doctor(settings: Settings) -> list[Finding]:
    """Look at everything; never raises for what it finds."""
    return [
        *_machine(),
        *_process_1(settings),
        *home_path(settings),
        *_memory(settings),
        *kernel_limits(),
        *_space(settings),
        *_tools(settings),
        *_client(),
        *_published(settings),
        *_bhyve(settings),
        *_guests(settings),
        *_engines(settings),
        *_zfs(settings),
        *_fleet(settings),
    ]


def _machine() -> Iterator[Finding]:
    yield Finding("system", "ok", system.describe())
    yield Finding("python", "ok", f"{platform.python_version()} at {sys.executable}")
    yield Finding("processors", "ok", str(host.processors()))


def _process_1(settings: Settings) -> Iterator[Finding]:
    """Whether process 1 reaps ended guests: libvirtd waits until they are reaped."""
    if hypervisor_of(settings) != "libvirt" or system.system() != "linux":
        return
    from lab.hypervisor.libvirt import session

    if session.Login().systemd or session.reaps(session.PROMPT):
        yield Finding("process 1", "ok", "reaps orphans")
    elif find("tini"):
        yield Finding(
            "process 1", "ok", "does not reap orphans at once: libvirtd is started under tini"
        )
    else:
        advice = "install the package tini, or start the container with an init"
        yield Finding("process 1", "warn", "does not reap orphans: guests may not end", advice)


def home_path(settings: Settings) -> Iterator[Finding]:
    """Whether all programs that are given paths of the home can take them."""
    home, sockets = settings.home, hypervisor_of(settings) == "libvirt"
    try:
        home.check_name()
        if sockets:
            home.check_sockets()
    except LabError as error:
        yield Finding("home", "fail", error.what, error.hint)
        return
    size = f", a path of {home.size} bytes, of {HOME_LIMIT} at most" if sockets else ""
    yield Finding("home", "ok", f"{home.root}{size}")


def _memory(settings: Settings) -> Iterator[Finding]:
    have = host.memory()
    low = have.available < settings.memory_floor + (768 << 20)
    yield Finding(
        "memory",
        "warn" if low else "ok",
        f"{format_size(have.available)} of {format_size(have.total)} available"
        f"{' (a cgroup limits it)' if have.limited else ''},"
        f" {format_size(settings.memory_floor)} is kept free",
        "labs of 768M nodes do not fit" if low else "",
    )


def kernel_limits(proc: Path = Path("/proc")) -> Iterator[Finding]:
    """Sysctls of Linux that keep the guests of one more lab from starting."""
    left = host.aio_left(proc / "sys/fs")
    if left is not None and left < 3 * host.AIO_OF_GUEST:
        text = f"{left} requests of native AIO are left, a guest needs {host.AIO_OF_GUEST}"
        yield Finding("fs.aio-max-nr", "warn", text, host.AIO_REMEDY)
    try:
        strict = (proc / "sys/vm/overcommit_memory").read_text().strip() == "2"
        lines = (line.split() for line in (proc / "meminfo").read_text().splitlines())
        sizes = {words[0].rstrip(":"): int(words[1]) << 10 for words in lines}
        room = sizes["CommitLimit"] - sizes["Committed_AS"]
    except (OSError, ValueError, KeyError, IndexError):
        return
    # libvirt gives each guest RAM of its own as well, which is never touched, but reserved. What
    # guests that run have reserved is in Committed_AS.
    needed = 2 * 3 * (768 << 20)
    if strict and room < needed:
        yield Finding(
            "vm.overcommit_memory",
            "warn",
            f"2: {format_size(max(0, room))} can still be reserved, and guests reserve twice"
            " their memory",
            "sysctl -w vm.overcommit_memory=0, or raise vm.overcommit_ratio",
        )


def _space(settings: Settings) -> Iterator[Finding]:
    root = settings.home.root
    existing = next(p for p in (root, *root.parents) if p.exists())
    free = shutil.disk_usage(existing).free
    low = free < settings.space_floor + SPACE_NEEDED
    found = f"{format_size(free)} free at {existing}"
    if free < RESERVE:
        found = f"the file system at {mount_point(existing)} is full: {found}"
        advice = "`lab gc` removes leftovers, `lab down` a lab"
        yield Finding("space", "fail", found, advice)
        return
    yield Finding(
        "space",
        "warn" if low else "ok",
        f"{found}, {format_size(settings.space_floor)} is kept free",
        f"an image build needs {format_size(SPACE_NEEDED)} more" if low else "",
    )


def _tools(settings: Settings) -> Iterator[Finding]:
    bhyve = hypervisor_of(settings) == "bhyve"
    if bhyve and settings.builder is None:
        return  # images are built on another host and imported
    for tool, package in (nocloud.TOOLS if bhyve else TOOLS).items():
        path = find(tool)
        if path:
            yield Finding(tool, "ok", path)
        else:
            yield Finding(tool, "fail", "missing", f"image builds need the package {package}")
    if settings.builder is None:
        yield _builds()


def _builds() -> Finding:
    """Whether image builds get the namespaces that they need; ordinary users need ids as well."""
    try:
        isolate.check()
    except LabError as error:
        return Finding("image builds", "fail", str(error), error.hint)
    how = "in a user namespace" if os.geteuid() else "as root"
    return Finding("image builds", "ok", how)


def _client() -> Iterator[Finding]:
    found = next(filter(None, map(shutil.which, clients())), None)
    if found:
        yield Finding("sql client", "ok", found)
    else:
        yield Finding("sql client", "note", "none", "`lab sql -e` works without one")


def _published(settings: Settings) -> Iterator[Finding]:
    where, name = settings.publish, settings.published_as
    text = where if where == name else f"{where}, published as {name}"
    try:
        check_published(where)
    except LabError as error:
        yield Finding("sql ports", "fail", str(error), error.hint)
        return
    open_to = warning(where)
    yield Finding("sql ports", "note" if open_to else "ok", text, open_to)


def _fleet(settings: Settings) -> Iterator[Finding]:
    """The database of the fleet that this host belongs to."""
    if settings.serve.database:
        from lab.fleet import checks

        yield from checks.findings(settings.serve.database)


def _bhyve(settings: Settings) -> Iterator[Finding]:
    """What vm-bhyve needs, where guests run under it; one by one, before it is tried."""
    if hypervisor_of(settings) == "bhyve":
        from lab.host import freebsd
        from lab.host.zfs.source import Source

        yield from freebsd.check(Source(), published=not is_loopback(settings.publish))


def _guests(settings: Settings) -> Iterator[Finding]:
    """What only an open context can tell."""
    try:
        with open_context(settings) as ctx:
            capabilities = ctx.hypervisor.capabilities()
            yield from of_hypervisor(capabilities)
            why = capabilities.why_cold
            yield Finding("warm start", "warn" if why else "ok", f"no: {why}" if why else "yes")
            yield from _paths(settings, ctx.hypervisor.run_as)
            if ctx.hypervisor.run_as is not None and not capabilities.reads_ram:
                found = "QEMU before 8.2 needs to write to the files, which all labs share"
                yield Finding("RAM of templates", "note", found, "newer QEMU only reads them")
            yield from _storage(settings, ctx.storage)
            labs = ctx.store.labs.all()
            yield Finding("state", "ok", f"{settings.home.database}, labs: {len(labs)}")
            yield from _halted(ctx)
    except LabError as error:
        yield Finding("guests", "fail", str(error), error.hint)


def _engines(settings: Settings) -> Iterator[Finding]:
    """Preferred engines that are not used now, by recorded failures: no repository is queried."""
    preferred, instead, *_ = blueprint("pxc").engines.items()
    recipe = load(preferred[0])
    answers = recall(failures.answers(settings.home))
    failed = failures.recent(settings.home)
    for failure in failed.values():
        why = f"step {failure.step}: {failure.what}"
        yield Finding(failure.recipe, "warn", str(failure), failure.remedy, why)
    repository = recipe.repository
    known = answers.get(repository.urls[0]) if repository else None
    if known is not None and not known[1] and recipe.name not in failed:
        note = f"{out_of_reach(recipe)}: `lab up pxc` uses {instead[1]}"
        yield Finding(recipe.name, "note", note)


def of_hypervisor(capabilities: Capabilities) -> Iterator[Finding]:
    """What a hypervisor reports of itself, with the reason if its guests are emulated."""
    for topic, value in capabilities.facts.items():
        if topic == "accelerator" and capabilities.why_emulated:
            text = f"{value} (no KVM: {capabilities.why_emulated})"
            slow = "guests are emulated: many times slower than with KVM"
            remedy = capabilities.remedy
            yield Finding(topic, "note", text, remedy or slow, slow if remedy else "")
        else:
            yield Finding(topic, "ok", value)
    if capabilities.captures:
        yield Finding("captures", "ok", capabilities.captures)
    for caution in capabilities.cautions:
        yield Finding(caution.topic, "warn", caution.what, caution.remedy)


def _halted(ctx: Context) -> Iterator[Finding]:
    """Guests that are paused because a disk of theirs could not be written."""
    for guest in ctx.hypervisor.guests().values():
        if guest.why:
            lab = guest.tags.get("owner", "").removeprefix("lab:")
            advice = f"free some space, then `lab start {lab}`: it resumes where it stood"
            yield Finding(guest.name, "warn", f"paused: {guest.why}", advice)


def _storage(settings: Settings, storage: Storage) -> Iterator[Finding]:
    if settings.storage != "zfs":
        yield Finding("storage", "ok", f"{storage.name} at {settings.home.root}")
        return
    from lab.lifecycle.host.host_init import check

    yield from check(settings, storage)


def _zfs(settings: Settings) -> list[Finding]:
    """ZFS, whether volumes are on it or not: then its ARC still takes memory from guests."""
    needs = zfs.Needs(
        dataset=settings.pool if settings.storage == "zfs" else "",
        guests=committed_memory(settings),
        memory_floor=settings.memory_floor,
        space_floor=settings.space_floor,
        profile=settings.profile_of(""),
    )
    return zfs.check(needs, system.system())


def committed_memory(settings: Settings) -> int | None:
    """Bytes that the nodes of running labs have; None if the record cannot be read."""
    if not settings.home.database.exists():
        return 0
    try:
        with open_store(settings.home) as store:
            labs = store.labs_with_nodes()
    except LabError:
        return None
    running = [one for one in labs if one.lab.state in ("creating", "ready")]
    return sum(node.size.memory for one in running for node in one.plans)


def _paths(settings: Settings, run_as: tuple[int, int] | None) -> Iterator[Finding]:
    """QEMU's user must be able to pass every directory above the files it opens."""
    if run_as is None:
        return
    blocked = [
        p for p in (settings.home.root, *settings.home.root.parents) if not _passable(p, run_as)
    ]
    if blocked:
        yield Finding(
            "qemu's access",
            "fail",
            f"user {run_as[0]} cannot pass {blocked[-1]}",
            f"chmod o+x {blocked[-1]}, or set LAB_HOME to another place",
        )
    kvm = Path("/dev/kvm")
    if kvm.exists() and not _writable(kvm, run_as):
        yield Finding(
            "/dev/kvm",
            "warn",
            f"user {run_as[0]} cannot open it: libvirt probes QEMU again at every start",
            "chgrp kvm /dev/kvm && chmod 660 /dev/kvm",
        )


def _passable(path: Path, who: tuple[int, int]) -> bool:
    status = path.stat()
    owner, group = status.st_uid == who[0], status.st_gid in _groups(who)
    return bool(status.st_mode & (0o100 if owner else 0o010 if group else 0o001))


def _writable(path: Path, who: tuple[int, int]) -> bool:
    status = path.stat()
    owner, group = status.st_uid == who[0], status.st_gid in _groups(who)
    return bool(status.st_mode & (0o200 if owner else 0o020 if group else 0o002))


def _groups(who: tuple[int, int]) -> set[int]:
    import pwd

    try:
        user = pwd.getpwuid(who[0])
        return {who[1], *os.getgrouplist(user.pw_name, user.pw_gid)}
    except KeyError:
        return {who[1]}
