"""Lists of labs as callers see them: chosen by the record, then as they were observed last.

Only labs that the caller may see are looked at, and of these only those of the page that is asked
for, unless their states choose it.
"""

from __future__ import annotations

import json
from collections.abc import Mapping, Sequence
from dataclasses import field
from typing import Annotated, NamedTuple

from msgspec import Meta

from lab.api.core.core import Core
from lab.api.core.observing import READS, Observing, Seen
from lab.api.http.auth import Caller
from lab.api.http.lab_answer import lab_answer, lab_of
from lab.observe.states import ListedState
from lab.requests.request import Request
from lab.state.records import LabWithNodes
from lab.values import dataclass
from lab.views.labs import Lab, LabView


class LabSelection(Request, frozen=True, kw_only=True):
    """Which labs: by state, blueprint and project; ``limit`` of those after a name."""

    state: ListedState | None = None
    blueprint: Annotated[str, Meta(max_length=64)] = ""
    project: Annotated[
        str, Meta(max_length=64, description="Only labs of this project; for admins.")
    ] = ""
    after: Annotated[str, Meta(max_length=64)] = ""
    limit: Annotated[int, Meta(ge=1, le=500)] = 100


@dataclass(frozen=True)
class Item:
    """A lab as it is listed: ``seen`` last; one that only has guests and volumes has a ``view``."""

    view: LabView
    seen: Seen | None = None

    def lab(self, *, login: bool) -> Lab:
        """As its caller sees it; ``login``: with its account."""
        return lab_of(self.view, self.seen.record if self.seen else None, login=login)

    def body(self, *, login: bool) -> bytes:
        """The lab as JSON, which is encoded once for each observation of the lab."""
        bodies = self.seen.bodies if self.seen is not None else {}
        found = bodies.get(login)
        if found is None:
            found = bodies[login] = lab_answer(self.lab(login=login)).model_dump_json().encode()
        return found


@dataclass(frozen=True)
class Items:
    """A page of a list; ``next``: the cursor of the page after it."""

    items: Sequence[Item] = field(default_factory=tuple)
    next: str | None = None


def page_of(core: Core, caller: Caller, selection: LabSelection) -> Items:
    """The labs that the caller may see and wants, observed just now."""
    for _ in range(READS):
        labs = core.observing.labs()
        lost = core.observing.lost() if _sees_lost(caller, selection) else {}
        chosen = _chosen(labs, lost, caller, selection)
        if core.observing.fresh(chosen.look):
            break
    return _page(core.observing, chosen, selection)


def page_at_once(core: Core, caller: Caller, selection: LabSelection) -> Items | None:
    """``page_of``, or None where there is something to read or to wait for.

    It blocks for microseconds.
    """
    labs = core.observing.known()
    lost = core.observing.lost_before() if _sees_lost(caller, selection) else {}
    if labs is None or lost is None:
        return None
    chosen = _chosen(labs, lost, caller, selection)
    return _page(core.observing, chosen, selection) if core.observing.want(chosen.look) else None


def _sees_lost(caller: Caller, selection: LabSelection) -> bool:
    return caller.project is None and not selection.project


class _Chosen(NamedTuple):
    """The labs of a page by their ``names``, and one more; ``look``: those that are observed."""

    labs: Mapping[str, LabWithNodes]
    lost: Mapping[str, LabView]
    names: Sequence[str]
    look: Sequence[LabWithNodes]


def _chosen(
    labs: Mapping[str, LabWithNodes],
    lost: Mapping[str, LabView],
    caller: Caller,
    selection: LabSelection,
) -> _Chosen:
    lost = {name: view for name, view in lost.items() if name not in labs}  # as of seconds ago
    names = _visible(labs, lost, caller, selection)
    look = [labs[name] for name in names if name not in lost]
    if selection.state is None:
        names = names[: selection.limit + 1]
        look = [labs[name] for name in names[: selection.limit] if name not in lost]
    return _Chosen(labs, lost, names, look)


def _page(observing: Observing, chosen: _Chosen, selection: LabSelection) -> Items:
    items: list[Item] = []
    for name in chosen.names:
        if name in chosen.lost:
            item = Item(chosen.lost[name])
        else:
            seen = observing.seen_of(chosen.labs[name])
            item = Item(seen.view, seen)
        if selection.state in (None, item.view.state):
            items.append(item)
        if len(items) > selection.limit:
            break
    more = len(items) > selection.limit
    items = items[: selection.limit]
    return Items(items, items[-1].view.name if more else None)


def labs_listed(core: Core, caller: Caller, selection: LabSelection) -> bytes:
    """``page_of`` as JSON."""
    return _json(page_of(core, caller, selection), caller)


def listed_at_once(core: Core, caller: Caller, selection: LabSelection) -> bytes | None:
    """``page_at_once`` as JSON."""
    found = page_at_once(core, caller, selection)
    return None if found is None else _json(found, caller)


def _json(found: Items, caller: Caller) -> bytes:
    login = caller.may("use")
    items = b",".join([one.body(login=login) for one in found.items])
    return b'{"items":[%s],"next":%s}' % (items, json.dumps(found.next).encode())


def _visible(
    labs: Mapping[str, LabWithNodes],
    lost: Mapping[str, LabView],
    caller: Caller,
    selection: LabSelection,
) -> list[str]:
    """The names of the labs to choose from, in order; not those in a warm pool."""
    names = [
        name
        for name, found in labs.items()
        if name > selection.after
        and not found.lab.pool
        and caller.sees(found.lab.project)
        and selection.blueprint in ("", found.lab.blueprint)
        and selection.project in ("", found.lab.project)
    ]
    if not selection.blueprint:
        names += [name for name in lost if name > selection.after]
    return sorted(names)
