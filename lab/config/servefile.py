"""How the service works: the table ``[serve]`` of a config file.

Example::

    [serve]
    address = "0.0.0.0"
    tls_cert = "/etc/lab/tls.crt"
    tls_key = "/etc/lab/tls.key"
    max_ttl = "8h"
"""

import re
from dataclasses import field
from typing import Annotated

from lab.config import datasetfile, poolfile
from lab.config.datasetfile import ScheduledDataset
from lab.config.poolfile import WarmPool
from lab.errors import InvalidSpec
from lab.keys import Key, WrongType, keys, matching, parse_all, text, within
from lab.units import GIB, MIB, Seconds, SecondsOrZero, Size
from lab.values import dataclass


def _address(value: object) -> str:
    if not text(value).strip():
        raise WrongType
    return text(value).strip()


HOST_NAME = r"(?:[a-z0-9][a-z0-9-]{0,62})?"
_LABEL = re.compile(r"[a-z0-9][a-z0-9._-]{0,62}")


def _labels(value: object) -> tuple[str, ...]:
    if not isinstance(value, list) or not all(isinstance(one, str) for one in value):
        raise WrongType
    for one in value:
        if not _LABEL.fullmatch(one):
            raise InvalidSpec(f"{one!r} is no label", hint="lower-case letters, digits, . _ and -")
    return tuple(value)


_File = Annotated[str, Key("the path of a file", text)]
_Url = Annotated[str, matching("an http or https URL", r"(?s)(https?://.*)?")]


@dataclass(frozen=True)
class Serve:
    """Settings of the service: bytes and seconds. The texts are those of docs/api.md."""

    address: Annotated[str, Key("an address of this host", _address)] = "127.0.0.1"
    """Where to listen; also ``lab serve --address``."""
    port: Annotated[int, within(0, 65535)] = 8080
    """Also ``--port``; 0: any."""
    proxy: Annotated[str, Key("the address of a proxy", text)] = ""
    """The address of a proxy in front, whose ``X-Forwarded-For`` is believed."""
    tls_cert: _File = ""
    """A file with the certificate and its chain."""
    tls_key: _File = ""
    """A file with its key."""
    hsts: bool = False
    """Browsers use only TLS, for 30 days, for all ports of the host name of the service."""
    database: Annotated[str, Key("a URL such as postgresql://host/lab", text)] = field(
        default="", repr=False
    )
    """The database of the fleet that this host belongs to; also ``--database``."""
    host_name: Annotated[str, matching("a word", HOST_NAME)] = ""
    """The name of this host in its fleet; also ``--host-name``."""
    host_labels: Annotated[tuple[str, ...], Key("a list of words", _labels)] = ()
    """What labs can ask for: `lab up --host @LABEL`."""
    fleet_address: Annotated[str, Key("an address of this host", text)] = ""
    """Where to listen for other hosts of the fleet; default: `address`."""
    fleet_port: Annotated[int, within(0, 65535)] = 7443
    """Where to listen for other hosts; 0: any."""
    fleet_url: _Url = ""
    """How other hosts reach this one; default: by `fleet_address` and `fleet_port`."""
    metrics: bool = False
    """``/metrics`` answers, without a token."""
    page: bool = True
    """A web page at ``/``."""
    execute: bool = True
    """Programs may be run in nodes; SSH and consoles need it as well."""
    default_ttl: Seconds = 3600.0
    """The lease of labs that request none."""
    max_ttl: Seconds = 86400.0
    """The longest lease."""
    asleep_after: SecondsOrZero = 0.0
    """How long a lab may be without use before it is paused; 0: labs do not sleep by themselves."""
    sweep: Seconds = 15.0
    """The interval between searches for expired labs."""
    memory: Size = 0
    """The limit for all labs together; 0: the host's memory, less ``memory_floor``."""
    cpus: int = 0
    """Processors of all labs together; 0: no limit."""
    queue: Annotated[int, within(1)] = 100
    """How many jobs may wait for room."""
    queue_timeout: Seconds = 300.0
    """How long a job may wait for room."""
    token_jobs: Annotated[int, within(1)] = 100
    """How many jobs of a token may be open."""
    token_rate: Annotated[int, within(1)] = 120
    """How many jobs a token without the scope ``admin`` may submit within a minute."""
    token_requests: Size = 16 * MIB
    """The total size of the requests of the open jobs of such a token."""
    project_snapshots: int = 200
    """Snapshots of a project whose token has no quota; 0: no limit."""
    dataset_size: Size = 20 * GIB
    """The SQL of a dataset of a token without the scope ``admin``; 0: no limit."""
    dataset_time: SecondsOrZero = 7200.0
    """How long a job of such a token may load a dataset; 0: no limit."""
    project_templates: int = 8
    """Templates built for such a project; 0: no limit."""
    webhook: _Url = ""
    """A URL that events of labs are sent to."""
    webhook_secret: _File = ""
    """A file with the secret that events are signed with: ``whsec_`` and the Base64 of 24 bytes at
    least."""
    warn_before: Seconds = 300.0
    """How long before a lease ends the webhook gets an event."""
    failed_auth: Annotated[int, within(1)] = 20
    """Wrong tokens from one address within a minute, before more are answered with 429."""
    body_limit: Size = MIB
    """The largest request."""
    request_timeout: Seconds = 60.0
    """How long the head of a request may take to arrive, and its body."""
    keep_jobs: Seconds = 7 * 86400.0
    """How long jobs that ended, their events and the audit trail are kept."""
    pool: Annotated[tuple[WarmPool, ...], Key("tables, one for each pool", poolfile.parse)] = ()
    """Labs that are kept ready: tables."""
    datasets: Annotated[
        tuple[ScheduledDataset, ...], Key("tables, one for each dataset", datasetfile.parse)
    ] = ()
    """Datasets that are refreshed by a schedule: tables."""
    trace: _Url = ""
    """The URL of an OpenTelemetry collector that traces are sent to, such as
    ``http://127.0.0.1:4318``."""

    @property
    def loopback(self) -> bool:
        """Whether only this host can reach the service."""
        return self.address in ("localhost", "::1") or self.address.startswith("127.")


def fleet(serve: Serve, *, database: str | None, host_name: str | None) -> dict[str, object]:
    """The fields of a host of a fleet, with those that flags give; raises InvalidSpec."""
    given = {"database": database, "host_name": host_name}
    values = {name: one for name, one in given.items() if one is not None}
    found = {"database": serve.database, "host_name": serve.host_name}
    found |= parse_all(keys(Serve), values, "")
    _check_fleet(found["database"], found["host_name"])
    return dict(found)


def _check_fleet(database: str, host_name: str) -> None:
    if bool(database) != bool(host_name):
        raise InvalidSpec(
            "a host of a fleet requires both a database and a host name",
            hint="`lab serve --database URL --host-name NAME`, or both in [serve]",
        )


def parse(value: object) -> Serve:
    """The table ``[serve]``; raises WrongType or InvalidSpec."""
    serve = Serve(**parse_all(keys(Serve), value, "[serve]"))
    if bool(serve.tls_cert) != bool(serve.tls_key):
        raise InvalidSpec("[serve]: TLS requires both tls_cert and tls_key")
    if serve.webhook and not serve.webhook_secret:
        raise InvalidSpec(
            "[serve]: webhook requires webhook_secret, a file with the signing secret"
        )
    _check_fleet(serve.database, serve.host_name)
    if serve.default_ttl > serve.max_ttl:
        raise InvalidSpec("[serve]: default_ttl exceeds max_ttl")
    return serve
