"""The fields of forms, as the API's models."""

from __future__ import annotations

import uuid
from collections.abc import Mapping
from dataclasses import fields
from typing import Any, Literal, TypeVar, get_args, get_origin, get_type_hints

from msgspec.structs import replace
from pydantic import ValidationError

from lab import request
from lab.api.http import bodies
from lab.api.http.units import OURS
from lab.blueprints import BLUEPRINTS, blueprint
from lab.errors import InvalidSpec
from lab.options import Options
from lab.request import Request
from lab.requests.datasets import CreateDataset
from lab.requests.images import BuildImage
from lab.requests.labs import BranchLab, ChangeLab, CreateLab, RollBack
from lab.requests.snapshots import TakeSnapshot
from lab.units import parse_duration
from lab.values import dataclass

R = TypeVar("R", bound=Request)

_SNAPSHOT = ("name", "ttl", "disks_only", "protected")
_BRANCH = ("branch_name", "at", "count", "branch_ttl")
_DATASET = ("name", "source", "keep", "shared")
_LAB = (
    "blueprint", "name", "nodes", "engine", "dataset", "profile", "memory", "cpus", "disk", "ttl",
    "idle", "asleep_after", "protected", "host",
)  # fmt: skip


@dataclass(frozen=True)
class OptionField:
    """The field of a form for an option of labs; ``of``: the blueprints that have it, or empty."""

    option: str
    kind: Literal["choice", "check", "number", "duration", "words", "lines", "text"]
    choices: tuple[str, ...] = ()
    default: str = ""
    of: tuple[str, ...] = ()

    @property
    def name(self) -> str:
        """Its name in the form."""
        return f"option_{self.option}"

    @property
    def label(self) -> str:
        """What it is called."""
        return self.option.replace("_", " ").capitalize()

    @property
    def hint(self) -> str:
        """What is written into it, and who has it."""
        how = {
            "duration": "such as 1h",
            "words": "the replicas that are delayed, such as n2, n3; empty: all",
            "lines": "a line each, such as max_connections=50",
            "text": "SQL that is executed once, when the nodes have become one system",
            "number": f"empty: {self.default}",
        }
        whose = f"of {', '.join(self.of)}" if self.of else ""
        return "; ".join(filter(None, (how.get(self.kind, ""), whose)))

    def read(self, typed: str) -> object:
        """What was typed, as the API has it; raises InvalidSpec."""
        if self.kind == "check":
            return typed == "yes"
        if self.kind == "number":
            return int(typed) if typed.isascii() and typed.isdecimal() else typed
        if self.kind == "duration":
            return parse_duration(typed)
        if self.kind == "words":
            return typed.replace(",", " ").split()
        return typed.splitlines() if self.kind == "lines" else typed


_KINDS: Mapping[object, Any] = {bool: "check", int: "number", float: "duration", str: "text"}
_NOT_IN_FORMS = ("my_cnf", "user")
"""Options that are lists of objects: files for a role, and what servers keep of passwords."""


def _options() -> tuple[OptionField, ...]:
    """The fields of ``Options``; their types decide how each is entered."""
    found, types = [], get_type_hints(Options)
    for field in fields(Options):
        if field.name in _NOT_IN_FORMS:
            continue
        having = tuple(name for name in BLUEPRINTS if field.name in blueprint(name).takes)
        of = having if len(having) < len(BLUEPRINTS) else ()
        its, default = types[field.name], str(field.default)
        if get_origin(its) is Literal:
            one = OptionField(field.name, "choice", get_args(its), default, of)
        elif get_origin(its) is tuple:
            one = OptionField(field.name, "words" if field.name == "on" else "lines", of=of)
        else:
            one = OptionField(field.name, _KINDS[its], default=default, of=of)
        found.append(one)
    return tuple(found)


OPTIONS = _options()
"""The fields for what differs from the defaults of a blueprint."""


def changed_options(typed: Mapping[str, str]) -> list[OptionField]:
    """The options of which something else than their defaults was typed."""
    return [one for one in OPTIONS if typed.get(one.name, "").strip() not in ("", one.default)]


