"""Upgrades of labs, as they are shown."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import field
from typing import Annotated, Literal

from lab.errors import NotReady
from lab.marks import Public, public
from lab.units import counted
from lab.values import dataclass

StepState = Literal["upgraded", "failed", "rolled back"]
"""How a step of an upgrade ended; rolled back: it failed, and the lab is as it was before it."""

OptionState = Literal["unknown", "ignored", "deprecated", "adjusted"]
"""What a server does with an option: it does not know it (an error, unless it is `loose`), knows
that it was removed, still has it, or has another value than was given."""


Transfer = Literal["ist", "sst"]
"""How a node came back to its Galera cluster: with what it missed, or with the data of another."""

Partial = Literal["locked_out", "log", "options", "rebuild"]
"""What of a step may be only a part of what there is."""

_CALLED = {
    "locked_out": "accounts that cannot log in",
    "rebuild": "tables to rebuild",
    "options": "options",
    "log": "log",
    "replicated": "replication",
}


@dataclass(frozen=True)
class OptionView:
    """An option of a lab that its new server does not have as before."""

    name: Annotated[str, public("innodb_log_files_in_group")]
    state: Annotated[str, public(values=OptionState)]
    said: Public[str]
    """The line of the server's log, which may name another option."""


Difference = Literal["fails", "plan", "slower", "faster", "rows"]
"""What became of a statement; fails: after the upgrade, not before. rows: much more or fewer
are read."""


@dataclass(frozen=True)
class StatementView:
    """A statement of the user's that a server executes otherwise since its upgrade."""

    number: Public[int]
    """Its number in the file of statements, from 1."""
    text: Annotated[str, public("SELECT * FROM orders")]
    """Its first characters."""
    differs: Annotated[tuple[Difference, ...], public(["plan", "slower"])]
    error: Public[str] = ""
    """Why it fails now."""
    plan_before: Annotated[tuple[str, ...], public(["SIMPLE, orders, ref, customer"])] = ()
    """A line for each row of EXPLAIN."""
    plan_after: Public[tuple[str, ...]] = ()
    seconds_before: Public[float] = 0.0
    """The shortest time of three."""
    seconds_after: Public[float] = 0.0
    read_before: Public[int] = 0
    """Rows that the server reads in tables and indexes for it."""
    read_after: Public[int] = 0


@dataclass(frozen=True)
class ReplicatedView:
    """A row that a server acknowledged, and that was looked for on another one."""

    source: Annotated[str, public("n1")]
    """The server that took it."""
    target: Annotated[str, public("n3")]
    """The server that is to get it."""
    seconds: Public[float | None]
    """After what time it had the row; null: it did not have it in time."""
    error: Public[str] = ""
    """What was waited for, if it did not, and the last error of the server that was asked."""

    @property
    def slow(self) -> bool:
        """Whether it took a second or more."""
        return self.seconds is None or self.seconds >= 1

    @property
    def said(self) -> str:
        """How it ended, in a few words."""
        return "not in time" if self.seconds is None else f"{self.seconds:.1f} s"


