"""Datasets, as they are shown."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Annotated

from lab.marks import HostOnly, Public, Time, public
from lab.progress import Step
from lab.values import dataclass


@dataclass(frozen=True)
class DatasetTable:
    """A table of a dataset, as estimated by the server."""

    database: Public[str]
    name: Public[str]
    engine: Public[str]
    rows: Public[int]
    size: Public[int]
    """In bytes."""


@dataclass(frozen=True)
class DatasetView:
    """A version of a dataset."""

    name: Annotated[str, public("shop")]
    version: Public[int]
    state: Public[str]
    """building, ready, or removing: no new lab gets it."""
    image: Public[str]
    """The key of its image."""
    engine: Public[str]
    source: Annotated[str, public("lab:shop")]
    """Without passwords."""
    size: Public[int]
    """In bytes."""
    loaded: Public[int]
    """Bytes of SQL."""
    tables: Annotated[tuple[Mapping[str, str | int], ...], public(values=tuple[DatasetTable, ...])]
    created_at: Public[Time]
    seconds: Public[float]
    """Duration of its creation, in seconds."""
    masked: Public[bool] = False
    """Whether masking rules were applied."""
    used_by: Public[tuple[str, ...]] = ()
    """Labs that the caller sees."""
    steps: HostOnly[tuple[Step, ...]] = ()
    """The steps of the command that returned this view."""
    project: Public[str] = ""
    """Empty: for all projects."""
    blueprint: Public[str] = ""
    keep: Public[int] = 0
    """How many versions a refresh keeps; 0: all."""
    columns: Annotated[tuple[str, ...], public(["shop.customers.mail varchar"])] = ()
    """Empty in the list of all datasets."""
    options: Public[tuple[str, ...]] = ()
    """Of the servers that loaded and masked it."""
    accounts: Public[tuple[str, ...]] = ()
    """Those that came with it."""
    definers: Public[tuple[str, ...]] = ()
    """Of views, routines, triggers and events, that are no account."""

    @property
    def at(self) -> str:
        """What requests name it by."""
        return f"{self.name}@{self.version}"


@dataclass(frozen=True)
class LastRefresh:
    """The latest refresh of a dataset, whoever requested it."""

    job: Public[str]
    state: Public[str]
    at: Public[Time]
    error: Public[str]
    """Why it failed, or empty."""


@dataclass(frozen=True)
class VersionsView:
    """A dataset: its versions, the oldest first."""

    name: Annotated[str, public("shop")]
    project: Public[str]
    """Empty: for all projects."""
    versions: Public[tuple[DatasetView, ...]]
    refresh: Public[float | None]
    """The interval of its schedule, in seconds."""
    next_refresh_at: Public[Time | None]
    last_refresh: Public[LastRefresh | None]


@dataclass(frozen=True)
class UploadView:
    """A dump that was sent to the service."""

    id: Public[str]
    """What names it in requests."""
    name: Public[str]
    size: Public[int]
    """In bytes."""


@dataclass(frozen=True)
class PersonalColumn:
    """A column that looks personal and that no masking rule covers."""

    column: Annotated[str, public("shop.customers.mail")]
    reason: Public[str]
    rule: Public[str]
    """The masking rule that fits."""
