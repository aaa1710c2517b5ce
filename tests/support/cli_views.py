"""Views as the lifecycle would hand them out, for the tests of the CLI."""

from __future__ import annotations

import time
from typing import Any

from lab.units import GIB, MIB
from lab.views.catalog import EngineView, ImageView, TemplateView
from lab.views.labs import LabView, NodeView, Preview


def lab_view(name: str = "pxc", *, nodes: int = 3, **fields: Any) -> LabView:
    """A ready lab."""
    return LabView(
        **{
            "name": name,
            "blueprint": "pxc",
            "engine": "mariadb",
            "engine_version": "11.8.6",
            "state": "ready",
            "nodes": tuple(
                NodeView(
                    name=f"n{number}",
                    role="member",
                    state="ready",
                    host="127.0.0.1",
                    sql_port=23305 + number,
                    ssh_port=24305 + number,
                    guest=f"lab-{name}-n{number}",
                )
                for number in range(1, nodes + 1)
            ),
            "requested_nodes": nodes,
            "user": "lab",
            "password": "s3cret",
            "dsn": "mysql://lab:s3cret@127.0.0.1:23306/",
            "started": "warm",
            "seconds": 1.94,
            **fields,
        }
    )


def engine_view(name: str = "mariadb:11.8", **fields: Any) -> EngineView:
    """A series of an engine, with an image."""
    return EngineView(
        **{
            "name": name,
            "server": "MariaDB 11.8",
            "default": True,
            "recipe": "mariadb",
            "blueprints": ("galera", "single"),
            "packages": ("Debian trixie",),
            "build": "yes",
            "images": ("mariadb-0123456789abcdef",),
            "tested": "2026-11-27",
            **fields,
        }
    )


def image_view(**fields: Any) -> ImageView:
    """A built image."""
    return ImageView(
        **{
            "key": "0123456789abcdef",
            "recipe": "mariadb",
            "engine": "mariadb",
            "engine_version": "11.8.6",
            "state": "ready",
            "size": 700 * MIB,
            "created_at": time.time() - 7200,
            "build_seconds": 61.2,
            "used_by": ("template:feed", "lab:pxc"),
            "facts": {"kernel": "6.12"},
            **fields,
        }
    )


def template_view() -> TemplateView:
    """A warm template."""
    return TemplateView(
        key="feedfacefeedface",
        blueprint="pxc",
        image="0123456789abcdef",
        nodes=3,
        memory=768 * MIB,
        cpus=1,
        disk=0,
        state="ready",
        warm=True,
        size=GIB,
        created_at=time.time() - 7200,
        used_at=time.time() - 60,
        form_seconds=48.0,
        why="RAM was refused",
    )


def preview_view(**fields: Any) -> Preview:
    """A lab that would be cloned from what is there."""
    return Preview(
        **{
            "name": "pxc",
            "blueprint": "pxc",
            "engine": "mariadb",
            "nodes": 3,
            "memory": 768 * MIB,
            "cpus": 1,
            "disk": 0,
            "profile": "balanced",
            "image": "mariadb-0123456789abcdef",
            "image_exists": True,
            "template": "feedfacefeedface",
            "start": "warm",
            **fields,
        }
    )
