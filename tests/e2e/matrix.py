"""What was run of each topology: recorded by the tests, shown as a table in docs/topologies.md.

``build/test/topologies.json`` has, for each case, the steps that passed and the commits at which
they did; ``scripts/matrix`` renders the table from it.
"""

from __future__ import annotations

import fcntl
import json
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path

from lab.errors import LabError
from lab.run import run
from tests import ROOT

RESULTS = ROOT / "build" / "test" / "topologies.json"
PAGE = ROOT / "docs" / "topologies.md"
BEGIN, END = "<!-- matrix: scripts/matrix writes it -->", "<!-- matrix ends -->"

STEPS = {
    "formed": "formed, captured",
    "endpoints": "each endpoint",
    "beside": "two side by side",
    "node": "writer killed, back",
    "all": "all killed, back",
    "rollback": "rollback with RAM",
    "identity": "branch, new identity",
    "cycles": "20 cycles",
}
"""What each test does, and the heads of the table's columns."""


@dataclass(frozen=True)
class Case:
    """A lab to test: ``words`` of `lab up`, on an engine of that name.

    ``reaches``: the nodes that get what is written at `rw`; empty: all with SQL. ``lone``: it has
    no node that could be missed. ``identity``: whether a branch can have one of its own.
    """

    words: tuple[str, ...]
    engine: str
    reaches: tuple[str, ...] = ()
    lone: bool = False

    @property
    def command(self) -> tuple[str, ...]:
        """What follows `lab up`."""
        return (*self.words, "--engine", self.engine)

    def __str__(self) -> str:
        return " ".join((*self.words, self.engine))


_BOTH = ("mariadb", "mysql")
CASES = (
    *(Case(("single",), engine, lone=True) for engine in _BOTH),
    *(Case(("replication",), engine) for engine in _BOTH),
    *(Case(("replication", "--topology", "chain"), engine) for engine in _BOTH),
    *(Case(("replication", "--topology", "ring"), engine) for engine in _BOTH),
    *(Case(("replication", "--topology", "fan-in"), engine, ("n1", "n3")) for engine in _BOTH),
    *(Case(("replication", "--semi-sync"), engine) for engine in _BOTH),
    Case(("group",), "mysql"),
    Case(("group", "--multi-primary"), "mysql"),
    Case(("group", "--proxy", "router"), "mysql"),
    Case(("replication", "--proxy", "haproxy"), "mariadb"),
    Case(("galera",), "mariadb"),
    Case(("galera",), "mariadb:10.11"),
    Case(("galera", "--nodes", "2", "--arbiter", "--proxy", "haproxy"), "mariadb"),
    Case(("galera-dr",), "mariadb"),
)


def record(case: Case, step: str) -> None:
    """Note that a step passed, at the commit that is checked out now."""
    RESULTS.parent.mkdir(parents=True, exist_ok=True)
    with RESULTS.open("a+", encoding="utf-8") as file:
        fcntl.flock(file, fcntl.LOCK_EX)
        file.seek(0)
        found = json.loads(file.read() or "{}")
        found.setdefault(str(case), {})[step] = _commit()
        file.seek(0)
        file.truncate()
        json.dump(found, file, indent=1)


def _commit() -> str:
    try:
        argv = ["git", "-C", str(ROOT), "rev-parse", "--short=7", "HEAD"]
        return run(argv, timeout=30).stdout.strip()
    except LabError:
        return "unknown"


def merged(page: str, results: Mapping[str, Mapping[str, str]]) -> str:
    """``page`` with what ``results`` say; cells of cases and steps that were not run stay."""
    head, _, rest = page.partition(BEGIN)
    old, _, tail = rest.partition(END)
    known = _read(old)
    lines = [
        _line(["blueprint", "engine", *STEPS.values()]),
        "|" + "---|" * (len(STEPS) + 2),
    ]
    for case in CASES:
        cells = known.get(str(case), {}) | dict(results.get(str(case), {}))
        shown = [cells.get(step, "-") for step in STEPS]
        lines.append(_line([f"`{' '.join(case.words)}`", case.engine, *shown]))
    return head + BEGIN + "\n" + "\n".join(lines) + "\n" + END + tail


def rows(page: str) -> dict[str, dict[str, str]]:
    """The cells of the table of ``page``, by case and step."""
    return _read(page.partition(BEGIN)[2].partition(END)[0])


def _read(table: str) -> dict[str, dict[str, str]]:
    found: dict[str, dict[str, str]] = {}
    for line in table.strip().splitlines()[2:]:
        words, engine, *cells = (cell.strip() for cell in line.strip().strip("|").split("|"))
        cells = [*cells, *["-"] * len(STEPS)]
        steps = zip(STEPS, cells, strict=False)
        found[f"{words.strip('`')} {engine}"] = {step: cell for step, cell in steps if cell != "-"}
    return found


def _line(cells: Sequence[str]) -> str:
    return "| " + " | ".join(cells) + " |"


def write(page: Path = PAGE, results: Path = RESULTS) -> None:
    """Render the table of ``page`` again."""
    found = json.loads(results.read_text(encoding="utf-8")) if results.exists() else {}
    page.write_text(merged(page.read_text(encoding="utf-8"), found), encoding="utf-8")


if __name__ == "__main__":
    write()
