"""Which server of a star is its source, and how another one becomes it.

Every server starts read-only. One takes writes once it is ordered to ``lead``, which holds until
its guest boots again; then it is decided again, here, where all nodes are seen. So a source that
was replaced while it did not run never takes writes when it comes back.

Each node remembers on its disk which node is the source, and a number that grows with each
promotion (``source note``). Where no server takes writes, the highest number tells which one is to.
The old source, if it runs, becomes read-only first; then all nodes note the new one, itself last;
then it takes writes. So there are never two, and what was interrupted is completed by the same
steps: each looks first at what is there.

Sources: the manuals of MariaDB ("Global Transaction ID", "gtid_binlog_state", "MASTER_GTID_WAIT")
and MySQL ("Switching Sources During Failover", "WAIT_FOR_EXECUTED_GTID_SET").
"""

from __future__ import annotations

import re
from collections.abc import Callable, Mapping, Sequence
from contextlib import suppress

from lab.blueprints import Cluster, Engine, Member, Promotion, Remedy, Situation, gtid
from lab.errors import CommandFailed, Conflict, InvalidSpec, NotFound, NotReady
from lab.guest import network
from lab.values import dataclass
from lab.wait import Deadline, attempts

PROGRAM = "/usr/lib/lab/source"
_FOLLOW = (PROGRAM, "follow")
_SQL = "/usr/lib/lab/sql"
_SECONDS = 30.0
"""How long a program in a guest may take."""
_CATCH_UP = 60.0
"""Seconds for which no server takes writes, while the new source receives what it lacks."""
_SLICE = 2
"""Seconds that a server waits for transactions before it is asked again."""
_LEAP = 1000
"""By what the number of a promotion grows that may be later than some which no node remembers."""
_MOST = 2
"""How often the same action is taken on a node."""
_GTID = re.compile(r"([0-9]{1,10}-[0-9]{1,10})-([0-9]{1,19})")
_NODE, _EPOCH = re.compile(r"n[1-9]"), re.compile(r"[0-9]{1,9}")
_ADDRESS = re.compile(r"[0-9.]{7,15}")
_SESSIONS = "SHOW PROCESSLIST"
_TRANSACTIONS = (
    "SELECT trx_mysql_thread_id FROM information_schema.INNODB_TRX WHERE trx_mysql_thread_id > 0"
)
_OWN_SESSIONS = ("Daemon", "Binlog Dump", "Binlog Dump GTID", "Connect")
_COLUMNS = 5
"""Of a session: Id, User, Host, db, Command; others follow."""


@dataclass(frozen=True)
class Role:
    """What the server of a node is given as the source, and as one that follows."""

    lead: tuple[str, ...]
    """Variables of the source, with their values."""
    follow: tuple[str, ...]
    """Variables of one that follows, with their values."""
    unlink: tuple[str, ...]
    """Statements that end its link."""
    link: tuple[str, ...]
    """Statements that have it follow ``{address}`` with ``{password}``, ``{delay}`` seconds late.
    """
    relink: tuple[str, ...]
    """What comes before ``link`` at a server that has a link."""
    begin: tuple[str, ...]
    """What comes before ``link`` at a server without a link."""
    reached: str = ""
    """The condition that it has executed all of a ``{position}``, within ``{seconds}``."""


RoleOf = Callable[[Engine], Role]


