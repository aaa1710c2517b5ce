"""The parts of the service that a request's handler gets."""

from __future__ import annotations

from typing import Annotated

from fastapi import Depends, FastAPI
from starlette.requests import HTTPConnection

from lab.api.core.core import Core
from lab.api.jobs.jobs import Jobs


def install(app: FastAPI, core: Core, jobs: Jobs) -> None:
    """Let the handlers of ``app`` get ``core`` and ``jobs``."""
    app.state.core = core
    app.state.jobs = jobs


def core_of(request: HTTPConnection) -> Core:
    """The core of the service that a request was sent to."""
    core = request.app.state.core
    assert isinstance(core, Core)  # noqa: S101  # for the type checker
    return core


async def _core(request: HTTPConnection) -> Core:
    return core_of(request)


async def _jobs(request: HTTPConnection) -> Jobs:
    jobs = request.app.state.jobs
    assert isinstance(jobs, Jobs)  # noqa: S101  # for the type checker
    return jobs


CoreOf = Annotated[Core, Depends(_core)]
JobsOf = Annotated[Jobs, Depends(_jobs)]
