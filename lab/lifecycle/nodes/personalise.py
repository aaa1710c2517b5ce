"""Making a clone itself: clock, random seeds, password and keys, before anyone can use it."""

from __future__ import annotations

import re
import time
from collections.abc import Callable, Collection, Iterator, Mapping, Sequence
from contextlib import contextmanager
from functools import partial
from pathlib import Path

from lab.blueprints import Blueprint
from lab.blueprints.dialects import dialect_of
from lab.drafts import replaced
from lab.errors import CommandFailed, NotFound, NotReady
from lab.guest import identity, network
from lab.guest.identity import make_password
from lab.lifecycle.core.context import Context
from lab.lifecycle.core.parallel import each, each_until
from lab.lifecycle.images.ready import Images
from lab.lifecycle.nodes.home_ca import authority as authority_of
from lab.lifecycle.nodes.nodes import Node
from lab.lifecycle.nodes.ssh import known_as
from lab.locks.named import lock
from lab.names import EVERYWHERE, LOOPBACK, Owner
from lab.observe.target import member_of
from lab.wait import Deadline, attempts

__all__ = [
    "USER",
    "Prepared",
    "correct_clocks",
    "make_password",
    "personalise",
    "prepare",
    "rehearse",
    "renew",
    "set_clocks",
    "wrong_clocks",
]

USER = "lab"
"""The account that images have for a lab's user."""

DRIFT = 2.0
"""Seconds by which a node's clock may differ from ours before it is set."""

Prepared = tuple[identity.SshKey, Mapping[str, identity.NodeIdentity]]
"""The key with which the user logs in, and each node's own identity."""

_TLS_DIRECTORY = "/etc/mysql/tls"
_SECONDS = 60.0
_OLDER = "reseed: unknown item"
"""What the program in images of earlier versions answers."""
_SLOW = "sessions: still there|reseed: no random bytes of the server: no answer"
"""What it answers while a server undoes the transaction of a session that was ended, and where a
server needs more than ten seconds to respond, as on a host that is emulated itself."""
_AGAIN = 0.25
"""Seconds before a message that the server refused is sent again."""
_HOST = re.compile(r"^(\[127\.0\.0\.1\]:)(\d+)", re.MULTILINE)


def prepare(
    ctx: Context, owner: Owner, nodes: Sequence[Node], cluster: Sequence[Node] = ()
) -> Prepared:
    """Fresh identities; the user's key and the hosts' public keys are written for ssh.

    The user's key stays if the lab has one that can be read, and so do the keys of other hosts.
    ``cluster``: all nodes of the lab, if ``nodes`` are only some of them: where guests have
    addresses of their own, servers are also reached at those of proxies.
    """
    from lab.guest import authority  # loaded while QEMU starts

    key = ctx.home.private(owner) / "id_ed25519"
    signer = authority_of(ctx.home)
    proxies = [one.guest_address for one in cluster or nodes if one.is_proxy]
    own = {
        node.name: identity.make_node_identity(
            authority.issue(signer, node.name, _names(node, proxies))
        )
        for node in nodes
    }
    login = _kept_key(key, f"lab {owner.name}")
    if login is None:
        login = identity.make_ssh_key(f"lab {owner.name}")
        with replaced(key) as file:
            file.write_bytes(login.private)
    _write_hosts(ctx, owner, {node: own[node.name].ssh_host.public for node in nodes})
    return login, own


def _kept_key(path: Path, comment: str) -> identity.SshKey | None:
    """The user's key, if it is there and was not lost with the host's power."""
    try:
        return identity.read_ssh_key(path.read_bytes(), comment) if path.exists() else None
    except ValueError:
        return None


def _write_hosts(ctx: Context, owner: Owner, keys: Mapping[Node, str]) -> None:
    """Let ssh know ``keys`` (public, as one line) of these nodes; other lines stay."""
    hosts = {
        known_as(node.ssh_host, node.ssh_port): " ".join(public.split()[:2])
        for node, public in keys.items()
        if node.ssh_port
    }
    fresh = [f"{host} {public}\n" for host, public in hosts.items()]
    with _known_hosts(ctx, owner) as lines:
        lines[:] = [line for line in lines if line.partition(" ")[0] not in hosts] + fresh


@contextmanager
def _known_hosts(ctx: Context, owner: Owner) -> Iterator[list[str]]:
    """The lines of the hosts that ssh knows, to be changed in the block.

    Under a lock of their own: who makes a standby does not hold the lab's.
    """
    known = ctx.home.private(owner) / "known_hosts"
    with lock(ctx.home, "hosts", owner.name):
        text = known.read_text(encoding="utf-8") if known.exists() else ""
        lines = text.splitlines(keepends=True)
        yield lines
        with replaced(known) as file:
            file.write_text("".join(lines), encoding="utf-8")