@dataclass(frozen=True)
class Standing:
    """A node as ``source state`` describes it."""

    node: str
    writable: bool
    executed: gtid.GtidSet | None
    """The transactions that it has; None if its server does not answer."""
    received: gtid.GtidSet
    """Transactions that it received, and perhaps did not execute."""
    position: str
    """Its position, in the form in which servers wait for it."""
    follows: str
    running: bool
    epoch: int
    """The number of promotions that it remembers."""
    source: str
    """The source that it remembers."""

    @staticmethod
    def parse(node: str, text: str, planned: str) -> Standing:
        """What the answer of a node says of its standing; raises ValueError.

        ``planned``: the source where none was promoted.
        """
        pairs = (line.split("\t", 1) for line in text.splitlines() if "\t" in line)
        found = {pair[0]: pair[1] for pair in pairs}
        position, epoch = found.get("position", ""), found.get("epoch", "")
        noted = _NODE.fullmatch(found.get("source", "")) and _EPOCH.fullmatch(epoch)
        follows = found.get("follows", "")
        if not gtid.valid_position(position):
            raise ValueError(f"{node} sent an invalid position")
        answers = found.get("server") == "active" and "read_only" in found
        return Standing(
            node,
            found.get("read_only") == "OFF",
            _set(found.get("executed", "")) if answers else None,
            _set(found.get("received", "")),
            position,
            follows if _ADDRESS.fullmatch(follows) else "",
            found.get("running") == "yes",
            int(epoch) if noted else 0,
            found["source"] if noted else planned,
        )

    @property
    def note(self) -> tuple[str, str]:
        """What others are to remember while this one is the source."""
        return str(self.epoch), self.node

    def remembers(self, source: Standing) -> bool:
        """Whether it would decide that ``source`` is the source."""
        return (self.epoch, self.source) == (source.epoch, source.node)

    @property
    def has(self) -> gtid.GtidSet:
        """All transactions that it has."""
        return gtid.union(self.executed or {}, self.received)


def unchanging(standing: str) -> str:
    """See Blueprint."""
    passing = ("executed", "received", "position")
    lines = standing.splitlines()
    return "\n".join(line for line in lines if line.partition("\t")[0] not in passing)


def lead(member: Member, epoch: int, role: Role) -> tuple[str, ...]:
    """The program after which the server of ``member`` takes writes."""
    return (PROGRAM, "lead", str(epoch), member.name, *role.lead)


def remedies(
    situation: Situation,
    engines: Mapping[str, Engine],
    role: RoleOf,
    planned: str,
    delays: Mapping[str, int],
) -> list[Remedy]:
    """See Blueprint: which node takes writes, and which are to follow it.

    ``planned``: the source where none was promoted; ``delays``: of replicas, by name. Raises
    NotReady.
    """
    try:
        found = [Standing.parse(n, text, planned) for n, text in situation.standings.items()]
    except ValueError as error:
        raise NotReady(f"the positions of the nodes are not known: {error}") from None
    if any(one.executed is None for one in found):
        return []
    leading = [one for one in found if one.writable]
    if leading:
        source = max(leading, key=lambda one: one.epoch)
        return _followers(situation, engines, role, found, source, delays)
    newest = max(found, key=lambda one: one.epoch)
    new = next((one for one in found if one.node == newest.source), None)
    if new is None:
        return []  # replicas, whose source does not run
    if len(found) == 1 and not situation.all_here:
        raise NotReady(
            f"{new.node} was the source when it stopped; another node may have been promoted"
            " since, and none of them runs",
            hint="`lab start` without --node starts all nodes",
        )
    for one in found:
        # One that follows nobody was a source until another was promoted without it.
        if one.follows and not gtid.contains(new.executed or {}, one.executed or {}):
            raise NotReady(
                f"{one.node} has transactions that {new.node}, the source, lacks",
                hint=f"`lab promote NAME {one.node}` has {one.node} take writes",
            )
    if situation.given.get((new.node, "lead"), 0) >= _MOST:
        return []
    own = role(engines[new.node])
    argv = (PROGRAM, "lead", str(newest.epoch), new.node, *own.lead)
    given = [Remedy(new.node, "lead", argv, "it is the source; it takes writes")]
    if new.follows:  # its promotion was interrupted
        why = f"it was to be the source; it does not follow {new.follows} any more"
        given.insert(0, Remedy(new.node, "unlink", _FOLLOW, why, stdin=_lines(own.unlink)))
    return given


