"""The flags that several verbs share, and their values in the program's own types.

Values reach the verbs as text and are parsed here, so that error messages are our own.
"""

from __future__ import annotations

import inspect
import re
from collections.abc import Callable, Mapping
from dataclasses import fields, is_dataclass
from functools import wraps
from typing import TYPE_CHECKING, Annotated, Any, TypeVar, cast, get_type_hints

import typer

from lab.cli import complete
from lab.cli.terminal.output import FORMATS
from lab.errors import InvalidSpec
from lab.names import IDENTITIES, Identity
from lab.options import PROXY_NAMES, TOPOLOGIES
from lab.units import parse_duration, parse_size
from lab.values import dataclass

if TYPE_CHECKING:
    from lab.config.labfile import LabValues
    from lab.config.settings import Settings
    from lab.requests.labs import CreateLab
    from lab.spec import LabSpec

T = TypeVar("T")

Name = Annotated[
    str,
    typer.Argument(
        metavar="NAME",
        show_default=False,
        autocompletion=complete.labs,
        help="The lab; optional if lab.toml names one or there is only one.",
    ),
]
Node = Annotated[
    str,
    typer.Option(
        "--node",
        metavar="NODE",
        show_default=False,
        autocompletion=complete.nodes,
        help="The node, as n2 or 2.",
    ),
]
Output = Annotated[
    str,
    typer.Option(
        "-o",
        "--output",
        metavar="FORMAT",
        autocompletion=complete.formats,
        help=f"Output format: {', '.join(FORMATS)}.",
    ),
]
Timeout = Annotated[
    str,
    typer.Option("--timeout", metavar="TIME", show_default=False, help="Time limit, such as 5m."),
]
ReadyTimeout = Annotated[
    str,
    typer.Option(
        "--timeout",
        metavar="TIME",
        show_default=False,
        help="Time limit for nodes to become ready after their start; default 10m.",
    ),
]
Blueprint = Annotated[
    str,
    typer.Argument(
        metavar="BLUEPRINT",
        show_default=False,
        autocompletion=complete.blueprints,
        help="The topology, such as pxc; default: that of ./lab.toml.",
    ),
]
Nodes = Annotated[
    str,
    typer.Option(
        "--nodes", metavar="N", show_default=False, help="1 to 9; default: 3, for single 1."
    ),
]
Memory = Annotated[
    str,
    typer.Option("--memory", metavar="SIZE", show_default=False, help="Per node; default 768M."),
]
Cpus = Annotated[
    str, typer.Option("--cpus", metavar="N", show_default=False, help="Per node; default 1.")
]
Disk = Annotated[
    str,
    typer.Option(
        "--disk", metavar="SIZE", show_default=False, help="Per node; default: the image's."
    ),
]
Engine = Annotated[
    str,
    typer.Option(
        "--engine",
        metavar="ENGINE[:SERIES]",
        show_default=False,
        autocompletion=complete.engines,
        help="Require this engine, such as mariadb:10.11; `lab engine ls` lists them.",
    ),
]
Image = Annotated[
    str,
    typer.Option(
        "--image",
        metavar="IMAGE",
        show_default=False,
        autocompletion=complete.images,
        help="Require this image, by key, such as one that was imported.",
    ),
]
Dataset = Annotated[
    str,
    typer.Option(
        "--dataset",
        metavar="NAME[@VERSION]",
        show_default=False,
        autocompletion=complete.datasets,
        help="The data that the nodes begin with, as in `lab dataset ls`; with --engine, on that.",
    ),
]
Topology = Annotated[
    str,
    typer.Option(
        "--topology",
        metavar="TOPOLOGY",
        show_default=False,
        autocompletion=complete.topologies,
        help=f"Who replicates from whom: {', '.join(TOPOLOGIES)}; default {TOPOLOGIES[0]}.",
    ),
]
SemiSync = Annotated[
    bool,
    typer.Option("--semi-sync", help="A commit returns once a replica has received it."),
]
Delay = Annotated[
    str,
    typer.Option(
        "--delay", metavar="TIME", show_default=False, help="Delay of replicas, such as 1h."
    ),
]
On = Annotated[
    str,
    typer.Option(
        "--on",
        metavar="NODE,...",
        show_default=False,
        help="The replicas that are delayed; default: all.",
    ),
]
MultiPrimary = Annotated[
    bool, typer.Option("--multi-primary", help="All members of a group take writes.")
]
Proxy = Annotated[
    str,
    typer.Option(
        "--proxy",
        metavar="PROXY",
        show_default=False,
        autocompletion=complete.proxies,
        help=f"A further node runs a proxy: {', '.join(PROXY_NAMES)}; default {PROXY_NAMES[0]}.",
    ),
]
Arbiter = Annotated[
    bool, typer.Option("--arbiter", help="A further node has a vote in the cluster, and no data.")
]
Client = Annotated[
    bool,
    typer.Option("--client", help="A further node has no server: benchmarks run in it."),
]
Replicas = Annotated[
    str,
    typer.Option(
        "--replicas",
        metavar="N",
        show_default=False,
        help="Nodes of a cluster's remote site; default: 1.",
    ),
]
Set = Annotated[
    list[str] | None,
    typer.Option(
        "--set",
        metavar="NAME=VALUE",
        show_default=False,
        help="An option of all servers, as in an option file; may be repeated.",
    ),
]
MyCnf = Annotated[
    list[str] | None,
    typer.Option(
        "--my-cnf",
        metavar="[ROLE=]FILE",
        show_default=False,
        help="An option file of all servers, or of those of a role; may be repeated.",
    ),
]
Init = Annotated[
    str,
    typer.Option(
        "--init",
        metavar="FILE",
        show_default=False,
        help="SQL that is executed once, when the cluster is formed.",
    ),
]
User = Annotated[
    list[str] | None,
    typer.Option(
        "--user",
        metavar="FILE|env:VARIABLE",
        show_default=False,
        help="Accounts, a line NAME:PASSWORD@SCOPE each; SCOPE: a database, or * for all.",
    ),
]
NodeEngines = Annotated[
    list[str] | None,
    typer.Option(
        "--node",
        metavar="NODE=ENGINE[:SERIES]",
        show_default=False,
        help="Another engine for one node, such as n2=mysql:9.7; may be repeated.",
    ),
]
LabName = Annotated[
    str,
    typer.Option(
        "--name",
        metavar="NAME",
        show_default=False,
        help="Default: the blueprint's, numbered if taken.",
    ),
]
Ttl = Annotated[
    str,
    typer.Option(
        "--ttl",
        metavar="TIME",
        show_default=False,
        help="The lease, such as 2h, or none; `lab gc` removes a lab when it has expired.",
    ),
]
Profile = Annotated[
    str,
    typer.Option(
        "--profile",
        metavar="PROFILE",
        show_default=False,
        autocompletion=complete.profiles,
        help="Durability profile: durable, balanced (default), disposable, or your own.",
    ),
]
Snapshots = Annotated[
    str,
    typer.Option(
        "--snapshots",
        metavar="SCHEDULE",
        show_default=False,
        help="Schedule by which `lab gc` takes and rotates snapshots, such as hourly:24,daily:7.",
    ),
]
Lab = Annotated[
    str,
    typer.Argument(
        metavar="LAB", show_default=False, autocompletion=complete.labs, help="The lab."
    ),
]
KeepSessions = Annotated[
    bool,
    typer.Option(
        "--keep-sessions", help="Keep the sessions of clients that the snapshot's RAM has."
    ),
]
WhoseIdentity = Annotated[
    str,
    typer.Option(
        "--identity",
        metavar="new|shared",
        autocompletion=complete.identities,
        help="`new`: restart the servers with ids and UUIDs that no other lab has.",
    ),
]
Cold = Annotated[
    bool, typer.Option("--cold", help="Cold boot: do not restore RAM from the template.")
]
KeepFailed = Annotated[
    bool, typer.Option("--keep-failed", help="Keep the guests of a failed lab, for inspection.")
]

