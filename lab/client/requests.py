"""The bodies of requests."""

from __future__ import annotations

from typing import Any

from lab.config.labfile import LabValues, merge
from lab.errors import InvalidSpec
from lab.spec import LabSpec


def spec_of(wanted: str | LabSpec, values: LabValues) -> LabSpec:
    """The specification of a lab; raises InvalidSpec."""
    if isinstance(wanted, str):
        return merge({}, {**values, "blueprint": wanted})
    if values:
        raise InvalidSpec(f"a LabSpec cannot be combined with {', '.join(values)}")
    return wanted


def cluster(spec: LabSpec) -> dict[str, Any]:
    """The request for a template; only values that are given."""
    return _said(
        blueprint=spec.blueprint,
        nodes=spec.nodes,
        memory=spec.size.memory,
        cpus=spec.size.cpus,
        disk=spec.size.disk,
        engine=spec.engine,
        image=spec.image,
        dataset=spec.dataset,
        profile=spec.profile,
        options=spec.options.said or None,
    )


def lab(
    spec: LabSpec,
    *,
    cold: bool,
    protected: bool = False,
    heartbeat: float | None = None,
    idle: float | None = None,
    keep_failed: bool = False,
) -> dict[str, Any]:
    """The request for a lab; only values that are given."""
    return cluster(spec) | _said(
        name=spec.name,
        accept_pooled_name=spec.accept_pooled_name or None,
        snapshots=str(spec.snapshots),
        ttl=spec.ttl,
        heartbeat=heartbeat,
        idle=idle,
        cold=cold,
        protected=protected,
        keep_failed=keep_failed or None,
    )


def _said(**asked: object) -> dict[str, Any]:
    return {name: value for name, value in asked.items() if value not in ("", None)}
