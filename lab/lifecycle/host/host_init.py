"""``lab host init``: from now on volumes are ZVols below a dataset. And what doctor says of it."""

from __future__ import annotations

import os
from collections.abc import Iterator
from pathlib import Path

from lab.config.settings import Settings, config_files, remember
from lab.errors import Conflict, InvalidSpec
from lab.imagebuild.build import SPACE_NEEDED
from lab.lifecycle.core.context import open_storage
from lab.names import check_dataset
from lab.storage import Storage
from lab.storage.zfs.allow import User
from lab.storage.zfs.commands import Commands
from lab.storage.zfs.driver import ZfsStorage
from lab.storage.zfs.setup import delegation, owner, prepare, this_user, version
from lab.units import format_size
from lab.views.host import Finding, HostView


def init(
    settings: Settings,
    pool: str,
    *,
    config: Path | None = None,
    commands: Commands | None = None,
    user: User | None = None,
) -> HostView:
    """Make the dataset ``pool`` the home's, and write that into the user's ``config`` file.

    It can be repeated. What we may not do is among ``missing``: then nothing is written yet.
    Raises Conflict if the home keeps volumes elsewhere or the dataset is used otherwise,
    InvalidSpec, HostUnfit.
    """
    check_dataset(pool)
    config = config or config_files(os.environ)[0]
    settings.home.create()
    _check_settings(settings, pool)
    commands = commands or Commands(pool)
    parent = prepare(pool, settings.home.id, user or this_user(), commands)
    if not parent.missing and settings.pool != pool:
        remember(config, "pool", pool)
    found = commands.find(pool)
    free = found.number("available") if found else 0
    return HostView(
        pool=pool,
        version=parent.version,
        free=free,
        total=free + (found.number("used") if found else 0),
        done=parent.done,
        missing=parent.missing,
        config="" if parent.missing or settings.pool == pool else str(config),
    )


def check(settings: Settings, storage: Storage) -> Iterator[Finding]:
    """What ``lab doctor`` says of the pool; raises HostUnfit if it is not there."""
    commands, home = Commands(settings.pool), settings.home.id
    space = storage.space()
    low = space.free < settings.space_floor + SPACE_NEEDED
    yield Finding(
        "storage",
        "warn" if low else "ok",
        f"zfs below {settings.pool}: ZFS {version(commands)}, {format_size(space.free)} of"
        f" {format_size(space.total)} free, {format_size(settings.space_floor)} is kept free",
        f"an image build needs {format_size(SPACE_NEEDED)} more" if low else "",
    )
    tag = owner(settings.pool, commands)
    if tag != home:
        whose = f"belongs to another home ({tag})" if tag else "belongs to no home"
        yield Finding(
            "zfs parent",
            "fail" if tag else "warn",
            f"{settings.pool} {whose}",
            "`lab host init --pool` with a dataset of its own" if tag else "`lab host init`",
        )
    for command in delegation(settings.pool, this_user(), commands):
        yield Finding("zfs allow", "fail", "root must run a command", command)
    if isinstance(storage, ZfsStorage):
        for line in storage.pending():
            yield Finding("pending delete", "note", line, "`lab gc` removes it when that is over")


def _check_settings(settings: Settings, pool: str) -> None:
    """Raise InvalidSpec or Conflict if ``pool`` would not be used, or hide what is there."""
    if settings.storage != "zfs" and "storage" in settings.sources:
        raise InvalidSpec(
            f"{settings.sources['storage']}: storage is {settings.storage}",
            hint="remove that setting: where pool is set, storage is zfs",
        )
    if settings.storage == "zfs" and settings.pool == pool:
        return
    kept = len(open_storage(settings, None).volumes())
    if kept:
        where = settings.pool if settings.storage == "zfs" else str(settings.home.storage)
        raise Conflict(
            f"the home {settings.home.root} keeps {kept} volumes in {where}",
            hint="remove its labs, templates and images first, or set LAB_HOME to a new home",
        )
