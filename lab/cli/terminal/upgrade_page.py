"""The report of an upgrade as one HTML file, which needs nothing else and runs no script."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from typing import TYPE_CHECKING
from xml.etree.ElementTree import Element, SubElement, tostring

from lab.texts import printable
from lab.units import counted

if TYPE_CHECKING:
    from lab.views.upgrades import StatementView, UpgradeStep, UpgradeView, WorkloadView

_STYLE = """
:root { color-scheme: light dark; font: 15px/1.5 system-ui, sans-serif }
body { max-width: 75rem; margin: 2rem auto; padding: 0 1rem }
table { border-collapse: collapse; margin: .5rem 0 1rem }
th, td { text-align: left; vertical-align: top; padding: .2rem 1rem .2rem 0;
  border-bottom: 1px solid #8886 }
pre { white-space: pre-wrap; overflow-wrap: anywhere; margin: .2rem 0 1rem }
.bad { color: #c22 } .good { color: #282 }
"""
_POLICY = "default-src 'none'; style-src 'unsafe-inline'"
_HEAD = ("Node", "Before", "After", "State", "Time", "No writes for", "Snapshot")


def upgrade_page(view: UpgradeView) -> str:
    """The whole file; guests wrote some of what is in it, and all of that is text there."""
    page = Element("html", lang="en")
    head = SubElement(page, "head")
    SubElement(head, "meta", charset="utf-8")
    SubElement(head, "meta", {"http-equiv": "Content-Security-Policy", "content": _POLICY})
    _text(head, "title", f"Upgrade of {view.lab} to {view.to}")
    SubElement(head, "style").text = _STYLE
    body = SubElement(page, "body")
    _text(body, "h1", f"Upgrade of {view.lab} to {view.to}")
    lost = "not known how many" if view.lost is None else str(view.lost)
    _text(
        body, "p",
        f"{counted(len(view.steps), 'step')} in {view.seconds:.1f} s. Rows written meanwhile:"
        f" {view.written} acknowledged, {lost} lost, {view.refused} refused.",
        "bad" if view.failed or view.lost != 0 else "good",
    )  # fmt: skip
    if view.unchecked:
        _text(body, "p", "They were not looked for on:")
        _lines(body, view.unchecked)
    if view.foreseen:
        _text(body, "p", "Known before the first step:")
        _lines(body, view.foreseen)
    _table(body, _HEAD, [
        (step.node, step.before or "-", step.after or "-", step.state, f"{step.seconds:.1f} s",
         f"{step.outage:.1f} s", step.snapshot) for step in view.steps
    ])  # fmt: skip
    for step in view.steps:
        _step(body, step)
    if view.changed is None:
        _text(body, "p", "Which tables changed is not known: no checksums of before and after.")
    elif view.changed:
        _text(body, "h2", "Tables whose checksums differ")
        _lines(body, view.changed)
    if view.workload is not None:
        _workload(body, view.workload)
    return f"<!doctype html>\n{tostring(page, encoding='unicode', method='html')}\n"


def _step(body: Element, step: UpgradeStep) -> None:
    _text(body, "h2", step.node)
    if step.why:
        _text(body, "p", step.why, "bad")
    for line in step.cluster:
        _text(body, "p", f"{line}.")
    for title, head, rows in (
        ("Longest time without an answer", ("Endpoint", "Time"), [
            (name, f"{seconds:.1f} s") for name, seconds in step.unanswered.items()
        ]),
        ("Replication", ("Row taken by", "Found on", "After"), [
            (one.source, one.target, one.said) for one in step.replicated or ()
        ]),
        ("Options", ("Option", "State", "The server's log"), [
            (one.name, one.state, one.said) for one in step.options or ()
        ]),
    ):  # fmt: skip
        if rows:
            _text(body, "h3", title)
            _table(body, head, rows)
    for title, lines in (
        ("Accounts that cannot log in", step.locked_out),
        ("Tables that were to be rebuilt", step.rebuild),
        ("Log of the server", step.log),
    ):
        if lines:
            _text(body, "h3", title)
            _lines(body, lines)
    gaps = {"There may be more": step.incomplete, "Unknown": step.unknown}
    for text in [f"{how}: {', '.join(what)}." for how, what in gaps.items() if what]:
        _text(body, "p", text)
    if step.compared or step.statements != ():
        _text(body, "h3", step.summary)
    for one in step.statements or ():
        _statement(body, one)


def _statement(body: Element, one: StatementView) -> None:
    _text(body, "h4", f"Statement {one.number}: {', '.join(one.differs)}")
    _lines(body, [one.text])
    if one.error:
        _text(body, "p", one.error, "bad")
        return
    _table(body, ("", "Time", "Rows read", "Plan"), [
        (when, f"{seconds * 1000:.1f} ms", str(read), "; ".join(plan))
        for when, seconds, read, plan in (
            ("before", one.seconds_before, one.read_before, one.plan_before),
            ("after", one.seconds_after, one.read_after, one.plan_after),
        )
    ])  # fmt: skip


def _workload(body: Element, one: WorkloadView) -> None:
    _text(body, "h2", "Workload")
    how = "ended by itself after" if one.by_itself else "ran to the end,"
    text = f"It {how} {one.seconds:.1f} s; exit code {one.code}."
    _text(body, "p", text, "bad" if one.by_itself and one.code else "")
    if one.output:
        _lines(body, one.output)


def _text(parent: Element, tag: str, text: str, kind: str = "") -> None:
    found = SubElement(parent, tag, {"class": kind} if kind else {})
    found.text = printable(text)


def _lines(parent: Element, lines: Iterable[str]) -> None:
    SubElement(parent, "pre").text = "\n".join(map(printable, lines))


def _table(parent: Element, head: Sequence[str], rows: Iterable[Sequence[str]]) -> None:
    table = SubElement(parent, "table")
    for tag, cells in (("th", head), *(("td", row) for row in rows)):
        row = SubElement(table, "tr")
        for cell in cells:
            _text(row, tag, cell)
