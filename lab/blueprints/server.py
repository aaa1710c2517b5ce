"""What blueprints share: the option file and the statements of one server of the MySQL family."""

from __future__ import annotations

import hashlib
from collections.abc import Callable, Mapping, Sequence
from dataclasses import replace
from string import Template

from lab import users
from lab.blueprints import (
    Cluster,
    Engine,
    Link,
    Member,
    Promotion,
    Remedy,
    Situation,
    proxy,
)
from lab.blueprints.dialects import dialect_of, plugin_of
from lab.config.enginefile import family_of
from lab.config.profile import EngineProfile
from lab.errors import CommandFailed, InvalidSpec, NotReady
from lab.options import NONE, Options
from lab.passwords import CACHING_SHA2, caching_sha2, native
from lab.units import MIB
from lab.values import dataclass
from lab.wait import Deadline, attempts

_IDENTIFY_SECONDS = 60.0
_STOP_SECONDS = 120.0
_SQL = "/usr/lib/lab/sql"
_SERVER_SECONDS = "3"
"""How long the guest's program waits for a server that starts: see ``readiness``."""
_CALL_SECONDS = 30.0
_PROGRAM = "/usr/lib/lab/rejoin"
_ENDED = ("failed", "inactive")
_MOST = 2
"""How often a server that ended is started again."""


def options(
    member: Member,
    engine: Engine,
    memory: int,
    profile: EngineProfile,
    more: Mapping[str, str] | None = None,
) -> str:
    """The option file of ``member``, from the image's template.

    ``memory`` of the node in bytes; ``more``: the variables of the blueprint. Raises InvalidSpec if
    the template has a variable that is not known here.
    """
    values = {
        "server_id": str(member.index),
        "buffer_pool": f"{memory * profile.buffer_pool // 100 // MIB}M",
        "flush_method": profile.flush_method,
        "flush_log": str(profile.flush_log),
        "doublewrite": "ON" if profile.doublewrite else "OFF",
        "io_capacity": str(profile.io_capacity),
        "log_directory": engine.log_directory,
        **(more or {}),
    }
    try:
        text = Template(engine.config).substitute(values)
    except (KeyError, ValueError) as error:
        # one of another version of lab, which was imported
        raise InvalidSpec(
            f"the image's option file asks for what this version of lab does not know: {error}",
            hint="use an image that this version of lab built",
        ) from None
    return dialect_of(engine).understood(text)


_ALL_DATA = (
    "SELECT, INSERT, UPDATE, DELETE, CREATE, DROP, REFERENCES, INDEX, ALTER,"
    " CREATE TEMPORARY TABLES, LOCK TABLES, EXECUTE, CREATE VIEW, SHOW VIEW, CREATE ROUTINE,"
    " ALTER ROUTINE, EVENT, TRIGGER"
)
"""What can be granted in a database. Granted in all of them, it writes to no replica."""
COMMON = frozenset({"set", "my_cnf", "init", "user", "client"})
"""The options of all blueprints."""


