"""A Galera cluster: every node a member, all of them writable.

All nodes start from one data directory that was cleanly closed, so there is nothing to
transfer. Each is also given the file in which Galera notes its last primary view
(``gvwstate.dat``), forged so that all of them were members of one: they find each other and
restore that view together (``pc.recovery``) instead of one bootstrapping and the others
joining. Format: the Galera documentation, "Recovering Primary Component".
"""

from __future__ import annotations

import hashlib
import uuid
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from string import Template

from lab.blueprints import Check, Engine, Member, Remedy, Unmet, rejoin
from lab.config.profile import EngineProfile
from lab.errors import InvalidSpec
from lab.guest.seed import SeedFile
from lab.spec import MIB

_NAMESPACE = uuid.UUID("6ba7b812-9dad-11d1-80b4-00c04fd430c8")


@dataclass(frozen=True)
class Galera:
    """See Blueprint. ``engines`` differ: ``pxc`` prefers Percona's, ``galera`` is MariaDB's."""

    name: str
    engines: tuple[str, ...]
    version: int = 1

    def roles(self, nodes: int) -> list[str]:
        """See Blueprint."""
        return ["member"] * nodes

    def files(
        self,
        member: Member,
        members: Sequence[Member],
        engine: Engine,
        memory: int,
        profile: EngineProfile,
    ) -> Mapping[str, SeedFile]:
        """See Blueprint."""
        config = _config(member, members, engine, memory, profile)
        files = {engine.config_path: SeedFile(config.encode())}
        if len(members) > 1:
            view = SeedFile(_view(member, members).encode(), 0o660, engine.uid, engine.gid)
            files["/var/lib/mysql/gvwstate.dat"] = view
        return files

    def own(
        self, member: Member, engine: Engine, user: str, password: str, *, tls: bool = False
    ) -> Sequence[str]:
        """See Blueprint."""
        how = "VIA mysql_native_password USING"
        if not _is_mariadb(engine):
            how = "WITH mysql_native_password AS"
        require = " REQUIRE SSL" if tls else ""
        alter = (
            f"ALTER USER '{user}'@'%' IDENTIFIED {how} '{native_hash(password)}'"
            f"{require} ACCOUNT UNLOCK"
        )
        # Accounts are replicated: one node changes them for all.
        return [self.renew(engine), alter] if member.index == 1 else [self.renew(engine)]

    def renew(self, engine: Engine) -> str:
        """See Blueprint."""
        return "FLUSH LOCAL SSL" if _is_mariadb(engine) else "ALTER INSTANCE RELOAD TLS"

    def question(self) -> str:
        """See Blueprint."""
        # LIKE, not WHERE: the server then computes only these of its hundreds of variables.
        return "SHOW GLOBAL STATUS LIKE 'wsrep_%'"

    def checks(self, answer: Mapping[str, str], nodes: int) -> list[Check]:
        """See Blueprint."""
        wanted: tuple[tuple[str, str, str, Unmet], ...] = (
            ("Synced", "wsrep_local_state_comment", "Synced", "not-synced"),
            ("Primary", "wsrep_cluster_status", "Primary", "not-primary"),
            (f"size {nodes}", "wsrep_cluster_size", str(nodes), "degraded"),
            ("wsrep_ready", "wsrep_ready", "ON", "not-synced"),
        )
        return [
            Check(name, f"{key} is {value}", found == value, found, unmet)
            for name, key, value, unmet in wanted
            for found in [answer.get(key, "nothing")]
        ]

    def remedies(
        self, standings: Mapping[str, str], *, all_here: bool, waited: bool
    ) -> list[Remedy]:
        """See Blueprint."""
        return rejoin.remedies(standings, all_here=all_here, waited=waited)


def _is_mariadb(engine: Engine) -> bool:
    return engine.name == "mariadb"


def native_hash(password: str) -> str:
    """What the server keeps of a password: ``mysql_native_password``, SHA1 of SHA1."""
    inner = hashlib.sha1(password.encode(), usedforsecurity=False).digest()
    return "*" + hashlib.sha1(inner, usedforsecurity=False).hexdigest().upper()


def _config(
    member: Member,
    members: Sequence[Member],
    engine: Engine,
    memory: int,
    profile: EngineProfile,
) -> str:
    peers = ",".join(other.address for other in members)
    values = {
        "server_id": member.index,
        "buffer_pool": f"{memory * profile.buffer_pool // 100 // MIB}M",
        "flush_method": profile.flush_method,
        "flush_log": profile.flush_log,
        "doublewrite": "ON" if profile.doublewrite else "OFF",
        "io_capacity": profile.io_capacity,
        "log_directory": engine.log_directory,
        "node_name": member.name,
        "node_address": member.address,
        "cluster_name": "lab",
        # A node alone has no one to find: it always starts a cluster of its own.
        "cluster_address": f"gcomm://{peers}" if len(members) > 1 else "gcomm://",
    }
    try:
        return Template(engine.config).substitute(values)
    except (KeyError, ValueError) as error:
        # one of another version of lab, which was imported
        raise InvalidSpec(
            f"the image's option file asks for what this version of lab does not know: {error}",
            hint="use an image that this version of lab built",
        ) from None


def _view(member: Member, members: Sequence[Member]) -> str:
    identities = {other.name: _identity(other) for other in members}
    ordered = sorted(identities.values())
    lines = [
        f"my_uuid: {identities[member.name]}",
        "#vwbeg",
        f"view_id: 3 {ordered[0]} 1",
        "bootstrap: 0",
        *(f"member: {identity} 0" for identity in ordered),
        "#vwend",
    ]
    return "".join(f"{line}\n" for line in lines)


def _identity(member: Member) -> str:
    # A group channel's UUIDs are time-based ones; any distinct values do.
    return str(uuid.uuid5(_NAMESPACE, f"lab/{member.name}"))


PXC = Galera("pxc", ("percona-xtradb-cluster", "mariadb"))
GALERA = Galera("galera", ("mariadb",))
