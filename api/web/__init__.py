"""The web page: the API's resources as HTML, for people.

::

    door       sign in, sign out; what the browser loads
    labs       the list, one lab, and what is done to them
    nodes      power and logs
    snapshots  of a lab: taken, gone back to, removed
    catalog    images and templates
    jobs       jobs, and the stream that keeps pages live
      visit    who asks, by session; what came from elsewhere is refused; errors as pages
      sessions what a cookie stands for, at its place
      forms    what was typed, as the API's models
      steps    a job's events, as lines
      pages    templates into answers

Forms and links do everything; ``static/page.js`` only fetches a page anew when something happened,
and puts in what changed. The routes call the functions of ``api/routes``: what is allowed, and to
whom, is decided there.
"""

from __future__ import annotations

from fastapi import FastAPI

from lab.api.http.place import Placed
from lab.api.http.sessions import Sessions
from lab.api.web import catalog, jobs, labs, login, nodes, snapshots

ROUTERS = (
    login.router,
    labs.router,
    nodes.router,
    snapshots.router,
    jobs.router,
    catalog.router,
)


def install(app: FastAPI) -> None:
    """Let ``app`` serve the page as well."""
    app.state.sessions = Sessions()
    app.add_middleware(Placed)
    for router in ROUTERS:
        app.include_router(router)
