"""The web page: the API's resources as HTML, for people.

::

    login      sign in, sign out; static files
    labs       the list, one lab, and their forms
    nodes      power and logs
    snapshots  of a lab: take, roll back, remove
    catalog    images and templates
    datasets   data for labs
    hosts      the hosts of a fleet
    jobs       jobs, and the stream that updates pages
      request  the caller by session, the origin of forms, errors as pages
      forms    fields of forms, as the API's models
      events   a job's events, as lines
      pages    answers from templates

Forms and links do everything; ``static/page.js`` only reloads a page when something happened, and
inserts what changed. The routes call the functions of ``api/routes``: these decide what is allowed,
and to whom.
"""

from __future__ import annotations

from fastapi import FastAPI

from lab.api.http.session_path import SessionPaths
from lab.api.http.sessions import Sessions
from lab.api.web import catalog, datasets, hosts, jobs, labs, login, nodes, snapshots

ROUTERS = (
    login.router,
    labs.router,
    nodes.router,
    snapshots.router,
    jobs.router,
    catalog.router,
    datasets.router,
    hosts.router,
)


def install(app: FastAPI) -> None:
    """Let ``app`` serve the page as well."""
    app.state.sessions = Sessions()
    app.add_middleware(SessionPaths)
    for router in ROUTERS:
        app.include_router(router)
