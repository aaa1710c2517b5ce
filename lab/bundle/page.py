"""The index of a bundle: a page that needs nothing but itself, with a timeline of all nodes."""

from __future__ import annotations

import re
from collections.abc import Iterable, Mapping, Sequence
from contextlib import suppress
from datetime import datetime, timezone
from html import escape
from typing import Any

from lab.units import format_size
from lab.values import dataclass

_LATEST = 4e9
"""In the year 2096."""
LINES = 1500
"""Of the timeline, the last ones."""
_STAMP = re.compile(
    r"(\d{4}-\d\d-\d\dT\d\d:\d\d:\d\d(?:[.,]\d{1,6})?(?:Z|[+-]\d\d:?\d\d))\s+(?:\S+\s+)?(.*)"
)
"""A line of the journal: time, host, text."""
_BAD = re.compile(
    r"(?i)\b(error|fail|failed|failure|abort|aborting|panic|lost|non-primary|inconsistent)\b"
)
_STYLE = """
body{font:14px/1.45 system-ui,sans-serif;margin:2em;max-width:78em;color:#1c2024}
table{border-collapse:collapse;margin:.6em 0 1.6em}td,th{padding:.2em .8em .2em 0;text-align:left;
vertical-align:top}th{font-weight:600}tbody tr{border-top:1px solid #d8dce0}
.line{font-family:ui-monospace,monospace;font-size:12px;white-space:pre-wrap;overflow-wrap:anywhere}
.bad{color:#a01818}.own{color:#1c4f9c}a{color:#1c4f9c}
@media(prefers-color-scheme:dark){body{background:#16191d;color:#dfe3e8}.bad{color:#ff8a80}
.own,a{color:#8ab4f8}tbody tr{border-color:#333a42}}
"""


@dataclass(frozen=True)
class Moment:
    """A line of the timeline; ``where``: a node, or ``lab`` for what we did."""

    at: float
    """In epoch seconds, by the clock of ``where``."""
    where: str
    text: str


def moments(where: str, log: str) -> list[Moment]:
    """The lines of a journal that have a time."""
    found = []
    for line in log.splitlines():
        match = _STAMP.match(line)
        if match:
            stamp = match[1].replace(",", ".")
            stamp = re.sub(r"([+-]\d\d):?(\d\d)$", r"\1:\2", stamp).replace("Z", "+00:00")
            with suppress(ValueError, OverflowError):  # a guest writes what it likes
                at = datetime.fromisoformat(stamp).timestamp()
                if 0 <= at < _LATEST:  # others cannot be shown
                    found.append(Moment(at, where, match[2]))
    return found


def merged(found: Iterable[Moment]) -> list[Moment]:
    """All in order of time, the last ``LINES``."""
    return sorted(found, key=lambda one: one.at)[-LINES:]


def as_text(timeline: Sequence[Moment]) -> str:
    """The timeline, a line each."""
    return "".join(f"{_time(one.at)}  {one.where:<6}  {one.text}\n" for one in timeline)


def index(manifest: Mapping[str, Any], timeline: Sequence[Moment]) -> str:
    """The page; all that is shown is from a guest or a user, and escaped."""
    lab = manifest["lab"]
    nodes = "".join(
        _row(one["name"], one["role"], one["state"], one.get("why") or "", one.get("engine") or "")
        for one in manifest["nodes"]
    )
    facts = "".join(_row(key, value) for key, value in manifest["versions"].items())
    missing = "".join(_row(one["what"], one["why"]) for one in manifest["missing"])
    files = "".join(
        f'<tr><td><a href="{escape(path, quote=True)}">{escape(path)}</a></td>'
        f"<td>{format_size(facts['size'])}</td></tr>"
        for path, facts in sorted(manifest["files"].items())
    )
    lines = "".join(map(_line, timeline))
    return f"""<!DOCTYPE html>
<html lang="en"><head><meta charset="utf-8"><title>{escape(lab["name"])}: bundle</title>
<meta http-equiv="Content-Security-Policy" content="default-src 'none'; style-src 'unsafe-inline'">
<style>{_STYLE}</style></head><body>
<h1>{escape(lab["name"])}: {escape(lab["state"])}</h1>
<p>{escape(manifest["why"] or "Collected on request")}, {_time(manifest["at"])}.
{escape(lab["blueprint"])}, {escape(lab["engine"])}. Known secrets and the literals of statements
are removed; table and column names are not.</p>
<h2>Nodes</h2><table><thead>{_row("node", "role", "state", "why", "engine", tag="th")}</thead>
<tbody>{nodes}</tbody></table>
<h2>Not collected</h2><table><tbody>{missing or _row("nothing")}</tbody></table>
<h2>Versions</h2><table><tbody>{facts}</tbody></table>
<h2>Timeline</h2><p>The servers' logs and what was done with the lab, by each one's clock.</p>
<table><tbody>{lines}</tbody></table>
<h2>Files</h2><table><tbody>{files}</tbody></table>
</body></html>
"""


def _line(one: Moment) -> str:
    kind = "own" if one.where == "lab" else "bad" if _BAD.search(one.text) else ""
    cells = (_time(one.at), one.where, one.text)
    return f'<tr class="line {kind}">{"".join(f"<td>{escape(cell)}</td>" for cell in cells)}</tr>\n'


def _row(*cells: object, tag: str = "td") -> str:
    return "<tr>" + "".join(f"<{tag}>{escape(str(one))}</{tag}>" for one in cells) + "</tr>\n"


def _time(at: float) -> str:
    return datetime.fromtimestamp(at, timezone.utc).isoformat(timespec="milliseconds")