@dataclass(frozen=True, kw_only=True)
class Defaults:
    """What blueprints do unless they say otherwise; see Blueprint."""

    transient: str = "Lock wait timeout|Deadlock found"
    elects: bool = False
    writers: tuple[str, ...] = ()
    late: tuple[str, ...] = ()
    hands_over: bool = False
    any_source: bool = False
    transfers: bool = False
    needs: tuple[str, ...] = ()
    look_every: float = 10.0
    options: Options = NONE
    takes: frozenset[str] = COMMON
    nodes: int = 0
    """How many a lab has that ``blueprint_of`` was asked for."""

    def form(self, cluster: Cluster, engines: Mapping[str, Engine], deadline: Deadline) -> None:
        """See Blueprint."""

    def sources(self, member: Member, members: Sequence[Member]) -> tuple[str, ...]:  # noqa: ARG002
        """See Blueprint."""
        return ()

    def elsewhere(
        self,
        member: Member,  # noqa: ARG002  part of the protocol
        members: Sequence[Member],  # noqa: ARG002  part of the protocol
        answer: Mapping[str, str],  # noqa: ARG002  part of the protocol
        reported: Mapping[str, Mapping[str, str]],  # noqa: ARG002  part of the protocol
    ) -> tuple[str, ...]:
        """See Blueprint."""
        return ()

    def through(self, role: str) -> Mapping[str, str]:  # noqa: ARG002  part of the protocol
        """See Blueprint."""
        return {}

    def role(self, planned: str, answer: Mapping[str, str]) -> str:  # noqa: ARG002
        """See Blueprint."""
        return planned

    def promote(
        self,
        cluster: Cluster,  # noqa: ARG002  part of the protocol
        engines: Mapping[str, Engine],  # noqa: ARG002  part of the protocol
        promotion: Promotion,
    ) -> None:
        """See Blueprint."""
        why = "every node of this topology takes writes, or follows one that does"
        if len(promotion.nodes) == 1:
            why = "it is the only node"
        raise InvalidSpec(
            f"{promotion.to} cannot be promoted: {why}",
            hint="nodes of the blueprints replication and group can be promoted",
        )

    def follows(self, role: str) -> bool:  # noqa: ARG002
        """See Blueprint."""
        return False

    def links(self, members: Sequence[Member]) -> tuple[Link, ...]:  # noqa: ARG002
        """See Blueprint."""
        return ()

    def position(self, answer: Mapping[str, str]) -> str:
        """See Blueprint."""
        return answer.get("position", "")

    def renew(self, engine: Engine) -> str:
        """See Blueprint."""
        return dialect_of(engine).renew

    def renewal(self, engine: Engine) -> list[str]:
        """The statements of ``renew``; none for a server that cannot."""
        return list(filter(None, [self.renew(engine)]))

    def rest(self, cluster: Cluster, engines: Mapping[str, Engine]) -> None:
        """See Blueprint; the guest's shutdown stops the server cleanly."""

    def identify(self, cluster: Cluster, engines: Mapping[str, Engine], identity: int) -> None:
        """See Blueprint."""
        identify_all(cluster, engines, identity, lambda _: 0)

    def standing(self, engine: Engine) -> tuple[str, ...]:
        """See Blueprint."""
        return (_PROGRAM, "state", engine.service)

    def unchanging(self, standing: str) -> str:
        """See Blueprint."""
        return state(standing)

    def remark(self, standing: str) -> str:  # noqa: ARG002  part of the protocol
        """See Blueprint."""
        return ""

    def remedies(self, situation: Situation, engines: Mapping[str, Engine]) -> list[Remedy]:
        """See Blueprint; servers recover by themselves, unless one has ended."""
        return restarts(situation, engines)


def alone(engine: Engine) -> Engine:
    """``engine`` with the option file of a server that is in no Galera cluster."""
    # Without these groups it loads no provider and starts as any other MariaDB. Percona's has
    # the same options among those of the server.
    kept = without_groups(engine.config, "galera", "sst").splitlines(keepends=True)
    config = "".join(line for line in kept if not line.startswith(("wsrep_", "pxc_")))
    return replace(engine, config=config)


def without_groups(config: str, *groups: str) -> str:
    """An option file without the lines of each ``[group]``."""
    kept, here = [], ""
    for line in config.splitlines(keepends=True):
        if line.startswith("["):
            here = line.strip()[1:-1]
        if here not in groups:
            kept.append(line)
    return "".join(kept)


def unlock(engine: Engine, user: str, password: str, *, tls: bool) -> str:
    """The statement that sets the password of ``user`` by its hash, and unlocks the account.

    ``tls``: the user may log in through TLS only.
    """
    require = " REQUIRE SSL" if tls else ""
    return _altered(engine, f"'{user}'@'%'", identified(engine, password), require)


def accounts(engine: Engine, user: str, password: str, options: Options, *, tls: bool) -> list[str]:
    """The statements after which ``user`` and the accounts of ``options`` can log in.

    Of the latter, each is as it was given, also where the server has one of that name.
    """
    require = " REQUIRE SSL" if tls else " REQUIRE NONE"
    found = [unlock(engine, user, password, tls=tls)]
    for one in options.user:
        account = f"'{one.name}'@'%'"
        kept = _kept(engine, one.native, one.caching_sha2)
        what = _ALL_DATA if one.scope == users.ALL else "ALL PRIVILEGES"
        found += [
            dialect_of(engine).create.format(account=account),
            f"REVOKE ALL PRIVILEGES, GRANT OPTION FROM {account}",
            _altered(engine, account, kept, require),
            f"GRANT {what} ON {_databases(one.scope)}.* TO {account}",
        ]
    return found


def _altered(engine: Engine, account: str, kept: str, require: str) -> str:
    """The statement that gives an account its password, and unlocks it."""
    dialect = dialect_of(engine)
    text = dialect.alter.format(account=account, identified=kept, require=require)
    return text + dialect.unlocked


def _databases(scope: str) -> str:
    """A database in a GRANT, where ``_`` stands for any character unless it is escaped."""
    escaped = scope.replace("_", "\\_")
    return scope if scope == users.ALL else f"`{escaped}`"


