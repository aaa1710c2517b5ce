"""The dashboard for Grafana, and what it reads of ``/metrics``."""

from __future__ import annotations

import json
import re
from collections.abc import Iterator
from typing import Any

from prometheus_client.parser import text_string_to_metric_families

from tests import ROOT

FILE = ROOT / "packaging/grafana/lab.json"
_NAME = re.compile(r"\blab_[a-z0-9_]+")
_SELECTED = re.compile(r"\b(lab_[a-z0-9_]+)\{([^}]*)\}")
_GROUPED = re.compile(r"\bby \(([^)]*)\)")
_SHOWN = re.compile(r"\{\{\s*(\w+)\s*\}\}")
_SUFFIXES = {"histogram": ("_bucket", "_sum", "_count"), "counter": ("_total",), "gauge": ("",)}
OF_PROMETHEUS = {"instance", "job"}
"""Labels that each series has by the scrape itself."""


def dashboard() -> dict[str, Any]:
    """The file, as Grafana reads it."""
    found: dict[str, Any] = json.loads(FILE.read_text())
    return found


def panels() -> list[dict[str, Any]]:
    """The panels that show something."""
    return [one for one in dashboard()["panels"] if one["type"] != "row"]


def expressions() -> Iterator[tuple[str, str]]:
    """Each expression of PromQL with its legend; queries of variables have none."""
    for panel in panels():
        for target in panel["targets"]:
            yield target["expr"], target["legendFormat"]
    for variable in dashboard()["templating"]["list"]:
        if variable["type"] == "query":
            yield variable["query"], ""


def names(expression: str) -> set[str]:
    """The series that an expression reads."""
    return set(_NAME.findall(expression))


def exposed(text: str) -> dict[str, set[str]]:
    """The series that an answer of ``/metrics`` can have, each with the labels that it shows."""
    found: dict[str, set[str]] = {}
    for family in text_string_to_metric_families(text):
        for suffix in _SUFFIXES[family.type]:
            found.setdefault(family.name + suffix, set())
        for sample in family.samples:
            found.setdefault(sample.name, set()).update(sample.labels)
    return found


def labels(expression: str, legend: str) -> set[str]:
    """The labels by which an expression and its legend tell series apart."""
    given = [inside for _, inside in _SELECTED.findall(expression)]
    used = {part.split("=")[0].strip("~! ") for one in given for part in one.split(",") if part}
    used |= {one.strip() for group in _GROUPED.findall(expression) for one in group.split(",")}
    return used | set(_SHOWN.findall(legend))
