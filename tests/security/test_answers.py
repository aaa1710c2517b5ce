"""What the API answers with: fields that are declared for its callers, and no others."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import MISSING, fields, is_dataclass
from pathlib import Path
from typing import Any, get_args

import pytest
from fastapi.routing import APIRoute
from pydantic import BaseModel

from lab.api.app import ROUTERS
from lab.api.http.answers import Answer, model
from lab.api.wire.transfer import Work
from lab.marks import marks
from lab.names import EVERYWHERE
from tests.service.test_auth import operations
from tests.support.serve_world import Site, site


def types_in(kind: Any) -> Iterator[type]:
    """The classes in a type: itself, those in its brackets, those of its fields."""
    for part in get_args(kind):
        yield from types_in(part)
    if isinstance(kind, type) and not get_args(kind):
        yield kind
        if issubclass(kind, BaseModel):
            for one in kind.model_fields.values():
                yield from types_in(one.annotation)


def answers() -> set[type]:
    """The types of all answers, with the types of their fields."""
    found: set[type] = set()
    for route in (route for router in ROUTERS for route in router.routes):
        if isinstance(route, APIRoute):
            for field in (route.response_field, *route.response_fields.values()):
                found |= set(types_in(field.field_info.annotation)) if field else set()
    return found


ANSWERS = sorted(answers(), key=lambda kind: kind.__name__)
PARTS = {"Lab": ["connection", "env"]}
"""Fields of answers that their views do not have."""
TRANSFERRED = get_args(get_args(Work)[1])
"""Views that WebSockets answer with."""
OF_VIEWS = [
    *(kind for kind in ANSWERS if issubclass(kind, Answer)),
    *(model(view) for view in TRANSFERRED),
]


def test_the_types_of_answers_are_found() -> None:
    """Protects the tests below from looking at nothing."""
    names = {kind.__name__ for kind in ANSWERS}
    assert names >= {"Lab", "Node", "Connection", "Image", "Engine", "Preview", "Job", "Token"}
    assert {kind.__name__ for kind in TRANSFERRED} == {"ExportView", "ImportView", "UploadView"}


def test_no_view_is_an_answer_by_itself() -> None:
    """Protects what is of the host: a view has all of it, its model only what is marked."""
    assert [kind for kind in ANSWERS if is_dataclass(kind)] == []


@pytest.mark.parametrize("kind", OF_VIEWS, ids=lambda kind: kind.__name__)
def test_a_field_is_answered_only_if_its_declaration_says_so(kind: type[Answer]) -> None:
    """Protects from a new field that nobody has thought about: it needs a mark."""
    known = marks(kind.view)
    assert [one.name for one in fields(kind.view) if one.name not in known] == []
    reaches = ["login"] if kind.__name__ == "Connection" else ["public", "admins"]
    shown = [mark.name or name for name, mark in known.items() if mark.reach in reaches]
    assert shown + PARTS.get(kind.__name__, []) == list(kind.model_fields)


@pytest.mark.parametrize("kind", OF_VIEWS, ids=lambda kind: kind.__name__)
def test_what_is_not_for_everybody_can_be_left_out(kind: type[Answer]) -> None:
    """Others get the default, so there must be one."""
    for one in fields(kind.view):
        if marks(kind.view)[one.name].reach in ("admins", "login"):
            assert one.default is not MISSING, one.name


@pytest.mark.parametrize("kind", OF_VIEWS, ids=lambda kind: kind.__name__)
def test_a_view_in_another_has_nothing_that_some_callers_may_not_see(kind: type[Answer]) -> None:
    """Protects parts of answers: only the fields of the answer itself are left out by caller."""
    inner = {part for one in kind.model_fields.values() for part in types_in(one.annotation)}
    for view in (one.view for one in inner if issubclass(one, Answer) and hasattr(one, "view")):
        hidden = {name for name, mark in marks(view).items() if mark.reach == "admins"}
        assert not hidden, view.__name__


@pytest.fixture(scope="module")
def here(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Site]:
    root: Path = tmp_path_factory.mktemp("serve")
    with site(root, publish=EVERYWHERE) as found:  # so labs have a CA certificate
        token = found.token()
        found.make("shop", token=token)
        body = {"name": "shop", "source": "lab:shop"}
        made = found.ask("POST", "/v1/datasets?wait=60", body, token=token)
        assert made.status_code == 201, made.text
        yield found


@pytest.mark.parametrize("scope", ["read", "use", "admin"])
def test_no_answer_names_files_of_the_host_or_secrets(here: Site, scope: Any) -> None:
    """Protects the host, and labs from readers: whatever is asked, by whoever."""
    core = here.service.core
    token = here.token(f"a-{scope}", scope=scope)
    lab = core.store.labs.get("shop")
    image = core.store.images.all()[0].key
    names = {"name": "shop", "node": "n1", "job": lab.job, "key": image, "label": "origin"}
    secrets = [str(core.settings.home.root), *(one.hash for one in core.store.tokens.all())]
    asked = 0
    for method, path, _ in operations(here):
        at = path.replace("{token}", core.store.tokens.all()[0].id)
        for name, value in names.items():
            at = at.replace(f"{{{name}}}", value)
        answer = here.ask(method, at, token=token) if method == "GET" else None
        if answer is not None and answer.status_code == 200:
            asked += 1
            hidden = [*secrets, *([] if scope != "read" else [lab.password])]
            assert [one for one in hidden if one in answer.text] == [], path
    assert asked > 10
