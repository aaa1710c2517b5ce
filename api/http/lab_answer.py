"""A lab as a caller of the service sees it: with its login only for those who may use it."""

from __future__ import annotations

from typing import Annotated

from pydantic import Field

from lab.api.http.answers import Answer, answer, extended, part
from lab.lifecycle.core.environment import environment
from lab.marks import defaults
from lab.state.records import LabRecord
from lab.views.labs import Lab, LabView

CA_PATH = "/v1/host/ca"


_RECORDED = tuple(name for name in Lab.__annotations__ if name != "host_name")


def lab_of(view: LabView, record: LabRecord | None, *, login: bool, host_name: str = "") -> Lab:
    """A lab of the service; ``login``: with its account; ``host_name``: of its host in a fleet."""
    more = {name: getattr(record, name) for name in _RECORDED} if record else {}
    hidden = {"ssl_ca": CA_PATH if view.ssl_ca else ""} if login else defaults(Lab, "login")
    return Lab(**{**vars(view), **more, **hidden, "host_name": host_name})


class _Login(Answer):
    """The account and the address of a lab's databases."""


_CONNECTION = part(Lab, _Login, "Connection", "login")


class _Lab(Answer):
    """A lab. ``connection``, ``env``: for the scope `use`, once the lab has an account."""

    connection: _CONNECTION | None  # type: ignore[valid-type]
    env: Annotated[
        dict[str, str] | None,
        Field(
            description="The variables of `lab env`, but LAB_SSL_CA, a file of this machine.",
            examples=[{"LAB_NAME": "shop", "LAB_HOST": "127.0.0.1", "LAB_PORTS": "23306,23307"}],
        ),
    ]


extended(Lab, _Lab)


def lab_answer(lab: Lab) -> Answer:
    """A lab as the API returns it."""
    connection, env = None, None
    if lab.dsn:
        connection = _CONNECTION.model_validate(lab)
        env = {name: its for name, its in environment(lab).items() if name != "LAB_SSL_CA"}
    return answer(lab, connection=connection, env=env)
