"""Datasets, as they are shown."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass

from lab.progress import Step


@dataclass(frozen=True)
class DatasetView:
    """A version of a dataset: an image with data."""

    name: str
    version: int
    state: str
    """``building``, ``ready``, or ``removing``: no new lab gets it."""
    image: str
    """The key of the image."""
    engine: str
    source: str
    size: int
    loaded: int
    """Bytes of SQL."""
    tables: tuple[Mapping[str, str | int], ...]
    """Each table with ``database``, ``name``, ``engine``, and its estimated ``rows`` and
    ``size`` in bytes."""
    created_at: float
    seconds: float
    """How long it took to create it."""
    masked: bool = False
    """Whether masking rules were applied."""
    used_by: tuple[str, ...] = ()
    """Templates and labs."""
    steps: tuple[Step, ...] = ()
    """The steps of the command that returned this view."""
    project: str = ""
    """The project of the service whose data it has; empty: for all projects."""
    blueprint: str = ""
    keep: int = 0
    """How many versions are kept; 0: all."""
    columns: tuple[str, ...] = ()
    """Columns such as ``shop.customers.mail varchar``, if one version was asked for."""
    options: tuple[str, ...] = ()
    """Options of the servers that loaded and masked it."""
    accounts: tuple[str, ...] = ()
    """Accounts that came with the data."""
    definers: tuple[str, ...] = ()
    """Definers of views, routines, triggers and events that are no account, so these fail with
    error 1449."""

    @property
    def at(self) -> str:
        """What requests name it by."""
        return f"{self.name}@{self.version}"


@dataclass(frozen=True)
class UploadView:
    """A dump that was sent to the service: ``id`` names it; ``size`` in bytes."""

    id: str
    name: str
    size: int


@dataclass(frozen=True)
class PersonalColumn:
    """A column that looks personal: ``column`` as ``shop.customers.mail``, ``rule`` that fits."""

    column: str
    reason: str
    rule: str
