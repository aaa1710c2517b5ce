"""Whether a lab matches a request: one rule for `--exist-ok`, here and remotely, and for pools."""

from __future__ import annotations

import json
from collections.abc import Mapping
from dataclasses import fields
from typing import TYPE_CHECKING

from lab import options
from lab.errors import Conflict
from lab.lifecycle.images.order import pinned, recipe_of
from lab.spec import LabSpec
from lab.state import records
from lab.state.records import LabRecord, Requested
from lab.units import format_size
from lab.values import dataclass

if TYPE_CHECKING:
    from lab.views.labs import LabView

_BYTES = ("memory", "disk")


@dataclass(frozen=True, kw_only=True)
class Configuration(Requested):
    """The configuration of a lab, or a requested one; options are as ``Options.shown`` has them.

    In a requested one an empty text or a ``disk`` of 0 matches anything.
    """

    recipe: str = ""
    """The recipe of the image."""
    image: str = ""
    """The image's key."""
    pool: str = ""
    """The warm pool that the lab is in."""


_FIELDS = tuple(field.name for field in fields(Configuration))
_WORDS = {"node_count": "nodes"}
"""The names of fields in messages, where they differ."""


def requested(spec: LabSpec, *, profile: str, recipe: str = "", image: str = "") -> Configuration:
    """What ``spec`` requests; ``profile``: the name of its profile, or of the default.

    ``recipe``: if ``spec`` has none, that of the image that it gets; ``image``: a full key.
    """
    recipe = recipe_of(spec.blueprint, spec.engine) if spec.engine else recipe
    shown = pinned(spec.blueprint, spec.chosen).shown
    values = {**records.requested(spec, profile), "options": shown}
    return Configuration(**values, recipe=recipe, image=image)


def of_record(record: LabRecord) -> Configuration:
    """The configuration of a recorded lab."""
    values = {field.name: getattr(record, field.name) for field in fields(Requested)}
    values["options"] = options.shown(record.options)
    return Configuration(
        **values, recipe=_recipe_in(record.image), image=record.image, pool=record.pool
    )


def of_view(view: LabView) -> Configuration:
    """The configuration of a lab as a service describes it."""
    return Configuration(
        blueprint=view.blueprint, node_count=view.requested_nodes, memory=view.memory,
        cpus=view.cpus, disk=view.disk or 0, profile=view.profile, options=view.options,
        recipe=_recipe_in(view.image), image=view.image,
    )  # fmt: skip


def _recipe_in(key: str) -> str:
    """The recipe that the key of an image begins with."""
    return key.rpartition("-")[0]


def differs(there: Configuration, wanted: Configuration, *, exact: bool = False) -> list[str]:
    """The fields in which ``there`` does not match ``wanted``, as ``nodes 3, requested 5``.

    A field that is empty in ``wanted`` matches anything; with ``exact`` only an empty one.
    """
    found = []
    for name in sorted(_FIELDS, key=lambda name: name == "options"):  # last: the longest text
        have, want = (_plain(getattr(one, name)) for one in (there, wanted))
        is_open = not want and name not in ("pool", "options") and not exact
        if have != want and not is_open:
            word = _WORDS.get(name, name)
            found.append(f"{word} {_shown(name, have)}, requested {_shown(name, want)}")
    return found


def check(name: str, there: Configuration, wanted: Configuration) -> None:
    """Raise Conflict, with the fields that differ, unless the lab ``name`` matches ``wanted``."""
    if found := differs(there, wanted):
        raise Conflict(
            f"lab {name} exists with a different configuration: {'; '.join(found)}",
            hint=f"`lab status {name}` shows it; `lab down {name}` removes it",
        )


def _plain(value: object) -> object:
    """A value that can be compared: options as JSON, as a service's answer has no tuples."""
    if isinstance(value, Mapping):
        return json.dumps(value, sort_keys=True) if value else ""
    return value


def _shown(name: str, value: object) -> str:
    if not value:
        return {"disk": "the image's", "pool": "none", "options": "none"}.get(name, "any")
    return format_size(value) if name in _BYTES and isinstance(value, int) else str(value)