@dataclass(frozen=True)
class UpgradeStep:
    """A node whose server was upgraded, or was to be."""

    node: Annotated[str, public("n2")]
    before: Annotated[str, public("10.11.14")]
    """The version that its server said before; empty: it did not answer."""
    after: Annotated[str, public("11.8.6")]
    """The version that it says since; empty: none answered."""
    state: Annotated[str, public(values=StepState)]
    snapshot: Annotated[str, public("before-n2.20261127t110000")]
    """The label of the snapshot that was taken before it; empty: none could be taken."""
    seconds: Public[float]
    outage: Public[float]
    """The longest time for which no server of the lab took a write, in seconds."""
    unanswered: Annotated[Mapping[str, float], public({"n1": 41.5, "n4 rw": 0.9})] = field(
        default_factory=dict
    )
    """The longest time for which each endpoint gave no answer, in seconds: servers by their names,
    endpoints of proxies behind that of the proxy."""
    log: Public[tuple[str, ...] | None] = None
    """Errors and warnings of its new server's log; of a step that failed, the lines of the error.
    Null: the log could not be read."""
    locked_out: Public[tuple[str, ...] | None] = None
    """Accounts that cannot log in to its new server: it lacks their plugin; null: not known."""
    rebuild: Public[tuple[str, ...] | None] = None
    """Tables that the check of its new server wanted rebuilt, each with what was done; null: not
    known, as always with MySQL."""
    options: Public[tuple[OptionView, ...] | None] = None
    """Options that its new server removed, renamed or changed, as far as its log says so; null: the
    log could not be read, or not from its beginning."""
    statements: Public[tuple[StatementView, ...] | None] = ()
    """Statements of the user's that fail now, or whose plan, time or rows that are read changed;
    null: not known, as the step failed."""
    compared: Public[int] = 0
    """How many of the user's statements both of its servers executed."""
    why: Public[str] = ""
    """Why it failed."""
    replicated: Public[tuple[ReplicatedView, ...] | None] = None
    """Rows that its new server acknowledged or was to get, one for each direction in which it
    replicates; null: not known, as the step failed before."""
    provider_before: Annotated[str | None, public("26.4.13(r6d08c1d)")] = None
    """The version of its server's wsrep provider before; empty: it has none, null: not known."""
    provider_after: Annotated[str | None, public("26.4.23(r6c2d1ce)")] = None
    """The version that it has since; empty: it has none, null: not known."""
    partial: Annotated[tuple[Partial, ...], public(["log"])] = ()
    """Of what there is more than is here, or may be: only so many lines are read, and kept."""
    protocol_before: Annotated[int | None, public(10)] = None
    """The version of the protocol of its Galera cluster before; null: it is in none, or not
    known."""
    protocol_after: Annotated[int | None, public(11)] = None
    """The version that it has since; null: it is in none, or not known. Once it is higher than
    before, a node of the older series comes back by a rollback only."""
    transfer: Annotated[Transfer | None, public("ist")] = None
    """How it came back to its Galera cluster, by its server's log: with the write sets that it
    missed (IST), or with the data files of another node (SST); null: it is in none, or not
    known."""

    @property
    def provider(self) -> str:
        """What became of its wsrep provider; empty if nothing did, or it has none."""
        both = (self.provider_before, self.provider_after)
        before, after = ("unknown" if one is None else one or "none" for one in both)
        return f"{before} before, {after} after" if before != after else ""

    @property
    def risen(self) -> bool:
        """Whether the protocol of its cluster rose with it: nodes of the older series are out."""
        before, after = self.protocol_before, self.protocol_after
        return before is not None and after is not None and after > before

    @property
    def cluster(self) -> tuple[str, ...]:
        """What there is to say of it as a node of a Galera cluster, each in a line."""
        found = [f"wsrep provider: {self.provider}"] if self.provider else []
        if self.risen:
            found.append(
                f"wsrep protocol: {self.protocol_before} before, {self.protocol_after} after: from"
                " this step on a node of the older series needs the snapshot to go back"
            )
        if self.transfer == "sst":
            found.append("wsrep transfer: SST: its data files are those of another node")
        elif self.transfer:
            found.append("wsrep transfer: IST")
        return tuple(found)

    @property
    def unknown(self) -> tuple[str, ...]:
        """What could not be observed of its new server."""
        found = [what for name, what in _CALLED.items() if getattr(self, name) is None]
        if self.provider_before is None and self.provider_after is None:
            found.append("wsrep provider")
        return tuple(found)

    @property
    def incomplete(self) -> tuple[str, ...]:
        """What there is more of, or may be, than was observed."""
        return tuple(what for name, what in _CALLED.items() if name in self.partial)

    @property
    def summary(self) -> str:
        """What became of the user's statements, in a line."""
        if self.statements is None:
            return "what became of the statements is unknown"
        fail = sum("fails" in one.differs for one in self.statements)
        differ = len(self.statements) - fail
        compared = counted(self.compared, "statement")
        both = f"{compared} executed before and after, {differ} of them differ"
        return f"{both}; {counted(fail, 'statement')} fail since" if fail else both


@dataclass(frozen=True)
class WorkloadView:
    """How the user's program ended that ran during an upgrade."""

    code: Public[int]
    """Its exit code; 128 + n: signal n ended it."""
    by_itself: Public[bool]
    """Whether it ended before the upgrade did; else it was ended then."""
    seconds: Public[float]
    """How long it ran."""
    output: Public[tuple[str, ...]] = ()
    """The last lines that it printed."""


@dataclass(frozen=True)
class UpgradeView:
    """An upgrade of a lab."""

    lab: Annotated[str, public("shop")]
    to: Annotated[str, public("mariadb:11.8")]
    steps: Public[tuple[UpgradeStep, ...]]
    seconds: Public[float]
    written: Public[int]
    """Rows that were written to the lab meanwhile, and acknowledged."""
    refused: Public[int]
    """Writes that no server took."""
    lost: Public[int | None]
    """Acknowledged rows that a server lacks at the end; null: not known."""
    changed: Annotated[tuple[str, ...] | None, public(["shop.orders"])] = None
    """Tables whose checksums differ from those before; null: not known."""
    workload: Public[WorkloadView | None] = None
    """The user's program; null: none was given."""
    unchecked: Annotated[tuple[str, ...], public(["n3: it is a delayed replica"])] = ()
    """Servers on which the rows were not looked for, and why."""
    foreseen: Annotated[
        tuple[str, ...], public(["old@% (mysql_native_password) cannot log in to MySQL 8.4.8"])
    ] = ()
    """What was known before the first step: accounts that the new servers lock out, and options of
    the user's that they do not know, with those that took their places."""

    @property
    def failed(self) -> bool:
        """Whether a step failed."""
        return any(step.state != "upgraded" for step in self.steps)

    @property
    def failure(self) -> NotReady | None:
        """The error of the step that failed, with the remedy; None if none did."""
        if not self.failed:
            return None
        last = self.steps[-1]
        return NotReady(
            f"{last.node} of {self.lab} was not upgraded: {last.why}",
            hint=f"{self.lab} is as it was before"
            if last.state == "rolled back" or not last.snapshot
            else f"`lab rollback {self.lab} --to {last.snapshot}` puts it back",
            details=last.log or (),
        )