OnHost = Annotated[
    str,
    typer.Option(
        "--host",
        metavar="HOST",
        show_default=False,
        help="Of a fleet: the host, or @LABEL for one with that label.",
    ),
]
OnHostLost = Annotated[
    str,
    typer.Option(
        "--on-host-lost",
        metavar="fail|recreate",
        show_default=False,
        help="Of a fleet: what becomes of the job if its host is lost; default: fail.",
    ),
]

_OF_LABS = ("name", "ttl", "snapshots", "user")
"""What labs are given one by one: no template depends on it."""
_ENGINES_LIMIT = 20
"""Engines of a list, at most."""
_WHOLE = re.compile(r"[+-]?[0-9]{1,9}")


@dataclass(frozen=True)
class Cluster:
    """The flags that describe the nodes of a lab or template; empty: not given."""

    blueprint: Blueprint = ""
    nodes: Nodes = ""
    memory: Memory = ""
    cpus: Cpus = ""
    disk: Disk = ""
    engine: Engine = ""
    image: Image = ""
    dataset: Dataset = ""
    profile: Profile = ""
    topology: Topology = ""
    semi_sync: SemiSync = False
    delay: Delay = ""
    on: On = ""
    multi_primary: MultiPrimary = False
    proxy: Proxy = ""
    arbiter: Arbiter = False
    client: Client = False
    replicas: Replicas = ""
    set: Set = None
    my_cnf: MyCnf = None
    init: Init = ""
    user: User = None
    node: NodeEngines = None


