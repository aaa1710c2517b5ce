"""Settings: flag > ``LAB_*`` environment variable > config file > default, key by key.

Config files are ``$XDG_CONFIG_HOME/lab/config.toml`` (``~/.config/lab/config.toml``) and,
for what that one does not say, ``/etc/lab/config.toml``.
"""

import os
from collections.abc import Mapping, Sequence
from dataclasses import field
from pathlib import Path
from typing import Annotated, Any, Literal, cast

from lab.config import poolfile, servefile, tomlfile
from lab.config.poolfile import WarmPool
from lab.config.profile import DEFAULT, PROFILES, Layout, Profile, parse_profiles
from lab.config.servefile import Serve
from lab.errors import InvalidSpec
from lab.keys import Given, Key, WrongType, keys, parse, text, whole, within
from lab.names import EVERYWHERE, LOOPBACK, check_address, check_dataset, check_host
from lab.paths import Home, default_root, from_user
from lab.suggest import did_you_mean
from lab.units import GIB, MIB, Lease, Seconds, Size
from lab.values import dataclass

Ports = tuple[int, int]
"""First and last of a range, both included."""


def _home(value: object) -> Home:
    if isinstance(value, Home):
        return value
    if not isinstance(value, Path | str) or not str(value):
        raise WrongType
    return Home(Path(value))


def _owner(value: object) -> str:
    if not text(value).strip():
        raise WrongType
    return text(value).strip()


def _cloud_image(value: object) -> Path | None:
    path = text(value).strip()
    return from_user(path).absolute() if path else None


def _pool(value: object) -> str:
    name = text(value).strip()
    return check_dataset(name) if name else ""


def _ports(value: object) -> Ports:
    if isinstance(value, str):
        first, _, last = value.partition("-")
        value = [first.strip(), last.strip()]
    if not isinstance(value, list | tuple) or len(value) != 2:
        raise WrongType
    low, high = (whole(part) for part in cast("Sequence[object]", value))
    if not 1024 <= low <= high <= 65535:
        raise InvalidSpec(f"{low}-{high} is not a range of ports", hint="such as 23306-28999")
    return low, high


def _address(value: object) -> str:
    return check_address(text(value).strip())


def _host(value: object) -> str:
    name = text(value).strip()
    return check_host(name) if name else ""


@dataclass(frozen=True)
class Settings:
    """How the program works on this host. Build it with ``load``.

    Bytes and seconds. The texts below the fields are those of docs/config.md.
    """

    home: Annotated[Home, Key("a directory", _home)]
    """The directory of images, templates, labs and the record."""
    owner: Annotated[str, Key("a name", _owner)]
    """The owner of new labs; shown, not enforced."""
    hypervisor: Literal["auto", "libvirt", "bhyve", "fake"] = "auto"
    """``auto`` is ``libvirt`` on Linux, ``bhyve`` on FreeBSD (freebsd.md). ``fake`` runs no
    guests: for tests of scripts, and of the program."""
    libvirt_uri: Annotated[str, Key("a text such as qemu:///system", text)] = ""
    """Which libvirt runs the guests."""
    builder: Annotated[Path | None, Key("the path of a cloud image", _cloud_image)] = None
    """The path of a vendor's cloud image, for a guest in which images are built; empty: this
    host builds them."""
    storage: Literal["qcow2", "zfs", "fake"] = "qcow2"
    """``qcow2``: files in the home; ``zfs``: ZVols below ``pool``, the default where that is set.
    ``fake`` goes with ``hypervisor = "fake"``."""
    pool: Annotated[str, Key("a ZFS dataset such as tank/lab", _pool)] = ""
    """The ZFS dataset below which volumes are created, such as ``tank/lab``; for one home only
    (docs/zfs.md)."""
    accelerator: Literal["auto", "kvm", "tcg"] = "auto"
    """``auto`` is KVM where the processor has ``vmx`` or ``svm`` and libvirt lists it, else
    emulation; ``kvm`` fails without it; ``tcg`` emulates even where KVM works."""
    default_ttl: Lease = None
    """The lease of labs that request none."""
    port_range: Annotated[Ports, Key("first and last port, such as 23306-28999", _ports)] = (
        23306,  # below the ports that Linux hands out to clients (ip_local_port_range)
        28999,
    )
    """Ports that labs may use, both ends included."""
    ready_timeout: Seconds = 600.0
    """How long nodes may take to get ready once their guests were started; three times as long
    while they make progress (see ``--timeout``)."""
    answer_timeout: Seconds = 2.0
    """Seconds within which all nodes must answer ``lab ls``, ``lab status`` and the service; a
    node that does not is ``unreachable``, but one that has begun to answer gets four times as long.
    Raise it on hosts that are often overloaded."""
    memory_floor: Size = 512 * MIB
    """Memory that stays free; a lab that would use it is refused."""
    space_floor: Size = 2 * GIB
    """Disk space that stays free: labs, imports, snapshots and rollbacks that would use it are
    refused."""
    max_templates: Annotated[int, Key("a number of templates", whole)] = 16
    """How many templates are kept; when one more is ready, the least recently used one
    without labs is removed."""
    standby: Annotated[int, within(0, 100)] = 0
    """How many labs like the last one are made ahead, and wait paused for the next ``lab up``,
    ``lab run`` or test."""
    layout: Layout = "single"
    """``split`` gives each node separate volumes for data and for logs."""
    profile: Annotated[str, Key("a profile such as balanced", text)] = DEFAULT.name
    """The profile of labs that name none."""
    profiles: Annotated[
        Mapping[str, Profile], Key("tables, one for each profile", parse_profiles)
    ] = field(default_factory=dict)
    """Your own profiles, as tables: only in config files."""
    publish: Annotated[str, Key("an IPv4 address of this host", _address)] = LOOPBACK
    """The address at which SQL ports listen: see below."""
    publish_name: Annotated[str, Key("the name of this host", _host)] = ""
    """The name that DSNs and tables show in place of ``publish``, such as ``labs.example``."""
    serve: Annotated[Serve, Key("a table", servefile.parse)] = field(default_factory=Serve)
    """The service, a table: only in config files."""
    url: Annotated[str, Key("a URL such as https://labs.example:8443", text)] = ""
    """The service that commands use; empty: this host."""
    sources: Given[Mapping[str, str]] = field(default_factory=dict, repr=False, compare=False)
    """Key -> the place that its value came from: the path of a config file, or what to call it."""

    @property
    def published_as(self) -> str:
        """The name or address under which SQL ports are reached."""
        return self.publish_name or self.publish

    def warm_pools(self) -> tuple[WarmPool, ...]:
        """The pools of the service, with their files; raises as ``poolfile.with_files``."""
        return poolfile.with_files(self.serve.pool, Path(self.sources.get("serve", "")))

    def all_profiles(self) -> dict[str, Profile]:
        """Ours and those of users, by name."""
        return {**PROFILES, **self.profiles}

    def profile_of(self, name: str) -> Profile:
        """The profile ``name``, or the default one if that is empty; raises InvalidSpec."""
        known = self.all_profiles()
        name = name or self.profile
        if name not in known:
            raise InvalidSpec(
                f"there is no profile {name!r}",
                hint=did_you_mean(name, known, otherwise=f"profiles: {', '.join(known)}"),
            )
        return known[name]


