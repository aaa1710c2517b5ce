"""Whether a lab matches a request: one rule for `--exist-ok`, here and remotely, and for pools."""

from __future__ import annotations

import json
from collections.abc import Mapping
from dataclasses import dataclass, fields
from typing import TYPE_CHECKING, Any

from lab import options
from lab.errors import Conflict
from lab.lifecycle.images.order import pinned, recipe_of
from lab.spec import LabSpec
from lab.units import format_size

if TYPE_CHECKING:
    from lab.state.records import LabRecord
    from lab.views.labs import LabView

_BYTES = ("memory", "disk")


@dataclass(frozen=True)
class Configuration:
    """The configuration of a lab, or a requested one.

    There an empty text or a ``disk`` of 0 matches anything.
    """

    blueprint: str
    nodes: int
    """How many were requested; others that the blueprint plans, such as a proxy, follow from that.
    """
    memory: int
    """Of a node, in bytes."""
    cpus: int
    disk: int = 0
    """Of a node, in bytes."""
    profile: str = ""
    recipe: str = ""
    """The recipe of the image."""
    image: str = ""
    """The image's key."""
    pool: str = ""
    """The warm pool that the lab is in."""
    options: str = ""
    """What ``Options.shown`` returns, as JSON."""


def requested(spec: LabSpec, *, profile: str, recipe: str = "", image: str = "") -> Configuration:
    """What ``spec`` requests; ``profile``: the name of its profile, or of the default.

    ``recipe``: if ``spec`` has none, that of the image that it gets; ``image``: a full key.
    """
    size = spec.size
    recipe = recipe_of(spec.blueprint, spec.engine) if spec.engine else recipe
    return Configuration(
        spec.blueprint, spec.nodes, size.memory, size.cpus, size.disk, profile, recipe, image,
        options=_json(pinned(spec.blueprint, spec.options).shown),
    )  # fmt: skip


def of_record(record: LabRecord) -> Configuration:
    """The configuration of a recorded lab."""
    return Configuration(
        record.blueprint, record.node_count, record.memory, record.cpus, record.disk,
        record.profile, record.image.rpartition("-")[0], record.image, record.pool,
        _json(options.shown(record.options)),
    )  # fmt: skip


def of_view(view: LabView) -> Configuration:
    """The configuration of a lab as a service describes it."""
    return Configuration(
        view.blueprint, view.requested_nodes, view.memory, view.cpus, view.disk or 0,
        view.profile, view.image.rpartition("-")[0], view.image,
        options=_json(view.options),
    )  # fmt: skip


def differs(there: Configuration, wanted: Configuration, *, exact: bool = False) -> list[str]:
    """The fields in which ``there`` does not match ``wanted``, as ``nodes 3, requested 5``.

    A field that is empty in ``wanted`` matches anything; with ``exact`` only an empty one.
    """
    found = []
    for field in fields(Configuration):
        have, want = getattr(there, field.name), getattr(wanted, field.name)
        is_open = not want and field.name not in ("pool", "options") and not exact
        if have != want and not is_open:
            found.append(
                f"{field.name} {_shown(field.name, have)}, requested {_shown(field.name, want)}"
            )
    return found


def check(name: str, there: Configuration, wanted: Configuration) -> None:
    """Raise Conflict, with the fields that differ, unless the lab ``name`` matches ``wanted``."""
    if found := differs(there, wanted):
        raise Conflict(
            f"lab {name} exists with a different configuration: {'; '.join(found)}",
            hint=f"`lab status {name}` shows it; `lab down {name}` removes it",
        )


def _json(options: Mapping[str, Any]) -> str:
    return json.dumps(options, sort_keys=True) if options else ""


def _shown(name: str, value: object) -> str:
    if not value:
        return {"disk": "the image's", "pool": "none", "options": "none"}.get(name, "any")
    return format_size(value) if name in _BYTES and isinstance(value, int) else str(value)
