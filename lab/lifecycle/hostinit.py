"""``lab host init``: from now on volumes are ZVols below a dataset."""

from __future__ import annotations

import os
from dataclasses import replace
from pathlib import Path

from lab.errors import Conflict, InvalidSpec
from lab.lifecycle.context import open_storage
from lab.lifecycle.views import HostView
from lab.names import check_dataset
from lab.settings import Settings, config_files, remember
from lab.storage.zfs.commands import Commands
from lab.storage.zfs.setup import prepare, this_user


def init(settings: Settings, pool: str, *, config: Path | None = None) -> HostView:
    """Make the dataset ``pool`` the home's, and write that into the user's ``config`` file.

    It can be repeated. What we may not do is among ``missing``: then nothing is written yet.
    Raises Conflict if the home keeps volumes elsewhere or the dataset is used otherwise,
    InvalidSpec, HostUnfit.
    """
    check_dataset(pool)
    config = config or config_files(os.environ)[0]
    settings.home.create()
    _check_settings(settings, pool)
    commands = Commands(pool)
    parent = prepare(pool, settings.home.id, this_user(), commands)
    chosen = replace(settings, storage="zfs", pool=pool)
    if not parent.missing and settings.pool != pool:
        remember(config, "pool", pool)
    space = open_storage(chosen, None).space() if commands.find(pool) else None
    return HostView(
        pool=pool,
        version=parent.version,
        free=space.free if space else 0,
        total=space.total if space else 0,
        done=parent.done,
        missing=parent.missing,
        config="" if parent.missing or settings.pool == pool else str(config),
    )


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