@dataclass(frozen=True)
class Creation:
    """The flags of verbs that create a lab."""

    name: LabName = ""
    ttl: Ttl = ""
    cold: Cold = False
    keep_failed: KeepFailed = False
    timeout: ReadyTimeout = ""
    host: OnHost = ""
    on_host_lost: OnHostLost = ""

    @property
    def limit(self) -> float | None:
        """``timeout`` in seconds, None if it is not given; raises InvalidSpec."""
        return seconds("--timeout", self.timeout) if self.timeout else None


def words(given: Cluster | Creation) -> list[str]:
    """The words of a command line that say what flags say."""
    found: list[str] = []
    for name, value in vars(given).items():
        flag = f"--{name.replace('_', '-')}"
        if name == "blueprint":
            found[:0] = [value] if value else []
        elif isinstance(value, list):
            found += [word for one in value for word in (flag, one)]
        elif value:
            found += [flag] if value is True else [flag, value]
    return found


def engine_list(flag: str, text: str) -> list[str]:
    """The engines of a list such as ``mysql:9.7,mariadb``, each once; raises InvalidSpec."""
    from lab.names import ENGINE

    names = [name.strip() for name in text.split(",")]
    for name in names:
        if not re.fullmatch(ENGINE, name):
            hint = "a list with commas, such as mysql:9.7,mariadb:11.8"
            raise InvalidSpec(f"{flag}: {name[:80]!r} is not an engine", hint=hint)
        if names.count(name) > 1:
            raise InvalidSpec(f"{flag}: {name} was given twice")
    if len(names) > _ENGINES_LIMIT:
        raise InvalidSpec(f"{flag}: {len(names)} engines were given, {_ENGINES_LIMIT} can be")
    return names


def added_here(settings: Settings) -> Mapping[str, str] | None:
    """The families of the engines that were added to this host; None with a service elsewhere."""
    from lab.imagebuild import added

    return None if settings.url else added.families(settings.home.engines)


def on_engine(spec: LabSpec, engine: str, added: Mapping[str, str] | None = None) -> LabSpec:
    """``spec`` on an engine.

    ``added``: the engines that were added to this host; None if a service elsewhere is meant, which
    knows its own. Raises InvalidSpec.
    """
    from msgspec import structs

    from lab.blueprints import blueprint
    from lab.config import enginefile

    if added is not None:
        wanted = blueprint(spec.blueprint).engines
        enginefile.recipe(engine, wanted, spec.blueprint, added)
    return structs.replace(spec, engine=engine)


def expand(verb: Callable[..., T]) -> Callable[..., T]:
    """Give a verb the fields of each parameter that is a class of flags in its place."""
    signature = inspect.signature(verb, eval_str=True)
    groups: dict[str, type[Any]] = {}
    parameters = []
    for name, parameter in signature.parameters.items():
        kind = parameter.annotation
        if not is_dataclass(kind):
            parameters.append(parameter)
            continue
        groups[name] = cast("type[Any]", kind)
        types = get_type_hints(kind, include_extras=True)
        parameters += [
            parameter.replace(name=flag.name, annotation=types[flag.name], default=flag.default)
            for flag in fields(kind)
        ]

    @wraps(verb)
    def expanded(**given: Any) -> T:
        for name, kind in groups.items():
            given[name] = kind(**{flag.name: given.pop(flag.name) for flag in fields(kind)})
        return verb(**given)

    expanded.__signature__ = signature.replace(parameters=parameters)  # type: ignore[attr-defined]
    return expanded