class InvalidForm(InvalidSpec):
    """Fields of a form are invalid; ``fields`` names them."""

    def __init__(self, wrong: Mapping[str, str]) -> None:
        super().__init__(
            "the form has invalid fields",
            hint="correct the marked fields, and submit the form again",
            details=[f"{field}: {text}" for field, text in wrong.items()],
        )
        self.fields = frozenset(wrong)


def lab_request(fields: Mapping[str, str]) -> CreateLab:
    """The request of a lab in a form; empty fields have their defaults. Raises InvalidForm."""
    asked = _request(CreateLab, {k: v for k, v in fields.items() if k in _LAB and v.strip()})
    options, wrong = {}, {}
    for one in changed_options(fields):
        try:
            options[one.option] = one.read(fields[one.name].strip())
        except InvalidSpec as error:
            wrong[one.name] = error.what
    if wrong:
        raise InvalidForm(wrong)
    return replace(asked, options=options) if options else asked


def image_request(fields: Mapping[str, str]) -> BuildImage:
    """The request of an image in a form; raises InvalidForm."""
    return _request(BuildImage, {k: v for k, v in fields.items() if k in ("recipe", "rebuild")})


def dataset_request(fields: Mapping[str, str]) -> CreateDataset:
    """The request of a dataset in a form; raises InvalidForm."""
    given = {k: v for k, v in fields.items() if k in _DATASET and v.strip()}
    return _request(CreateDataset, given)


def snapshot_request(fields: Mapping[str, str]) -> TakeSnapshot:
    """The request of a snapshot in a form; raises InvalidForm."""
    given = {k: v for k, v in fields.items() if k in _SNAPSHOT and v.strip()}
    return _request(TakeSnapshot, given)


def branch_request(fields: Mapping[str, str]) -> BranchLab:
    """The request of branches in a form; raises InvalidForm.

    Its fields may have the prefix ``branch_``, as another form of the page has fields of the same
    names.
    """
    given = {k: v for k, v in fields.items() if k in _BRANCH and v.strip()}
    return _request(BranchLab, given, prefix="branch_")


def rollback_request(label: str, fields: Mapping[str, str]) -> RollBack:
    """The request of a rollback to ``label`` in a form; raises InvalidForm."""
    given = {k: v for k, v in fields.items() if k in ("node", "cold") and v.strip()}
    return _request(RollBack, {"to": label, **given})


def new_key() -> str:
    """An Idempotency-Key for a form: if it is sent twice, one job is submitted."""
    return uuid.uuid4().hex


def key_of(fields: Mapping[str, str]) -> str | None:
    """The Idempotency-Key of a form with a ``new_key``."""
    return f"page-{fields['key'][:64]}" if fields.get("key") else None


def lab_changes(fields: Mapping[str, str]) -> ChangeLab:
    """The changes of a lab in a form; raises InvalidForm."""
    asked = _request(ChangeLab, {k: v for k, v in fields.items() if k in ("ttl", "protected")})
    if asked.ttl is asked.protected is None:
        raise InvalidForm({"ttl": "a duration such as 1h is needed"})
    return asked


def _request(kind: type[R], given: Mapping[str, str], *, prefix: str = "") -> R:
    """The fields of a form as a request; ``prefix`` is removed from names that have it."""
    names = {field.removeprefix(prefix): field for field in given}
    types = request.fields(kind)
    checks = {name for name in names if bool in (types[name], *get_args(types[name]))}
    typed = {name: given[field].strip() for name, field in names.items()}
    asked = {name: text == "yes" if name in checks else text for name, text in typed.items()}
    try:
        return bodies.read(kind, asked)
    except ValidationError as error:
        wrong: dict[str, str] = {}
        for one in error.errors():
            name = str(one["loc"][0])
            wrong.setdefault(names.get(name, name), one["msg"].removeprefix(OURS))
        raise InvalidForm(wrong) from None