def _followers(
    situation: Situation,
    engines: Mapping[str, Engine],
    role: RoleOf,
    found: Sequence[Standing],
    source: Standing,
    delays: Mapping[str, int],
) -> list[Remedy]:
    given: list[Remedy] = []
    refused: NotReady | None = None
    for one in found:
        if one is source:
            continue
        if not one.remembers(source):
            given.append(_action(one, "note", source, source.note))
        if one.writable:
            given.append(_action(one, "yield", source, role(engines[one.node]).follow))
        if one.follows == _address(source.node) and one.running:
            continue
        try:
            _check_contained(one, source)
        except NotReady as error:
            refused = refused or error
            continue
        if not situation.password:
            raise NotReady(
                f"{one.node} did not follow {source.node}, the source, when the capture was taken",
                hint="`lab start` the lab that this is a clone of, and take the snapshot then",
            )
        delay = delays.get(one.node, 0)
        statements = follow(
            role(engines[one.node]), one, _address(source.node), situation.password, delay
        )
        given.append(_action(one, "follow", source, stdin=_lines(statements)))
    given = [one for one in given if situation.given.get((one.node, one.action), 0) < _MOST]
    if refused is not None and not given:
        raise refused
    return given


def _action(
    one: Standing, action: str, source: Standing, words: Sequence[str] = (), stdin: bytes = b""
) -> Remedy:
    why = f"it follows {source.node}, which is the source"
    return Remedy(one.node, action, (PROGRAM, action, *words), why, stdin=stdin)


def _check_contained(one: Standing, source: Standing) -> None:
    """Raise NotReady if a node has executed what the source lacks."""
    if not gtid.contains(source.executed or {}, one.executed or {}):
        raise NotReady(
            f"{one.node} has transactions that {source.node}, the source, lacks:"
            " it stays read-only, and follows nobody",
            hint=f"`lab rollback NAME --node {one.node}` creates it again from the source's binary"
            f" logs; with --to, from a snapshot",
        )


def follow(role: Role, one: Standing, address: str, password: str, delay: int) -> list[str]:
    """The statements with which a server follows the one at ``address``."""
    fill = {"address": address, "password": password, "delay": delay, "channel": ""}
    before = role.relink if one.follows else role.begin
    return [*before, *(statement.format(**fill) for statement in role.link)]


