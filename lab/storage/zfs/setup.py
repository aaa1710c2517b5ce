"""Sets up a dataset as the parent of a home's volumes, and reports missing permissions."""

from __future__ import annotations

import contextlib
import os
import shlex
from pathlib import Path

from lab.errors import Conflict, HostUnfit
from lab.storage.zfs.allow import RULE, User, missing
from lab.storage.zfs.commands import Commands
from lab.storage.zfs.listing import Dataset
from lab.storage.zfs.properties import FOLDER, HOME, options
from lab.values import dataclass

_WANTED = {
    "mountpoint": "none",
    "canmount": "off",
    "volmode": "dev",  # the host must not scan a guest's disk for partitions
    "com.sun:auto-snapshot": "false",  # snapshots of others prevent the removal of volumes
}


@dataclass(frozen=True)
class Parent:
    """A parent dataset: the changes ``done``, and the commands ``missing``, for root."""

    version: str
    done: tuple[str, ...]
    missing: tuple[str, ...]


def prepare(dataset: str, home: str, user: User, commands: Commands) -> Parent:
    """Make ``dataset`` the parent for ``home``, as far as permitted; no error if it is already.

    Raises Conflict if it is used for something else, HostUnfit if there is no such pool or no
    ZFS.
    """
    release = version(commands)
    _check_above(dataset, commands)
    found = commands.find(dataset)
    if found is not None:
        _check_use(found, home, commands)
    steps = _steps(dataset, found)
    done = [shlex.join(["zfs", *args]) for args in steps if _run(args, user, commands)]
    lacking = [line for args in steps if (line := shlex.join(["zfs", *args])) not in done]
    lacking += delegation(dataset, user, commands)
    if not lacking and (found is None or found.local.get(HOME) != home):
        commands.zfs("set", f"{HOME}={home}", dataset)
        done.append(f"zfs set {HOME}={home} {dataset}")
    return Parent(release, tuple(done), tuple(lacking))


def version(commands: Commands) -> str:
    """The version of OpenZFS, such as 2.3.9."""
    return commands.zfs("version").partition("\n")[0].removeprefix("zfs-")


def delegation(dataset: str, user: User, commands: Commands) -> list[str]:
    """The commands that root must run for ``user``, see ``allow.missing``."""
    if user.name == "root":
        return []
    granted = commands.zfs("allow", dataset) if commands.find(dataset) else ""
    rules = RULE.read_text() if RULE.exists() else ""
    return missing(granted, dataset, user, device_rule=rules)


def owner(dataset: str, commands: Commands) -> str:
    """The home whose parent ``dataset`` is; empty if none is recorded. Raises HostUnfit."""
    (found,) = commands.datasets(dataset)
    return found.local.get(HOME, "")


def _steps(dataset: str, found: Dataset | None) -> list[list[str]]:
    """The command that creates or changes the dataset as required; empty if it is so already."""
    if found is None:
        return [["create", *options(_WANTED), dataset]]
    changes = [f"{key}={_WANTED[key]}" for key in _WANTED if found.local.get(key) != _WANTED[key]]
    return [["set", *changes, dataset]] if changes else []


def _run(args: list[str], user: User, commands: Commands) -> bool:
    """Run it; False if the permission is missing and this user is not root."""
    try:
        commands.zfs(*args)
    except HostUnfit:
        if user.name == "root":
            raise
        return False
    return True


def _check_above(dataset: str, commands: Commands) -> None:
    """Raise HostUnfit if the dataset above does not exist."""
    above, pool = dataset.rpartition("/")[0], dataset.partition("/")[0]
    if commands.find(above) is None:
        if above != pool and commands.find(pool):
            raise HostUnfit(f"there is no dataset {above}", hint=f"zfs create {above}")
        raise HostUnfit(
            f"there is no pool {pool}",
            hint=f"`zpool import {pool}` if it was exported, else `zpool create {pool} DISK`",
        )


def _check_use(found: Dataset, home: str, commands: Commands) -> None:
    """Raise Conflict unless the dataset is ours, or unmarked and empty."""
    tag = found.local.get(HOME, "")
    if tag == home:
        return
    if tag:
        raise Conflict(
            f"{found.name} belongs to another home of lab ({tag})",
            hint=f"name another dataset, such as {found.name}2: each home needs one",
        )
    if found.kind != "filesystem":
        raise Conflict(f"{found.name} is a {found.kind}", hint="name a file system, or a new one")
    children = [
        one.name
        for one in commands.datasets("-d", "1", "-t", "filesystem,volume,snapshot", found.name)
        if one.name != found.name and one.local.get(FOLDER) != "yes"
    ]
    if children:
        raise Conflict(
            f"{found.name} is used for something else: it has {children[0]}",
            hint=f"name a new dataset, such as {found.name}/lab",
        )
    if files := _files(found.name, commands):
        raise Conflict(
            f"{found.name} is used for something else: it holds {files}",
            hint=f"name a new dataset, such as {found.name}/lab",
        )


def _files(dataset: str, commands: Commands) -> str:
    """A file in the file system if it is mounted and has any."""
    text = commands.zfs("get", "-H", "-o", "value", "mounted,mountpoint", dataset)
    mounted, _, place = text.partition("\n")
    if mounted == "yes":
        with contextlib.suppress(OSError, StopIteration):
            return str(next(Path(place.strip()).iterdir()))
    return ""


def this_user() -> User:
    """The user of this process."""
    import grp
    import pwd

    user = pwd.getpwuid(os.geteuid())
    groups = []
    for number in os.getgrouplist(user.pw_name, user.pw_gid):
        with contextlib.suppress(KeyError):
            groups.append(grp.getgrgid(number).gr_name)
    return User(user.pw_name, groups)
