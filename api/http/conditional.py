"""Conditional requests: ETags, and If-Match."""

from __future__ import annotations

import hashlib
import json
from typing import Annotated

from fastapi import Header

from lab.api.http.problems import Changed
from lab.state.records import LabRecord

IfMatch = Annotated[
    str | None, Header(alias="If-Match", description="The ETag that the resource must still have.")
]


def etag(lab: LabRecord) -> str:
    """The ETag of a lab: it changes with everything that a client can change."""
    lease = (lab.expires_at, lab.protected, lab.idle, lab.asleep_after)
    return tag_of(lab.name, lab.created_at, lab.state, *lease, lab.job)


def tag_of(*facts: object) -> str:
    """An ETag that changes with any of ``facts``."""
    return f'"{hashlib.sha256(json.dumps(facts).encode()).hexdigest()[:24]}"'


def check_match(lab: LabRecord, given: str | None) -> None:
    """Raise Changed unless ``given``, an If-Match, holds the ETag of the lab."""
    check_tag(f"the lab {lab.name}", etag(lab), given)


def check_tag(what: str, tag: str, given: str | None) -> None:
    """Raise Changed unless ``given``, an If-Match, holds ``tag``."""
    if given is None or given.strip() == "*":
        return
    if tag not in [one.strip() for one in given.split(",")]:
        raise Changed(f"{what} has changed: If-Match failed", hint="GET it again for the new ETag")