@dataclass(frozen=True)
class Star:
    """A source and its replicas, while another one is promoted."""

    cluster: Cluster
    engines: Mapping[str, Engine]
    role: RoleOf
    """What a node is given, by its engine."""
    planned: str
    """The source where none was promoted."""
    delays: Mapping[str, int]
    """Seconds that each delayed replica is late, by node."""
    link_password: str
    """What replicas log in with."""
    asked: Promotion

    def promote(self) -> None:
        """Make ``asked.to`` the source; see Blueprint."""
        to, found = self.asked.to, self._look()
        if to not in found:
            raise NotReady(
                f"the server of {to} does not answer, or its image is of an earlier version of lab"
            )
        if self.delays.get(to):
            raise InvalidSpec(
                f"{to} is delayed: it lacks transactions of that time", hint="promote another node"
            )
        writable = [one for one in found.values() if one.writable]
        newest = max(found.values(), key=lambda one: one.epoch)
        source = writable[0].node if writable else newest.source
        epoch = newest.epoch + 1
        if source == to:
            epoch = self._again(found, epoch) if not writable else epoch - 1
        elif source in found:
            self._hand_over(found, source, epoch)
        else:
            self._fail_over(found, source, epoch)
        if source != to or not writable:
            self._lead(found[to], epoch)
        self._follow()

    def _again(self, found: Mapping[str, Standing], epoch: int) -> int:
        """``to`` is the source already, and takes no writes; the number of its promotion."""
        to, missing = self.asked.to, [n for n in self.asked.nodes if n not in found]
        if missing:
            if not self.asked.force:
                raise Conflict(
                    f"{', '.join(missing)} does not answer, and may have been promoted since {to}"
                    " was the source",
                    hint=f"`lab start` brings it back; `--force` has {to} take writes without it",
                )
            for lost in missing:
                self.asked.fence(lost)
            self._execute_received(found[to])
            epoch += _LEAP
        self.asked.note(f"{to} is the source already: it takes writes")
        return epoch - 1

    def _look(self) -> dict[str, Standing]:
        """The nodes whose servers answer."""

        def standing_of(member: Member) -> Standing | None:
            argv = (PROGRAM, "state", self.engines[member.name].service)
            try:
                text = self.cluster.run(member, argv, timeout=_SECONDS)
                standing = Standing.parse(member.name, text, self.planned)
            except (NotReady, NotFound, CommandFailed):
                return None
            except ValueError as error:
                raise NotReady(f"the positions of the nodes are not known: {error}") from None
            return None if standing.executed is None else standing

        return {one.node: one for one in self.cluster.each(standing_of) if one is not None}

    def _hand_over(self, found: Mapping[str, Standing], source: str, epoch: int) -> None:
        """Switchover: ``source`` becomes read-only, and all are noted once the new one has all."""
        to, handed, old = self.asked.to, False, found[source]
        executed = old.executed or {}
        if not old.writable:  # it lost transactions, or a promotion was interrupted
            self._check_others(found, to, gtid.union(executed, found[to].has), but=source)
        try:
            self._yield(source)
            self._catch_up(to, self._look_at(source).position, source)
            self._run(source, PROGRAM, "note", str(epoch), to)  # from here on it is completed
            handed = True
        finally:
            if not handed and (old.writable or gtid.contains(executed, found[to].has)):
                self._run(source, *lead(self._member(source), epoch - 1, self._role(source)))
        self._note(found, epoch, but=source)

    def _check_others(
        self, found: Mapping[str, Standing], to: str, has: gtid.GtidSet, *, but: str
    ) -> None:
        """Raise Conflict if a node that follows another one has what ``to`` will lack.

        One that follows nobody was a source until another was promoted without it.
        """
        for other in found.values():
            if other.node in (to, but) or not other.follows or gtid.contains(has, other.has):
                continue
            raise Conflict(
                f"{other.node} has transactions that {to} lacks",
                hint=f"`lab promote {other.node}` promotes it"
                " (with `--force`, where the source does not answer)"
                if not self.delays.get(other.node)
                else "they were received by a delayed replica, which executes them later",
            )

    def _fail_over(self, found: Mapping[str, Standing], source: str, epoch: int) -> None:
        """Failover: the source does not answer, and is powered off."""
        to = self.asked.to
        if not self.asked.force:
            raise Conflict(
                f"{source}, the source, does not answer",
                hint=f"`lab start` brings it back; `--force` promotes {to} without it, and what"
                f" only {source} has is lost",
            )
        missing = [n for n in self.asked.nodes if n not in found and n != source]
        if missing:
            raise NotReady(
                f"{', '.join(missing)} does not answer: it may have transactions that {to} lacks",
                hint=f"`lab start --node {missing[0]}`",
            )
        if source not in self.asked.nodes:
            raise NotReady(f"the nodes remember a source that is none of them: {source}")
        self.asked.fence(source)
        self._execute_received(found[to])
        now = self._look()
        gone = [n for n in found if n not in now and n != source]
        if gone:
            raise NotReady(
                f"{', '.join(gone)} does not answer any more: it may have transactions that {to}"
                " lacks",
                hint="the same command again, once it answers",
            )
        self._check_others(now, to, now[to].executed or {}, but=source)
        self._note(found, epoch, but=source)

    def _yield(self, node: str) -> None:
        """Have the server of ``node`` refuse writes; whoever still writes is ended."""
        argv = (PROGRAM, "yield", *self._role(node).follow)
        try:
            self._run(node, *argv)
        except CommandFailed:
            self._end(node, self._clients(node))
            self._run(node, *argv)
        self._end(node, self._ask(node, _TRANSACTIONS).split())

    def _clients(self, node: str) -> list[str]:
        """The sessions of users of a server."""
        rows = [line.split("\t") for line in self._ask(node, _SESSIONS).splitlines()]
        return [
            row[0]
            for row in rows
            if len(row) >= _COLUMNS
            and row[0].isdecimal()
            and row[1] not in ("system user", "event_scheduler")
            and (row[1], row[2]) != ("root", "localhost")
            and row[4] not in _OWN_SESSIONS
        ]

    def _end(self, node: str, sessions: Sequence[str]) -> None:
        for session in sessions:
            if session.isdecimal():
                with suppress(CommandFailed):  # it has ended
                    self._ask(node, f"KILL {session}")

    def _catch_up(self, node: str, position: str, source: str) -> None:
        """Wait until ``node`` has executed all of ``position``; raises NotReady."""
        deadline = Deadline.after(min(_CATCH_UP, self.asked.deadline.left))
        if self._has(node, position, deadline):
            return
        raise NotReady(
            f"{node} has not received all transactions of {source} in time: {source} takes writes"
            " again, and nothing has changed",
            hint="`lab status` shows what replicas lack",
        )

    def _execute_received(self, one: Standing) -> None:
        """Wait until a node has executed what it has received from a source that is lost."""
        for _ in attempts(self.asked.deadline, first=0.2):
            now = self._look_at(one.node)
            if gtid.contains(now.executed or {}, now.received):
                return
        raise NotReady(f"{one.node} has not executed in time what it has received")

    def _has(self, node: str, position: str, deadline: Deadline) -> bool:
        if not position:
            return True
        reached = self._role(node).reached.format(position=position, seconds=_SLICE)
        question = f"SELECT IF({reached}, 'yes', 'no')"
        return any(self._ask(node, question) == "yes\n" for _ in attempts(deadline))

    def _note(self, found: Mapping[str, Standing], epoch: int, *, but: str) -> None:
        """Have the other nodes remember the new source, which does so last, as it takes writes.

        A node that cannot now does so when it follows.
        """
        for node in found:
            if node not in (self.asked.to, but):
                with suppress(CommandFailed, NotReady, NotFound):
                    self._run(node, PROGRAM, "note", str(epoch), self.asked.to)

    def _lead(self, one: Standing, epoch: int) -> None:
        role = self._role(one.node)
        if one.follows:
            self._run(one.node, *_FOLLOW, stdin=_lines(role.unlink))
        self._run(one.node, *lead(self._member(one.node), epoch, role))

    def _follow(self) -> None:
        """Have all others follow the source; raises NotReady for one that cannot."""
        found, source = self._look(), self._look_at(self.asked.to)
        address, refused = self._member(source.node).address, list[NotReady]()
        for one in found.values():
            if one.node == source.node:
                continue
            if not one.remembers(source):
                self._run(one.node, PROGRAM, "note", *source.note)
            if one.writable:  # whoever is root in it did that
                self._yield(one.node)
            if one.follows == address and one.running:
                continue
            try:
                _check_contained(one, source)
            except NotReady as error:
                refused.append(error)
                continue
            role, delay = self._role(one.node), self.delays.get(one.node, 0)
            statements = follow(role, one, address, self.link_password, delay)
            self._run(one.node, *_FOLLOW, stdin=_lines(statements))
        if refused:
            raise refused[0]

    def _look_at(self, node: str) -> Standing:
        argv = (PROGRAM, "state", self.engines[node].service)
        try:
            found = Standing.parse(node, self._run(node, *argv), self.planned)
        except ValueError as error:
            raise NotReady(f"the position of {node} is not known: {error}") from None
        if found.executed is None:
            raise NotReady(f"the server of {node} does not answer")
        return found

    def _ask(self, node: str, *statements: str) -> str:
        return self._run(node, _SQL, stdin=_lines(statements))

    def _run(self, node: str, *argv: str, stdin: bytes = b"") -> str:
        return self.cluster.run(self._member(node), argv, stdin=stdin, timeout=_SECONDS)

    def _member(self, node: str) -> Member:
        return next(one for one in self.cluster.members if one.name == node)

    def _role(self, node: str) -> Role:
        return self.role(self.engines[node])


def _set(text: str) -> gtid.GtidSet:
    """GTIDs of either engine, as intervals; raises ValueError.

    Of MariaDB's, whose servers number what they write in one order, the last of each is known.
    """
    parts = [part for part in text.split(",") if part]
    if not all(map(_GTID.fullmatch, parts)):
        return gtid.parse(text)
    found = [match for match in map(_GTID.fullmatch, parts) if match]
    return gtid.union(*({one[1]: ((1, int(one[2])),)} for one in found))


def _lines(statements: Sequence[str]) -> bytes:
    return "".join(f"{statement}\n" for statement in statements).encode()


def _address(node: str) -> str:
    return network.inner_address(int(node.removeprefix("n")))