def load(
    flags: Mapping[str, object] | None = None,
    *,
    env: Mapping[str, str] | None = None,
    files: Sequence[Path] | None = None,
) -> Settings:
    """The settings that hold here.

    ``flags``: key -> value as given on the command line, None where it was not. ``files``:
    config files, the strongest first. Environment variables that are empty or name no
    key are not ours and ignored.

    Raises InvalidSpec, naming the place and the key.
    """
    env = os.environ if env is None else env
    known = keys(Settings)
    values: dict[str, Any] = {}
    sources: dict[str, str] = {}

    def take(found: Mapping[str, Any], place: str) -> None:
        for key, value in found.items():
            if key not in values:
                values[key] = value
                sources[key] = place

    for key, value in (flags or {}).items():
        if value is not None:
            flag = "--remote" if key == "url" else "--" + key.replace("_", "-")
            take({key: parse(known, key, value, flag)}, flag)
    for key in known:
        variable = f"LAB_{key.upper()}"
        if env.get(variable):
            take({key: parse(known, key, env[variable], variable)}, variable)
    for path in config_files(env) if files is None else files:
        take(tomlfile.read(path, known), str(path))
    _choose_storage(values, sources)
    _check_publish(values, sources)
    values.setdefault("home", Home(default_root(env)))
    values.setdefault("owner", user_name(env))
    return Settings(**values, sources=sources)


def remember(path: Path, key: str, value: str) -> None:
    """Write a setting into the config file ``path``; raises InvalidSpec and HostUnfit."""
    tomlfile.put(path, keys(Settings), key, value)


def _choose_storage(values: dict[str, Any], sources: dict[str, str]) -> None:
    if values.get("pool") and "storage" not in values:
        values["storage"], sources["storage"] = "zfs", f"pool, from {sources['pool']}"
    if values.get("storage") == "zfs" and not values.get("pool"):
        raise InvalidSpec(
            f"{sources['storage']}: storage is zfs, but no pool is set",
            hint='set LAB_POOL=tank/lab, or pool = "tank/lab" in the config file',
        )


def _check_publish(values: Mapping[str, Any], sources: Mapping[str, str]) -> None:
    if values.get("publish") == EVERYWHERE and not values.get("publish_name"):
        raise InvalidSpec(
            f"{sources['publish']}: publish is {EVERYWHERE}, but publish_name is not set",
            hint='set LAB_PUBLISH_NAME=labs.example, or publish_name = "labs.example" in the'
            " config file",
        )


def config_files(env: Mapping[str, str]) -> tuple[Path, ...]:
    """The config files, the strongest first; they need not exist."""
    config = env.get("XDG_CONFIG_HOME", "")
    base = Path(config) if config.startswith("/") else Path("~/.config").expanduser()
    return base / "lab" / "config.toml", Path("/etc/lab/config.toml")


def user_name(env: Mapping[str, str]) -> str:
    """The name of the user we run as; the number if it has none."""
    import pwd

    try:
        return pwd.getpwuid(os.geteuid()).pw_name
    except KeyError:
        return env.get("USER") or str(os.geteuid())
