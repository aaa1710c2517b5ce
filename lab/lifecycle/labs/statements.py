"""What becomes of a user's statements in an upgrade: each is explained and timed before and after.

The servers' own digests are not used: they are of what a server executed since it started, so the
upgrade empties them, and what ran before it is not what runs after it. MySQL's servers of labs have
no performance_schema, MariaDB's have none by default.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence

from lab.datasets import queries
from lab.errors import LabError
from lab.observe.ways import Rows
from lab.texts import printable
from lab.values import dataclass
from lab.views.upgrades import Difference, StatementView
from lab.wait import Deadline

Ask = Callable[[Sequence[str], float], list[Rows]]
"""Executes statements on one connection, in so many seconds; raises LabError."""

MOST = 100
"""Statements of a file, at most."""
EACH = 10.0
"""Seconds that a statement may take."""
_ALL = 300.0
"""Seconds for all statements on a server: the others are not executed."""
_ROWS = 1000
"""Rows that a statement returns, at most."""
_RUNS = 3
"""How often each is executed: the fastest counts, which did not have to read from disk."""
_MUCH = 2.0
_SECONDS = 0.01
_READ = 100
"""A time, or a number of rows that were read, differs much: by this factor, and by so much."""
_WIDTH = 200
_LINES = 50
"""Rows of EXPLAIN that are kept."""
_LIMIT = f"SET SESSION sql_select_limit = {_ROWS}"
_BEGIN = "START TRANSACTION READ ONLY"
_READS = "SHOW SESSION STATUS LIKE 'Handler_read%'"
_FROM = "SET @lab_began = SYSDATE(6)"
_UNTIL = "SELECT TIMESTAMPDIFF(MICROSECOND, @lab_began, SYSDATE(6))"
_EXPLAIN = "EXPLAIN FORMAT=TRADITIONAL"
"""Newer servers of MySQL have another format by default."""
_PLAN = ("select_type", "table", "type", "key", "ref", "Extra")
"""The columns of EXPLAIN that say how, not how much."""


@dataclass(frozen=True)
class Measured:
    """What a server did with a statement; ``error``: why it did not."""

    plan: tuple[str, ...] = ()
    seconds: float = 0.0
    read: int = 0
    """Rows that it read in tables and indexes."""
    error: str = ""


def parsed(content: str, name: str) -> list[queries.Query]:
    """The statements of a file; raises InvalidSpec unless all are SELECT, and some are there."""
    return queries.selects(content, name, most=MOST)


def measure(ask: Ask, limits: Sequence[str], wanted: Sequence[queries.Query]) -> list[Measured]:
    """Explain and time statements on a server, which may not write; ``limits``: of its dialect."""
    deadline = Deadline.after(_ALL)
    before = [one.format(seconds=int(EACH), milliseconds=int(EACH * 1000)) for one in limits]
    return [_measured(ask, [*before, _LIMIT], query, deadline) for query in wanted]


def _measured(
    ask: Ask, before: Sequence[str], query: queries.Query, deadline: Deadline
) -> Measured:
    if deadline.passed:
        return Measured(error=f"not executed: the {_ALL:g} s for all statements were over")
    first = [*before, *query.using, _BEGIN]
    run = [*first, _READS, _READS, _FROM, query.text, _UNTIL, _READS]
    try:
        explained = ask([*first, f"{_EXPLAIN} {query.text}"], EACH * 1.5)[-1]
        found = [ask(run, EACH * 1.5) for _ in range(_RUNS)]
    except LabError as error:
        return Measured(error=printable(" ".join([error.what, *error.details]))[:_WIDTH])
    took = [one[-2].rows[0][0] for one in found]
    if None in took:
        return Measured(error="there is no time of it: it changes @lab_began")
    seconds = min(float(str(one)) for one in took) / 1e6
    empty, begun, ended = (_read(found[-1][at]) for at in (-6, -5, -1))
    # Asking reads rows itself.
    return Measured(tuple(_lines(explained)), seconds, max(0, ended - begun - (begun - empty)))


def _lines(found: Rows) -> Iterator[str]:
    for row in found.rows[:_LINES]:
        cells = dict(zip(found.columns, row, strict=True))
        shown = [str(cells[name]) for name in _PLAN if cells.get(name) not in (None, "")]
        yield printable(", ".join(shown))[:_WIDTH]


def _read(found: Rows) -> int:
    return sum(int(str(row[1])) for row in found.rows)


def compare(
    wanted: Sequence[queries.Query], before: Sequence[Measured], after: Sequence[Measured]
) -> tuple[StatementView, ...]:
    """The statements that differ, with what they were and are."""
    return tuple(
        StatementView(
            query.number, printable(query.text)[:_WIDTH], differs, new.error,
            old.plan, new.plan, old.seconds, new.seconds, old.read, new.read,
        )
        for query, old, new in zip(wanted, before, after, strict=True)
        if (differs := tuple(_differences(old, new)))
    )  # fmt: skip


def _differences(old: Measured, new: Measured) -> Iterator[Difference]:
    if new.error and not old.error:
        yield "fails"
    if old.error or new.error:
        return
    if old.plan != new.plan:
        yield "plan"
    if _far(old.seconds, new.seconds, _SECONDS):
        yield "slower" if new.seconds > old.seconds else "faster"
    if _far(old.read, new.read, _READ):
        yield "rows"


def _far(old: float, new: float, least: float) -> bool:
    low, high = sorted((old, new))
    return high - low >= least and high >= low * _MUCH
