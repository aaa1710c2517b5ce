"""Requests about images and templates."""

from __future__ import annotations

from lab.requests.labs import ClusterRequest
from lab.requests.request import Request


class BuildTemplate(ClusterRequest, frozen=True, kw_only=True):
    """``build-template``; ``name``, ``ttl`` and ``snapshots`` are unused."""


class DeleteTemplate(Request, frozen=True):
    """``delete-template``: the subject of the job."""


class BuildImage(Request, frozen=True, kw_only=True):
    """``build-image`` of ``recipe``; ``rebuild``: also if it exists."""

    recipe: str
    rebuild: bool = False


class DeleteImage(Request, frozen=True):
    """``delete-image``: the subject of the job."""