def creation_of(spec: LabSpec, creation: Creation, *, exist_ok: bool = False) -> CreateLab:
    """The request for a lab; ``exist_ok``: or for the one that exists already."""
    from lab.requests.labs import CreateLab, EnsureLab
    from lab.spec import LabSpec

    own = set(CreateLab.__struct_fields__) - set(LabSpec.__struct_fields__)
    given = {flag: value for flag, value in vars(creation).items() if flag in own}
    return (EnsureLab if exist_ok else CreateLab).of(spec, **given)


def wanted(
    settings: Settings, cluster: Cluster, creation: Creation | None = None, snapshots: str = ""
) -> LabSpec:
    """The lab that flags and ``lab.toml`` describe; raises InvalidSpec."""
    from lab.config import labfile

    unread: set[str] = set() if creation else {*_OF_LABS}
    creation = creation or Creation()
    texts = vars(cluster) | {"name": creation.name, "ttl": creation.ttl, "snapshots": snapshots}
    given = cast("LabValues", {key: _read(key, text) for key, text in texts.items() if text})
    values = labfile.read(labfile.here(), unread | set(given))
    spec = labfile.merge(values, given, default_ttl=settings.default_ttl)
    if not settings.url:  # a service has profiles of its own
        settings.profile_of(spec.profile)  # a wrong name is reported before anything else
    return spec


def _read(key: str, given: object) -> object:
    """The value of a key of ``lab.toml`` that is given as a flag; raises InvalidSpec."""
    from lab.config.labfile import KEYS
    from lab.keys import number

    flag = f"--{key.replace('_', '-')}"
    if KEYS[key].parse is number:  # a text is no number in a file, but the only way here
        return whole(flag, str(given))
    try:
        return KEYS[key].parse(given)
    except InvalidSpec as error:
        raise _about(flag, error) from None


def whole(flag: str, text: str) -> int:
    """A whole number; raises InvalidSpec."""
    if not _WHOLE.fullmatch(text):
        raise InvalidSpec(f"{flag}: {text!r} is not a whole number")
    return int(text)


def size(flag: str, text: str) -> int:
    """Bytes; raises InvalidSpec."""
    try:
        return parse_size(text)
    except InvalidSpec as error:
        raise _about(flag, error) from None


def duration(flag: str, text: str) -> float:
    """Seconds, from ``90s`` or ``5m``; raises InvalidSpec."""
    try:
        return parse_duration(text)
    except InvalidSpec as error:
        raise _about(flag, error) from None


def seconds(flag: str, text: str) -> float:
    """The seconds of a duration; a number without a unit, such as ``90``, is one of seconds."""
    return duration(flag, f"{text}s" if text.isdecimal() and text.isascii() else text)


def lease(flag: str, text: str) -> float | None:
    """Seconds, or None for ``none``; raises InvalidSpec."""
    return None if text.lower() == "none" else duration(flag, text)


def asleep_after(text: str) -> float | None:
    """Seconds, 0 for ``never``, None if nothing was given; raises InvalidSpec."""
    if not text:
        return None
    return 0.0 if text.lower() == "never" else duration("--asleep-after", text)


def timeout(text: str, default: float) -> float:
    """Seconds; raises InvalidSpec."""
    return seconds("--timeout", text) if text else default


def node(text: str, default: str = "n1") -> str:
    """A node's name; raises InvalidSpec."""
    from lab.names import parse_node

    return parse_node(text) if text else default


def maybe_node(text: str) -> str | None:
    """A node's name, None if none was given; raises InvalidSpec."""
    return node(text) if text else None


def lab_and(what: str, words: list[str], example: str) -> tuple[str, str]:
    """``words`` of ``[NAME] WORD``: the lab, empty if it is not named, and the word.

    Raises InvalidSpec.
    """
    if len(words) > 2:
        raise InvalidSpec(f"expected a lab and {what}, not {len(words)} words", hint=example)
    return (words[0] if len(words) == 2 else ""), words[-1]


def identity(text: str) -> Identity:
    """Whose identity; raises InvalidSpec."""
    for known in IDENTITIES:
        if text == known:
            return known
    raise InvalidSpec(f"--identity: {text!r} is neither of {', '.join(IDENTITIES)}")


def _about(flag: str, error: InvalidSpec) -> InvalidSpec:
    return InvalidSpec(f"{flag}: {error.what}", hint=error.hint)
