"""Lists of labs as callers see them: chosen by the record, then as they were observed last.

Only labs that the caller may see are looked at, and of these only those of the page that is asked
for, unless their states choose it.
"""

from __future__ import annotations

import json
import time
from collections.abc import Mapping, Sequence
from dataclasses import field, replace
from typing import Annotated, NamedTuple, get_args

import msgspec
from msgspec import Meta

from lab.api.core.core import Core
from lab.api.core.observing import READS, Seen
from lab.api.http.auth import Caller
from lab.api.http.lab_answer import lab_answer, lab_of
from lab.fleet.known import Known
from lab.observe.states import NODE_STATES, ListedState
from lab.request import Request
from lab.state.records import LabWithNodes
from lab.values import dataclass
from lab.views.labs import Lab, LabView

_STATES = frozenset(get_args(ListedState))
_LATE = 30.0
"""Seconds after which what another host has observed is too old; see ``LabView.observed_at``."""


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
    """A lab as it is listed: ``seen`` last; one that only has guests and volumes has a ``view``.

    ``name``: as it is listed by; ``host_name``: of its host in a fleet. One of another host is its
    own ``view``, without its account.
    """

    name: str
    view: LabView
    seen: Seen | None = None
    host_name: str = ""

    def lab(self, *, login: bool) -> Lab:
        """As its caller sees it; ``login``: with its account."""
        if isinstance(self.view, Lab):
            return self.view
        record = self.seen.record if self.seen else None
        return lab_of(self.view, record, login=login, host_name=self.host_name)

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
    others = {} if core.fleet is None else core.fleet.elsewhere()
    for _ in range(READS):
        labs = core.observing.labs()
        lost = core.observing.lost() if _sees_lost(caller, selection) else {}
        chosen = _chosen(core, labs, lost, others, caller, selection)
        if core.observing.fresh(chosen.look):
            break
    return _page(core, chosen, selection)


def page_at_once(core: Core, caller: Caller, selection: LabSelection) -> Items | None:
    """``page_of``, or None where there is something to read or to wait for.

    It blocks for microseconds.
    """
    labs = core.observing.known()
    lost = core.observing.lost_before() if _sees_lost(caller, selection) else {}
    others = {} if core.fleet is None else core.fleet.elsewhere_at_once()
    if labs is None or lost is None or others is None:
        return None
    chosen = _chosen(core, labs, lost, others, caller, selection)
    return _page(core, chosen, selection) if core.observing.want(chosen.look) else None


def _sees_lost(caller: Caller, selection: LabSelection) -> bool:
    return caller.project is None and not selection.project


class _Chosen(NamedTuple):
    """The labs of a page by their ``names``, and one more; ``look``: those that are observed."""

    labs: Mapping[str, LabWithNodes]
    lost: Mapping[str, LabView]
    others: Mapping[str, Known]
    names: Sequence[str]
    look: Sequence[LabWithNodes]


def _chosen(
    core: Core,
    labs: Mapping[str, LabWithNodes],
    lost: Mapping[str, LabView],
    others: Mapping[str, Known],
    caller: Caller,
    selection: LabSelection,
) -> _Chosen:
    lost = {name: view for name, view in lost.items() if name not in labs}  # as of seconds ago
    foreign = frozenset[str]() if core.fleet is None else core.fleet.foreign
    others = {name: one for name, one in others.items() if name not in labs or name in foreign}
    ours = {name: one for name, one in labs.items() if name not in foreign}
    strange = {name: one for name, one in labs.items() if name in foreign}
    names = _visible(ours, lost, caller, selection) + _theirs(others, caller, selection)
    names += [_at_host(core, name) for name in _visible(strange, {}, caller, selection)]
    names = sorted(set(names))
    if selection.state is None:
        names = names[: selection.limit + 1]
    shown = names if selection.state is not None else names[: selection.limit]
    look = [ours[name] for name in shown if name in ours]
    look += [strange[own] for name in shown if (own := _own(core, name)) in strange]
    return _Chosen({**ours, **strange}, lost, others, names, look)


def _page(core: Core, chosen: _Chosen, selection: LabSelection) -> Items:
    items: list[Item] = []
    foreign = frozenset[str]() if core.fleet is None else core.fleet.foreign
    for name in chosen.names:
        if name in chosen.labs and name not in foreign:
            seen = core.observing.seen_of(chosen.labs[name])
            item = Item(name, seen.view, seen, host_name=core.settings.serve.host_name)
        elif (own := _own(core, name)) in chosen.labs:
            item = _foreign(core, name, chosen.labs[own])
        elif name in chosen.lost:
            item = Item(name, chosen.lost[name])
        else:
            item = _elsewhere(name, chosen.others[name])
        if selection.state in (None, item.view.state):
            items.append(item)
        if len(items) > selection.limit:
            break
    more = len(items) > selection.limit
    items = items[: selection.limit]
    return Items(items, items[-1].name if more else None)


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
    return names


def _theirs(others: Mapping[str, Known], caller: Caller, selection: LabSelection) -> list[str]:
    """The names of the labs of other hosts to choose from."""
    return [
        name
        for name, found in others.items()
        if name > selection.after
        and caller.sees(found.project)
        and selection.blueprint in ("", (found.view or {}).get("blueprint"))
        and selection.project in ("", found.project)
    ]


def _at_host(core: Core, name: str) -> str:
    """What a foreign lab of this host is called."""
    return f"{name}@{core.settings.serve.host_name}"


def _own(core: Core, name: str) -> str:
    """The name of a foreign lab of this host by what it is called; empty for others."""
    plain, _, host = name.partition("@")
    return plain if host and host == core.settings.serve.host_name else ""


def _foreign(core: Core, name: str, found: LabWithNodes) -> Item:
    """A lab of this host that does not hold its name."""
    seen, host = core.observing.seen_of(found), core.settings.serve.host_name
    lab = lab_of(seen.view, seen.record, login=False, host_name=host)
    return Item(name, replace(lab, name=name, state="foreign"), host_name=host)


def _elsewhere(name: str, found: Known) -> Item:
    """A lab of another host, as that said it was.

    Of a lost host, or long ago, or in words that this version does not know, its state is unknown,
    as is that of a node.
    """
    try:
        lab, state = msgspec.convert(found.view, Lab), found.state
    except msgspec.ValidationError:
        lab, state = Lab(name, "unknown", "", "unknown", (), blueprint="unknown"), "unknown"
    if state not in _STATES:
        state = "unknown"
    if any(node.state not in NODE_STATES for node in lab.nodes):
        nodes = [
            node if node.state in NODE_STATES else replace(node, state="unknown")
            for node in lab.nodes
        ]
        lab = replace(lab, nodes=tuple(nodes))
    if found.foreign and state != "lost":
        state = "foreign"
    elif state != "lost" and time.time() - (found.observed_at or 0.0) > _LATE:
        state = "unknown"
    shown = replace(lab, name=name, state=state, host_name=found.host)
    return Item(name, shown, host_name=found.host)