def move_hosts(ctx: Context, owner: Owner, ports: Mapping[int, int]) -> None:
    """Let ssh know the hosts whose ports changed, from old to new; others had the new ones."""
    if not ctx.home.private(owner).exists():
        return  # its making failed before that
    forget_hosts(ctx, owner, set(ports.values()) - set(ports))
    with _known_hosts(ctx, owner) as lines:
        lines[:] = [
            _HOST.sub(lambda m: f"{m[1]}{ports.get(int(m[2]), m[2])}", line) for line in lines
        ]


def forget_hosts(ctx: Context, owner: Owner, ports: Collection[int]) -> None:
    """Let ssh know the hosts at these ports no longer."""
    if not ctx.home.private(owner).exists():
        return
    with _known_hosts(ctx, owner) as lines:
        lines[:] = [
            line for line in lines if not (m := _HOST.match(line)) or int(m[2]) not in ports
        ]


def personalise(
    ctx: Context,
    nodes: Sequence[Node],
    blueprint: Blueprint,
    images: Images,
    password: str,
    prepared: Prepared,
    *,
    timeout: float,
    cluster: Sequence[Node] = (),
    end_sessions: bool = False,
) -> int:
    """Give every node what it must not share; raises NotReady or CommandFailed.

    ``timeout``: seconds that it may take. ``cluster``: the nodes that run, if ``nodes`` are only
    some of them. ``end_sessions``: of clients, which the RAM of a lab in use has. Returns how many
    were ended, on all nodes.
    """
    login, own = prepared
    members = [member_of(node) for node in cluster or nodes]

    def personalise_node(node: Node, halt: Callable[[], None]) -> int:
        engine = images[node.image].engine
        statements: Sequence[str] = ()
        if node.has_server:
            found = blueprint.personalise_statements(
                member_of(node), members, engine, USER, password, tls=node.published
            )
            statements = dialect_of(engine).kept(found)

        def message(*, reseeds: bool) -> bytes:
            return identity.message(
                own[node.name],
                now=time.time(),
                engine=(engine.uid, engine.gid),
                tls_directory=_TLS_DIRECTORY,
                authorized=login.public,
                statements=statements,
                end_sessions=end_sessions,
                reseeds=reseeds,
                draw=dialect_of(engine).draw,
            )

        deadline = Deadline.after(timeout)
        return _send(ctx, node, blueprint, message, deadline, halt, end_sessions=end_sessions)

    return sum(each_until(personalise_node, nodes, ctx.progress.halt))


def _send(
    ctx: Context,
    node: Node,
    blueprint: Blueprint,
    message: Callable[..., bytes],
    deadline: Deadline,
    halt: Callable[[], None],
    *,
    end_sessions: bool = False,
) -> int:
    """Send a message, without what an image of an earlier version does not know."""
    ask = partial(send_message, ctx, node)
    try:
        return ask(partial(message, reseeds=True), blueprint.transient, deadline, halt)
    except CommandFailed as error:
        if _OLDER not in error.stderr:
            raise
    # Clocks of templates of that time are two hours slow, for which servers reseed.
    if end_sessions:
        note = f"{node.name}: the image is of an earlier version of lab: client sessions remain"
        ctx.progress.note("sessions", note)
    return ask(partial(message, reseeds=False), blueprint.transient, deadline, halt)


def send_message(
    ctx: Context,
    node: Node,
    message: Callable[[], bytes],
    transient: str,
    deadline: Deadline,
    halt: Callable[[], None],
) -> int:
    """Send ``message`` to a node; retry while its server answers with a ``transient`` error.

    The guest's program retries by itself for ten seconds; on a busy host a cluster may take
    longer, and so may a server's response. All items may be repeated. Returns the sessions that
    it has ended, by all attempts. Raises NotReady or CommandFailed.
    """
    refused: CommandFailed | None = None
    channel = ctx.hypervisor.channel(node.guest)
    for _ in attempts(deadline, first=_AGAIN):
        halt()
        if refused is not None and deadline.passed:
            break  # no time for an answer is left, and that would hide the reason
        try:
            return channel.personalise(message(), timeout=deadline.left, halt=halt)
        except CommandFailed as error:
            if not re.search(f"{transient}|{_SLOW}", error.stderr):
                raise
            refused = error
    assert refused is not None  # noqa: S101  # one attempt at least, and for the type checker
    raise refused