def identified(engine: Engine, password: str) -> str:
    """What follows an account's name in a statement that sets its password, by its hash."""
    if plugin_of(engine) == CACHING_SHA2:
        return _kept(engine, "", caching_sha2(password))
    return _kept(engine, native(password), "")


def _kept(engine: Engine, native_hash: str, caching_sha2_hash: str) -> str:
    if plugin_of(engine) == CACHING_SHA2:
        return f"IDENTIFIED WITH caching_sha2_password AS 0x{caching_sha2_hash.encode().hex()}"
    return dialect_of(engine).by_native_hash.format(hash=native_hash)


def first_statements(
    cluster: Cluster, member: Member, statements: Sequence[str], deadline: Deadline
) -> None:
    """Execute statements once a node that boots takes them; raises NotReady and CommandFailed."""
    for _ in attempts(deadline):
        try:
            program = [_SQL, _SERVER_SECONDS]
            cluster.run(member, program, stdin=b"DO 1\n", timeout=_CALL_SECONDS)
        except (NotReady, CommandFailed):
            continue
        stdin = "".join(f"{statement}\n" for statement in statements).encode()
        cluster.run(member, [_SQL], stdin=stdin, timeout=_CALL_SECONDS)
        return
    raise NotReady(f"the server of {member.name} did not start in time")


def identify_all(
    cluster: Cluster,
    engines: Mapping[str, Engine],
    identity: int,
    domain: Callable[[Member], int],
) -> None:
    """Stop all servers and ``identify`` them. Raises NotReady or CommandFailed."""
    # All of them first: a server that starts may join one that is to stop.
    cluster = proxy.servers_of(cluster)
    cluster.each(
        lambda m: cluster.run(
            m, ("systemctl", "stop", engines[m.name].service), timeout=_STOP_SECONDS
        )
    )
    cluster.each(lambda m: identify(cluster, m, engines[m.name], identity, domain=domain(m)))


def identify(
    cluster: Cluster,
    member: Member,
    engine: Engine,
    identity: int,
    *history: str,
    view: str = "",
    domain: int = 0,
) -> None:
    """Give ``member``, whose server does not run, identities of its own, and start its server.

    ``history``, ``view``: the arguments and input of the guest's program for a node of a cluster.
    ``domain``: what its GTID domain is more than ``identity``.
    Raises NotReady or CommandFailed.
    """
    own = identity + domain if dialect_of(engine).gtid_domains else 0
    program = ("/usr/lib/lab/identity", engine.config_path, str(identity + member.index))
    cluster.run(
        member, [*program, str(own), *history], stdin=view.encode(), timeout=_IDENTIFY_SECONDS
    )
    start = ("systemctl", "start", "--no-block", engine.service)
    cluster.run(member, start, timeout=_IDENTIFY_SECONDS)


def peer_password(password: str) -> str:
    """What the servers of a lab with this ``password`` log in with at each other."""
    return hashlib.sha256(f"replication {password}".encode()).hexdigest()[:32]


def state(standing: str) -> str:
    """The state of the server's unit, in systemd's words; empty if it is not known."""
    pairs = (line.split("\t", 1) for line in standing.splitlines() if "\t" in line)
    return next((value for name, value in pairs if name == "server"), "")


def restarts(situation: Situation, engines: Mapping[str, Engine]) -> list[Remedy]:
    """The remedies for servers that recover by themselves, unless one has ended."""
    return [
        Remedy(
            node,
            "restart",
            (_PROGRAM, "restart", engines[node].service),
            "its server was not running",
            "; its server is restarted",
        )
        for node, standing in situation.standings.items()
        if state(standing) in _ENDED and situation.given.get((node, "restart"), 0) < _MOST
    ]


def client(engine: Engine) -> tuple[str, ...]:
    """The program that executes the statements on its standard input, in the guest, as root."""
    return (
        family_of(engine.name).client,
        "--no-defaults",
        "--user=root",
        "--socket=/run/mysqld/mysqld.sock",
        "--batch",
        "--binary-mode",
        "--comments",  # in the bodies of routines, which MariaDB's client leaves out
        "--default-character-set=utf8mb4",
        # Also where users' options turn it off: what is inserted would end with the session.
        "--init-command=SET SESSION autocommit = 1",
        # Clients of MariaDB since 11.4 want TLS at the socket, too; others do not know the option.
        *(() if dialect_of(engine).tls else ("--loose-ssl=0",)),
    )
