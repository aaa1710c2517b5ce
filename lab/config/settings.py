"""Settings: flag > ``LAB_*`` environment variable > config file > default, key by key.

Config files are ``$XDG_CONFIG_HOME/lab/config.toml`` (``~/.config/lab/config.toml``) and,
for what that one does not say, ``/etc/lab/config.toml``.
"""

from __future__ import annotations

import os
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, Literal, cast

from lab.config import profilefile, servefile, tomlfile
from lab.config.profile import DEFAULT, PROFILES, Layout, Profile
from lab.config.servefile import Serve
from lab.config.tomlfile import Key, WrongType
from lab.errors import InvalidSpec
from lab.names import EVERYWHERE, LOOPBACK, check_address, check_dataset, check_host
from lab.paths import Home, default_root
from lab.spec import GIB, MIB
from lab.suggest import did_you_mean

Ports = tuple[int, int]
"""First and last of a range, both included."""


@dataclass(frozen=True)
class Settings:
    """How the program works on this host. Build it with ``load``.

    ``libvirt_uri`` empty: automatic. ``pool``: the ZFS dataset that volumes are below, which
    makes ``storage`` zfs unless that is set. ``default_ttl``, ``ready_timeout`` in seconds.
    ``answer_timeout``: seconds within which all nodes must answer a query of their state.
    ``port_range``: first and last port that labs may use; the default lies below the
    ports that Linux hands out to clients (``ip_local_port_range``). ``builder``: a vendor's cloud
    image, for a guest in which images are built; None: this host does. ``memory_floor`` and
    ``space_floor``: bytes that stay free on the host. ``max_templates``: how many templates are
    kept; for one more, an unused one goes. ``profile``: that of labs which name none; ``profiles``:
    those of users. ``publish``: the address at which SQL ports listen;
    ``publish_name``: what others are told in its place. ``serve``: the service. ``url``: the
    service that verbs work against; empty: this host. ``sources``: key -> where its value came
    from, for ``lab doctor``.
    """

    home: Home
    owner: str
    hypervisor: Literal["auto", "libvirt", "bhyve", "fake"] = "auto"
    libvirt_uri: str = ""
    builder: Path | None = None
    storage: Literal["qcow2", "zfs", "fake"] = "qcow2"
    pool: str = ""
    accelerator: Literal["auto", "kvm", "tcg"] = "auto"
    default_ttl: float | None = None
    port_range: Ports = (23306, 28999)
    ready_timeout: float = 600.0
    answer_timeout: float = 0.6
    memory_floor: int = 512 * MIB
    space_floor: int = 2 * GIB
    max_templates: int = 16
    layout: Layout = "single"
    profile: str = DEFAULT.name
    profiles: Mapping[str, Profile] = field(default_factory=dict)
    publish: str = LOOPBACK
    publish_name: str = ""
    serve: Serve = field(default_factory=Serve)
    url: str = ""
    sources: Mapping[str, str] = field(default_factory=dict, repr=False, compare=False)

    @property
    def published_as(self) -> str:
        """The name or address under which SQL ports are reached."""
        return self.publish_name or self.publish

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
            take({key: tomlfile.parse(_KEYS, key, value, flag)}, flag)
    for key in _KEYS:
        variable = f"LAB_{key.upper()}"
        if env.get(variable):
            take({key: tomlfile.parse(_KEYS, key, env[variable], variable)}, variable)
    for path in config_files(env) if files is None else files:
        take(tomlfile.read(path, _KEYS), str(path))
    _choose_storage(values, sources)
    _check_publish(values, sources)
    values.setdefault("home", Home(default_root(env)))
    values.setdefault("owner", user_name(env))
    return Settings(**values, sources=sources)


def remember(path: Path, key: str, value: str) -> None:
    """Write a setting into the config file ``path``; raises InvalidSpec and HostUnfit."""
    tomlfile.put(path, _KEYS, key, value)


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
            f"{sources['publish']}: publish is {EVERYWHERE}, but what others are to be told is not"
            " set",
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


def _cloud_image(value: object) -> Path | None:
    path = tomlfile.text(value).strip()
    return Path(path).expanduser().absolute() if path else None


def _home(value: object) -> Home:
    if isinstance(value, Home):
        return value
    if isinstance(value, Path):
        return Home(value)
    if not isinstance(value, str) or not value:
        raise WrongType
    return Home(Path(value))


def _ports(value: object) -> Ports:
    if isinstance(value, str):
        first, _, last = value.partition("-")
        value = [first.strip(), last.strip()]
    if not isinstance(value, list | tuple) or len(value) != 2:
        raise WrongType
    low, high = (tomlfile.whole(part) for part in cast("Sequence[object]", value))
    if not 1024 <= low <= high <= 65535:
        raise InvalidSpec(f"{low}-{high} is no range of ports", hint="such as 23306-28999")
    return low, high


def _owner(value: object) -> str:
    if not isinstance(value, str) or not value.strip():
        raise WrongType
    return value.strip()


def _pool(value: object) -> str:
    name = tomlfile.text(value).strip()
    return check_dataset(name) if name else ""


def _address(value: object) -> str:
    return check_address(tomlfile.text(value).strip())


def _host(value: object) -> str:
    name = tomlfile.text(value).strip()
    return check_host(name) if name else ""


_KEYS: Mapping[str, Key] = {
    "home": Key("a directory", _home),
    "owner": Key("a name", _owner),
    "hypervisor": tomlfile.one_of("auto", "libvirt", "bhyve", "fake"),
    "libvirt_uri": Key("a text such as qemu:///system", tomlfile.text),
    "builder": Key("the path of a cloud image", _cloud_image),
    "storage": tomlfile.one_of("qcow2", "zfs", "fake"),
    "pool": Key("a ZFS dataset such as tank/lab", _pool),
    "accelerator": tomlfile.one_of("auto", "kvm", "tcg"),
    "default_ttl": Key("a duration such as 2h, or none", tomlfile.lease),
    "port_range": Key("first and last port, such as 23306-28999", _ports),
    "ready_timeout": Key("seconds, or a duration such as 5m", tomlfile.seconds),
    "answer_timeout": Key("seconds, or a duration such as 2s", tomlfile.seconds),
    "memory_floor": Key("bytes, or a size such as 512M", tomlfile.size),
    "space_floor": Key("bytes, or a size such as 2G", tomlfile.size),
    "max_templates": Key("a number of templates", tomlfile.whole),
    "layout": tomlfile.one_of("single", "split"),
    "profile": Key("a profile such as balanced", tomlfile.text),
    "profiles": Key("tables, one for each profile", profilefile.parse),
    "publish": Key("an IPv4 address of this host", _address),
    "publish_name": Key("the name of this host", _host),
    "serve": Key("a table", servefile.parse),
    "url": Key("a URL such as https://labs.example:8443", tomlfile.text),
}
