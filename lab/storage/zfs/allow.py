"""The permissions that a user other than root needs: of ZFS, and on the devices."""

from __future__ import annotations

import re
from collections.abc import Collection, Iterator
from pathlib import Path

from lab.values import dataclass

PERMISSIONS = (
    "clone", "create", "destroy", "hold", "mount", "receive", "release", "rename", "rollback",
    "send", "snapshot",
    "canmount", "compression", "logbias", "mountpoint", "primarycache", "sync", "userprop",
    "volblocksize", "volmode", "volsize",
)  # fmt: skip
"""For `zfs allow`: the subcommands that we run, and the properties that they set."""

RULE = Path("/etc/udev/rules.d/61-lab-zvol.rules")
"""The file of the udev rule that sets the owner of our devices."""

_HEADER = re.compile(r"---- Permissions on (\S+) -+")
_GRANT = re.compile(r"\s+(user|group|everyone|(@\S+))(?: (\S+))?(?: (\S+))?")


@dataclass(frozen=True)
class User:
    """A user's name, and the names of all groups of the user."""

    name: str
    groups: Collection[str]


def missing(text: str, dataset: str, user: User, *, device_rule: str = "") -> list[str]:
    """The commands for root that allow ``user`` to create volumes below ``dataset``.

    ``text``: what ``zfs allow dataset`` prints. ``device_rule``: the content of ``RULE``.
    """
    if user.name == "root":
        return []
    commands = []
    lacking = sorted(set(PERMISSIONS) - granted(text, dataset, user))
    if lacking:
        commands.append(f"zfs allow -u {user.name} {','.join(lacking)} {dataset}")
    if "disk" not in user.groups and rule(dataset, user) not in device_rule:
        commands += [
            f"echo '{rule(dataset, user)}' >> {RULE}",
            "udevadm control --reload && udevadm trigger --subsystem-match=block",
        ]
    return commands


def rule(dataset: str, user: User) -> str:
    """The udev rule that gives the devices of volumes below ``dataset`` to ``user``."""
    return (
        'KERNEL=="zd*", SUBSYSTEM=="block", ACTION=="add|change",'
        f' PROGRAM=="zvol_id $devnode", RESULT=="{dataset}/*", OWNER="{user.name}"'
    )


def granted(text: str, dataset: str, user: User) -> set[str]:
    """The permissions of ``user`` on ``dataset`` and all below, as ``zfs allow`` prints them."""
    sets: dict[str, set[str]] = {}
    names: set[str] = set()
    for place, section, who, name, permissions in _grants(text):
        if section == "Permission sets":
            sets.setdefault(who, set()).update(permissions)
        # a local permission on a dataset above does not apply to ours
        elif section == "Local+Descendent permissions" or (
            section == "Descendent permissions" and place != dataset
        ):
            mine = {"user": {user.name}, "group": set(user.groups), "everyone": {""}}
            if name in mine.get(who, ()):
                names.update(permissions)
    return {one for name in names for one in sets.get(name, {name})}


def _grants(text: str) -> Iterator[tuple[str, str, str, str, list[str]]]:
    """Dataset, section, kind (or set), name and permissions of each line."""
    place = section = ""
    for line in text.split("\n"):
        header = _HEADER.fullmatch(line.rstrip())
        if header:
            place, section = header[1], ""
        elif line.endswith(":") and not line.startswith((" ", "\t")):
            section = line[:-1]
        elif found := _GRANT.fullmatch(line.rstrip()):
            who, _, first, second = found.groups()
            name, permissions = (first, second) if second else ("", first)
            yield place, section, who, name or "", (permissions or "").split(",")
