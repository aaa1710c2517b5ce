"""Bodies and queries of HTTP requests: what a request declares, and nothing that its host sets."""

from __future__ import annotations

import asyncio
import inspect
from typing import Any, cast, get_args

import msgspec
import pytest
from pydantic import ValidationError

from lab.api.http import bodies, queries
from lab.api.http.bodies import NAMES
from lab.api.jobs.work import WORK
from lab.errors import InvalidSpec
from lab.names import FORMS
from lab.request import Request, body_fields, body_of, check, fields, marked, subject
from lab.requests.datasets import CreateDataset, DeleteDataset, RefreshDataset
from lab.requests.labs import BranchLab, CreateLab, DeleteLab
from lab.requests.snapshots import DeleteSnapshot
from lab.requests.tokens import CreateToken

KINDS: list[type[Request]] = sorted(
    {work.request for work in WORK.values()} | set(NAMES), key=lambda kind: kind.__name__
)
EXAMPLES: dict[str, Any] = {"blueprint": "pxc", "name": "shop", "source": "lab:a", "node": "n1",
                            "to": "mine", "recipe": "mariadb", "project": "shop",
                            "argv": ["uptime"], "protected": True}  # fmt: skip


@pytest.mark.parametrize("kind", sorted(KINDS, key=str), ids=lambda kind: kind.__name__)
def test_what_the_service_sets_is_marked(kind: type[Request]) -> None:
    """Protects other projects: a request says neither whose it is nor where it lies."""
    service = {"created_at", "owner", "upload", "lab_created_at", "pool", "files", "expires_at"}
    assert not set(body_fields(kind)) & (service | {"lab", "scheduled"})
    assert set(marked(kind, "host only")) | set(subject(kind)) | set(body_fields(kind)) == set(
        kind.__struct_fields__
    )


@pytest.mark.parametrize("kind", list(NAMES), ids=lambda kind: kind.__name__)
def test_fields_of_the_host_are_refused(kind: type[Request]) -> None:
    """Protects paths of the host and names of owners: over HTTP they are unknown fields."""
    given = {name: EXAMPLES[name] for name in EXAMPLES if name in body_fields(kind)}
    assert type(bodies.read(kind, given)) is kind
    for field in {**marked(kind, "host only"), **subject(kind)}:
        with pytest.raises(ValidationError, match="Extra inputs are not permitted"):
            bodies.read(kind, {**given, field: "x"})


@pytest.mark.parametrize(
    "kind",
    [DeleteLab, DeleteSnapshot, RefreshDataset, DeleteDataset],
    ids=lambda kind: kind.__name__,
)
def test_a_query_sets_what_a_client_may_set(kind: type[Request]) -> None:
    """Protects versions and records of the host: in a query, too, their fields are unknown."""
    read = queries.reader(kind)
    assert list(inspect.signature(read).parameters) == list(body_fields(kind))
    assert asyncio.run(read()) == kind()


def test_a_null_and_a_text_with_a_unit_are_read() -> None:
    """Protects the forms that the documents promise."""
    found = bodies.read(
        CreateLab, {"blueprint": "pxc", "name": None, "nodes": None, "ttl": "1h", "memory": "1G"}
    )
    assert found == CreateLab(blueprint="pxc", ttl=3600.0, memory=1 << 30)
    assert (found.nodes, found.node_count) == (0, 3)
    listed = bodies.read(CreateDataset, {"name": "crm", "source": "lab:a", "tables": ["a.b"]})
    assert listed.tables == ("a.b",)


@pytest.mark.parametrize("kind", list(NAMES), ids=lambda kind: kind.__name__)
def test_what_a_client_sends_is_read(kind: type[Request]) -> None:
    """Protects both ends of the service: the body that is made of a request makes that request."""
    given = {name: EXAMPLES[name] for name in EXAMPLES if name in body_fields(kind)}
    request = bodies.read(kind, given)
    assert bodies.read(kind, body_of(request)) == request


def test_a_zero_is_sent_where_it_says_something() -> None:
    """Protects limits of nothing at all: without them a project has no limit."""
    asked = CreateToken(name="ci", project="shop", max_labs=0)
    assert body_of(asked) == {"name": "ci", "project": "shop", "scope": "use", "max_labs": 0}
    assert body_of(CreateLab(blueprint="single")).keys() == {"blueprint", "memory", "cpus"}


def test_limits_hold_on_the_command_line() -> None:
    """Protects a host from what its service would refuse."""
    assert check(BranchLab(lab="shop", count=2)).count == 2
    with pytest.raises(InvalidSpec, match=r"^count is 51, 50 at most$"):
        check(BranchLab(lab="shop", count=51))
    with pytest.raises(InvalidSpec, match=r"^count is 0, 1 at least$"):
        check(BranchLab(lab="shop", count=0))
    with pytest.raises(InvalidSpec, match=r"^ttl is 5s, 10s at least$"):
        check(BranchLab(lab="shop", ttl=5.0))
    with pytest.raises(InvalidSpec, match=r"^disk is 1073741825, no multiple of 1M$"):
        check(CreateLab(blueprint="single", disk=(1 << 30) + 1))
    with pytest.raises(InvalidSpec, match=r"^disk is 2T, 1T at most$"):
        check(CreateLab(blueprint="single", disk=2 << 40))
    with pytest.raises(InvalidSpec, match=r"^ttl is 0s, 0s is not enough$"):
        check(CreateToken(name="ci", project="shop", ttl=0.0))
    owner: Any = {"name": "ci", "project": "shop", "scope": "own"}
    with pytest.raises(InvalidSpec, match=r"^scope is 'own'$") as caught:
        check(CreateToken(**owner))
    assert caught.value.hint == "one of: read, use, admin"
    with pytest.raises(InvalidSpec, match="at: 'no label' is invalid") as caught:
        check(BranchLab(lab="shop", at="no label"))
    assert caught.value.hint == "a label, as in `lab snapshot ls`, or the name in it"
    with pytest.raises(InvalidSpec, match=r"^mask has 700000 characters, 262144 at most$"):
        check(CreateDataset(name="shop", source="x", mask="secret " * 100000))
    with pytest.raises(InvalidSpec, match=r"^tables, number 2, has 5000 characters, 4096 at most$"):
        check(CreateDataset(name="shop", source="x", tables=("a.b", "s" * 5000)))
    with pytest.raises(InvalidSpec, match=r"^tables has 300 entries, 200 at most$"):
        check(CreateDataset(name="shop", source="x", tables=("a.b",) * 300))


@pytest.mark.parametrize(
    ("asked", "what"),
    [
        (CreateLab(blueprint="pxc", ttl=cast("float", "1h")), "ttl is invalid: "),
        (CreateLab(blueprint=cast("str", 5)), "blueprint is invalid: "),
        (BranchLab(lab="shop", count=cast("int", None)), "count is invalid: "),
        (CreateDataset(name="x", source="y", tables=(cast("str", 5),)), "tables is invalid: "),
    ],
)
def test_a_value_of_another_type_is_refused(asked: Request, what: str) -> None:
    """Protects callers from Python from a TypeError of ours, which names no field."""
    with pytest.raises(InvalidSpec, match=what):
        check(asked)


def test_every_pattern_has_a_meaning() -> None:
    """Protects users from regular expressions in messages."""
    used = {meta.pattern for kind in KINDS for its in fields(kind).values() for meta in _metas(its)}
    assert used - {None} == set(FORMS)


def _metas(declared: Any) -> list[msgspec.Meta]:
    parts = get_args(declared)
    own = [one for one in parts if isinstance(one, msgspec.Meta)]
    return own + [one for part in parts for one in _metas(part)]
