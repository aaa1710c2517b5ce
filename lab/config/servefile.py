"""How the service works: the table ``[serve]`` of a config file.

Example::

    [serve]
    address = "0.0.0.0"
    tls_cert = "/etc/lab/tls.crt"
    tls_key = "/etc/lab/tls.key"
    max_ttl = "8h"
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Any

from lab.config import poolfile, tomlfile
from lab.config.poolfile import WarmPool
from lab.config.tomlfile import Key, Keys, WrongType
from lab.errors import InvalidSpec
from lab.spec import MIB


@dataclass(frozen=True)
class Serve:
    """Settings of the service; durations in seconds, sizes in bytes.

    ``proxy``: the address of a proxy that tells whom it asks for; empty: there is none.
    ``database``: where jobs are kept, as SQLAlchemy writes it; empty: a file in the home.
    ``tls_cert``, ``tls_key``: files. ``hsts``: browsers are to use TLS for all ports of the host.
    ``metrics``: /metrics answers, to anybody. ``execute``:
    programs may be run in nodes. ``default_ttl``, ``max_ttl``: leases. ``sweep``: how often expired
    labs are looked for. ``memory``, ``cpus``: what all labs may have together; 0: what the host has
    available, and no limit. ``queue``, ``queue_timeout``: how many requests may wait for room, and
    how long. ``token_jobs``: how many jobs of a token may be open. ``project_snapshots``,
    ``project_templates``: the quotas of projects whose tokens have none; 0: no limit.
    ``webhook``: where events of labs are sent, signed with the content of the file
    ``webhook_secret``;
    ``warn_before``: that long before a lease ends. ``failed_auth``: wrong tokens from one address
    within a minute, before more are refused for a while. ``keep_jobs``: how long those that ended,
    their events and the audit trail are kept. ``pool``: labs that are kept ready. ``trace``: a
    collector of OpenTelemetry; empty: where its own variables say, if they do.
    ``page``: there is a web page at /.
    """

    address: str = "127.0.0.1"
    port: int = 8080
    proxy: str = ""
    tls_cert: str = ""
    tls_key: str = ""
    hsts: bool = False
    database: str = field(default="", repr=False)
    metrics: bool = False
    page: bool = True
    execute: bool = True
    default_ttl: float = 3600.0
    max_ttl: float = 86400.0
    sweep: float = 15.0
    memory: int = 0
    cpus: int = 0
    queue: int = 100
    queue_timeout: float = 300.0
    token_jobs: int = 100
    project_snapshots: int = 200
    project_templates: int = 8
    webhook: str = ""
    webhook_secret: str = ""
    warn_before: float = 300.0
    failed_auth: int = 20
    body_limit: int = MIB
    request_timeout: float = 60.0
    keep_jobs: float = 7 * 86400.0
    pool: tuple[WarmPool, ...] = ()
    trace: str = ""

    @property
    def loopback(self) -> bool:
        """Whether only this host can reach the service."""
        return self.address in ("localhost", "::1") or self.address.startswith("127.")


def parse(value: object) -> Serve:
    """The table ``[serve]``; raises WrongType or InvalidSpec."""
    if not isinstance(value, Mapping):
        raise WrongType
    said: dict[str, Any] = {
        key: tomlfile.parse(KEYS, key, each, "[serve]") for key, each in value.items()
    }
    serve = Serve(**said)
    if bool(serve.tls_cert) != bool(serve.tls_key):
        raise InvalidSpec("[serve]: TLS takes both, tls_cert and tls_key")
    if serve.webhook and not serve.webhook_secret:
        raise InvalidSpec("[serve]: a webhook is signed: webhook_secret names a file with a secret")
    if serve.default_ttl > serve.max_ttl:
        raise InvalidSpec("[serve]: default_ttl is more than max_ttl")
    return serve


def _port(value: object) -> int:
    number = tomlfile.whole(value)
    if number > 65535:
        raise WrongType
    return number


def _yes(value: object) -> bool:
    if not isinstance(value, bool):
        raise WrongType
    return value


def _address(value: object) -> str:
    found = tomlfile.text(value).strip()
    if not found:
        raise WrongType
    return found


def _url(value: object) -> str:
    found = tomlfile.text(value)
    if found and not found.startswith(("http://", "https://")):
        raise WrongType
    return found


_BOOL = Key("true or false", _yes)
_DURATION = Key("seconds, or a duration such as 5m", tomlfile.seconds)
_FILE = Key("the path of a file", tomlfile.text)
_NUMBER = Key("a whole number", tomlfile.whole)
_SIZE = Key("bytes, or a size such as 16G", tomlfile.size)


def _positive(value: object) -> int:
    number = tomlfile.whole(value)
    if number < 1:
        raise WrongType
    return number


_POSITIVE = Key("a whole number, 1 at least", _positive)

KEYS: Keys = {
    "address": Key("an address of this host", _address),
    "port": Key("a port", _port),
    "proxy": Key("the address of a proxy", tomlfile.text),
    "tls_cert": _FILE,
    "tls_key": _FILE,
    "hsts": _BOOL,
    "database": Key("a URL such as postgresql://host/lab", tomlfile.text),
    "metrics": _BOOL,
    "page": _BOOL,
    "execute": _BOOL,
    "default_ttl": _DURATION,
    "max_ttl": _DURATION,
    "sweep": _DURATION,
    "memory": _SIZE,
    "cpus": _NUMBER,
    "queue": _POSITIVE,
    "queue_timeout": _DURATION,
    "token_jobs": _POSITIVE,
    "project_snapshots": _NUMBER,
    "project_templates": _NUMBER,
    "webhook": Key("an http or https URL", _url),
    "webhook_secret": _FILE,
    "warn_before": _DURATION,
    "failed_auth": _POSITIVE,
    "body_limit": _SIZE,
    "request_timeout": _DURATION,
    "keep_jobs": _DURATION,
    "pool": Key("tables, one for each pool", poolfile.parse),
    "trace": Key("an http or https URL", _url),
}
"""Every field of ``Serve``."""
