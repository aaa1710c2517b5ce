"""Datasets that the service refreshes: the tables ``[serve.datasets.NAME]`` of a config file.

Example::

    [serve.datasets.shop]
    refresh = "24h"
    keep = 3
"""

from collections.abc import Mapping
from typing import Annotated

from lab.errors import InvalidSpec
from lab.keys import Given, WrongType, complete, keys, parse_all, within
from lab.names import check_dataset_name
from lab.units import Seconds
from lab.values import dataclass

_LEAST = 60.0


@dataclass(frozen=True)
class ScheduledDataset:
    """A dataset that is refreshed by a schedule."""

    name: Given[str]
    """The dataset's name: that of the table."""
    refresh: Seconds
    """The time from one version to the next, at least a minute."""
    keep: Annotated[int, within(0, 1000)] | None = None
    """How many versions are kept, 0 for all; default: as the dataset was created."""


def parse(value: object) -> tuple[ScheduledDataset, ...]:
    """The tables of datasets; raises WrongType or InvalidSpec."""
    if not isinstance(value, Mapping):
        raise WrongType
    return tuple(_one(check_dataset_name(name), table) for name, table in value.items())


def _one(name: str, table: object) -> ScheduledDataset:
    place = f"[serve.datasets.{name}]"
    values = parse_all(keys(ScheduledDataset), table, place)
    found = complete(ScheduledDataset, values, place, name=name)
    if found.refresh < _LEAST:
        raise InvalidSpec(f"{place}: refresh is shorter than a minute", hint="such as 24h")
    return found
