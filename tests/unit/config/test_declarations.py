"""What users write down is declared once: the documents, flags and the API agree with it."""

from __future__ import annotations

import ast
import inspect
import re
import textwrap
from dataclasses import fields
from typing import Any, get_type_hints

import pytest

from lab import request
from lab.cli.commands import root_command
from lab.config import labfile, poolfile
from lab.config.datasetfile import ScheduledDataset
from lab.config.labfile import LabValues
from lab.config.poolfile import WarmPool
from lab.config.profile import EngineProfile, Profile, VolumeProfile
from lab.config.servefile import Serve
from lab.config.settings import Settings
from lab.imagebuild.recipe import Guest, Recipe, Repository
from lab.keys import keys
from lab.options import Options
from lab.request import body_fields
from lab.requests.images import BuildTemplate
from lab.requests.labs import CreateLab
from lab.sizes import NodeSize
from lab.spec import LabSpec
from tests import ROOT

DECLARED = [
    Settings, Serve, WarmPool, ScheduledDataset, Profile, VolumeProfile, EngineProfile, NodeSize,
    Options, Recipe, Repository, Guest,
]  # fmt: skip

OF_OPTIONS = [field.name for field in fields(Options)]
OF_LABS = [*(name for name in LabSpec.__struct_fields__ if name != "options"), *OF_OPTIONS]
"""Everything that can be said about a lab."""


def texts(kind: type) -> dict[str, str]:
    """The texts below the fields of a class."""
    body = ast.parse(textwrap.dedent(inspect.getsource(kind))).body[0]
    assert isinstance(body, ast.ClassDef)
    found = {}
    for one, below in zip(body.body, body.body[1:], strict=False):
        if isinstance(one, ast.AnnAssign) and isinstance(one.target, ast.Name):
            is_text = isinstance(below, ast.Expr) and isinstance(below.value, ast.Constant)
            found[one.target.id] = str(below.value.value) if is_text else ""  # type: ignore[attr-defined]
    return found


@pytest.mark.parametrize("kind", DECLARED, ids=lambda kind: kind.__name__)
def test_every_field_is_described(kind: type) -> None:
    """Protects the declarations from fields that only their author understands."""
    described = texts(kind)
    assert [f.name for f in fields(kind) if not described.get(f.name)] == []


def test_every_field_of_a_lab_is_described() -> None:
    """The same; of some fields the API says it."""
    described = {name: text for name, text in texts(LabSpec).items() if text}
    for name, declared in request.fields(LabSpec).items():
        said = [getattr(one, "description", None) for one in declared.__metadata__]
        assert name in described or any(said), name


@pytest.mark.parametrize(("kind", "page"), [(Settings, "config.md"), (Serve, "api.md")])
def test_the_documents_say_what_the_declaration_says(kind: type, page: str) -> None:
    """Protects the tables of settings from falling behind; links are theirs."""
    table = (ROOT / "docs" / page).read_text().split("\n## Settings\n", 1)[1].split("\n## ")[0]
    rows = dict(re.findall(r"^\| `(\w+)` \|.*?\| (.*) \|$", table, re.M))
    shown = {key: re.sub(r"\[(.*?)\]\(.*?\)", r"\1", text) for key, text in rows.items()}
    said = {key: " ".join(text.replace("``", "`").split()) for key, text in texts(kind).items()}
    assert {key: text.casefold() for key, text in shown.items()} == {
        key: said[key].rstrip(".").casefold() for key in keys(kind)
    }


# What cannot be said about a lab in each place, and why.
NOT_IN: dict[str, dict[str, str]] = {
    "lab.toml": {},
    "lab up": {},
    "[[serve.pool]]": {
        "name": "its lab.toml's meaning is the pool's name there",
        "ttl": "the claim brings it",
        "snapshots": "the claim brings it",
        "image": "a pool has the current image",
        "user": "who claims a lab brings passwords of its own",
    },
    "POST /v1/labs": {},
    "POST /v1/templates": {
        "name": "a template has its key",
        "ttl": "templates have none",
        "snapshots": "of labs",
    },
}  # fmt: skip


def flags_of(verb: str) -> set[str]:
    command: Any = root_command().get_command(None, verb)
    return {parameter.name for parameter in command.params}


@pytest.mark.parametrize(
    ("place", "known"),
    [
        ("lab.toml", set(labfile.KEYS)),
        ("lab up", flags_of("up")),
        ("[[serve.pool]]", set(poolfile.all_keys()) - {"name"}),
        ("POST /v1/labs", set(body_fields(CreateLab))),
        ("POST /v1/templates", set(body_fields(BuildTemplate))),
    ],
)
def test_every_field_of_a_lab_can_be_set(place: str, known: set[str]) -> None:
    """Protects new fields of ``LabSpec`` from being forgotten in one of the places."""
    said = known | set(OF_OPTIONS) if "options" in known else known
    assert set(OF_LABS) - said == set(NOT_IN[place])


def test_values_of_a_lab_have_one_type() -> None:
    """Protects callers of the client: what the type checker sees is what is parsed."""
    declared = {**get_type_hints(LabSpec), **get_type_hints(Options)}
    for part in (NodeSize, Options):
        assert set(keys(part)) <= labfile.KEYS.keys()
    assert get_type_hints(LabValues) == {key: declared[key] for key in labfile.KEYS}


def test_the_api_has_the_defaults_of_a_lab() -> None:
    """Protects who leaves a field out: the same lab, by a flag or by a request."""
    said = labfile.merge({}, {"blueprint": "pxc"})
    assert LabSpec.of(CreateLab(blueprint="pxc")) == LabSpec.of(said)
    assert said.size == NodeSize()
