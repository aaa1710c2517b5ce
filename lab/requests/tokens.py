"""Requests about the tokens of a service."""

from __future__ import annotations

from typing import Annotated

from msgspec import Meta

from lab.names import PROJECT_NAME
from lab.request import IN_BYTES, IN_SECONDS, Bytes, Request, Seconds
from lab.requests.labs import Asleep
from lab.spec import LEASE_LIMIT
from lab.state.service import Scope


class CreateToken(Request, frozen=True, kw_only=True):
    """A token to create."""

    name: Annotated[str, Meta(pattern=PROJECT_NAME, examples=["ci"])]
    project: Annotated[str, Meta(pattern=PROJECT_NAME, examples=["shop"])]
    scope: Scope = "use"
    ttl: Annotated[
        Annotated[Seconds, Meta(gt=0, le=10 * 366 * 86400)] | None,
        Meta(description=f"The validity, {IN_SECONDS}; null: until it is revoked."),
    ] = None
    max_labs: Annotated[int, Meta(ge=0, le=10000)] | None = None
    max_nodes: Annotated[int, Meta(ge=0, le=100000)] | None = None
    max_memory: Annotated[
        Annotated[Bytes, Meta(ge=0, le=1 << 50)] | None,
        Meta(description=f"Of all nodes together, {IN_BYTES}."),
    ] = None
    max_cpus: Annotated[int, Meta(ge=0, le=1000000)] | None = None
    max_disk: Annotated[
        Annotated[Bytes, Meta(ge=0, le=1 << 60)] | None,
        Meta(description=f"Of all nodes and their snapshots together, {IN_BYTES}."),
    ] = None
    max_snapshots: Annotated[int, Meta(ge=0, le=100000)] | None = None
    max_templates: Annotated[int, Meta(ge=0, le=10000)] | None = None
    max_ttl: Annotated[
        Annotated[Seconds, Meta(ge=10, le=LEASE_LIMIT)] | None,
        Meta(description=f"The longest lease, {IN_SECONDS}."),
    ] = None
    asleep_after: Annotated[
        Asleep,
        Meta(
            description=f"Pause its labs after this time without use, {IN_SECONDS}; 0: never;"
            " null: as the service says."
        ),
    ] = None