def renew(
    ctx: Context,
    nodes: Sequence[Node],
    blueprint: Blueprint,
    images: Images,
    *,
    timeout: float,
    cluster: Sequence[Node] = (),
) -> None:
    """Give ``nodes``, which were started again, new keys and certificates.

    ``timeout``: seconds that it may take. ``cluster``: as for ``prepare``. Raises NotReady or
    CommandFailed.
    """
    if not nodes:
        return
    login, own = prepare(ctx, nodes[0].owner, nodes, cluster)

    def renew_node(node: Node, halt: Callable[[], None]) -> None:
        engine = images[node.image].engine
        ids = (engine.uid, engine.gid)
        if node.has_server:
            message = identity.renewal(
                own[node.name],
                engine=ids,
                tls_directory=_TLS_DIRECTORY,
                authorized=login.public,
                statement=blueprint.renew(engine),
            )
        else:  # no server reads them; fresh random bytes and the time do no harm
            message = identity.message(
                own[node.name],
                now=time.time(),
                engine=ids,
                tls_directory=_TLS_DIRECTORY,
                authorized=login.public,
                statements=(),
            )
        send_message(ctx, node, lambda: message, blueprint.transient, Deadline.after(timeout), halt)

    each_until(renew_node, nodes, ctx.progress.halt)


def _names(node: Node, proxies: Sequence[str] = ()) -> list[str]:
    """All under which the server of a node is reached, by others and by its peers."""
    names = ["localhost", LOOPBACK, "::1", node.name, network.inner_address(node.index)]
    if node.address != EVERYWHERE:
        names.append(node.address)
    return [
        *names,
        *dict.fromkeys(name for name in (node.host, node.guest_address, *proxies) if name),
    ]


def set_clocks(ctx: Context, nodes: Sequence[Node], *, timeout: float = _SECONDS) -> None:
    """Give every node the time as it is now; raises NotReady or CommandFailed.

    ``timeout``: seconds that it may take.
    """

    def set_clock(node: Node, halt: Callable[[], None]) -> None:
        line = identity.item("clock", f"{time.time():.6f}").encode() + b"\n"
        ctx.hypervisor.channel(node.guest).personalise(line, timeout=timeout, halt=halt)

    each_until(set_clock, nodes, ctx.progress.halt)


def wrong_clocks(ctx: Context, nodes: Sequence[Node]) -> list[Node]:
    """The nodes whose clocks are more than ``DRIFT`` seconds off.

    A node that does not report its time is skipped.
    """

    def off(node: Node) -> bool:
        try:
            now = ctx.hypervisor.channel(node.guest).clock(timeout=5.0)
        except (NotReady, NotFound):
            return False
        return abs(now - time.time()) > DRIFT

    return [node for node, is_off in zip(nodes, each(off, nodes), strict=True) if is_off]


def correct_clocks(ctx: Context, nodes: Sequence[Node]) -> None:
    """Correct the clocks of nodes that are wrong, and report it.

    Guests run no NTP client, and their clocks stop while the host is suspended or they are
    paused. Raises as ``set_clocks`` does.
    """
    if wrong := wrong_clocks(ctx, nodes):
        names = ", ".join(node.name for node in wrong)
        ctx.progress.note("clock", f"the clock of {names} was wrong and has been corrected")
        set_clocks(ctx, wrong)


def rehearse(
    ctx: Context, nodes: Sequence[Node], blueprint: Blueprint, images: Images, *, timeout: float
) -> None:
    """Personalise the nodes of a template, with keys that nobody keeps.

    What is done for the first time takes longer: memory is mapped, files are looked up and created,
    the program connects to its server. All that is then in the template's RAM, and shared.
    ``timeout``: seconds that it may take. Raises NotReady, CommandFailed, or HostUnfit.
    """
    from lab.guest import authority

    signer = authority_of(ctx.home)

    def rehearse_node(node: Node, halt: Callable[[], None]) -> None:
        engine = images[node.image].engine
        own = identity.make_node_identity(authority.issue(signer, node.name, _names(node)))
        statements = [blueprint.renew(engine) or "DO 1"] if node.has_server else []

        def message(*, reseeds: bool) -> bytes:
            return identity.message(
                own,
                now=time.time(),
                engine=(engine.uid, engine.gid),
                tls_directory=_TLS_DIRECTORY,
                authorized=identity.make_ssh_key().public,
                statements=statements,
                reseeds=reseeds,
                draw=dialect_of(engine).draw,
            )

        _send(ctx, node, blueprint, message, Deadline.after(timeout), halt)

    each_until(rehearse_node, nodes, ctx.progress.halt)
