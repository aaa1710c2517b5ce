"""Views as the lifecycle would hand them out, for the tests of the CLI."""

from __future__ import annotations

import time
from typing import Any

from lab.bench.stats import compare
from lab.bench.sysbench import Latency, Measured, Second
from lab.units import GIB, MIB
from lab.views.benches import BenchStep, BenchView, CompareView, NodeUse, Round
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


def bench_view(name: str = "5f0e2a11", *, tps: float = 100.0, **fields: Any) -> BenchView:
    """A run of one step."""
    measured = Measured(
        10.0, int(tps * 10), int(tps * 200), 0, 0, Latency(1.0, 2.0, 2.0, 3.0, 4.0, 9.0),
        (Second(1, tps, tps * 20, 3.0, 0.0), Second(2, 1.0, 20.0, 900.0, 0.0)),
    )  # fmt: skip
    return BenchView(
        **{
            "id": name, "at": 1_795_258_800.0, "lab": "shop", "workload": "oltp_read_write",
            "label": "", "blueprint": "single", "engine": "mariadb 11.8.6", "profile": "balanced",
            "options": "client", "accelerator": "tcg", "through": "n1", "loop": "closed", "rate": 0,
            "seconds": 10.0, "warm_up": 0.0, "tables": 1, "rows": 10_000, "warehouses": 0,
            "steps": (BenchStep("", 4, measured, (
                NodeUse("n1", "server", {"Questions": 5}, 1.5, 1 << 20, None),
            )),),
            **fields,
        }
    )  # fmt: skip


def compare_view(effect: float = 0.5, **fields: Any) -> CompareView:
    """A comparison with a clear effect."""
    equal = tuple(Round("a", 100.0, 100.5, 3.0, 3.0) for _ in range(8))
    rounds = tuple(Round("b", 100.0, 100.0 * effect, 3.0, 3.0 / effect) for _ in range(8))
    tps = compare([one.b / one.a for one in equal], [one.b / one.a for one in rounds], more=True)
    return CompareView(
        **{
            "id": "77aa0011", "at": 1_795_258_800.0, "workload": "oltp_insert", "label": "pull",
            "a": "single --set a=1", "b": "single --set a=2", "accelerator": "kvm",
            "order": "turns", "why": "2 processors for 2 and 2 of the two labs' nodes",
            "threads": 1, "seconds": 10.0, "rate": 0, "tables": 1, "rows": 100, "warehouses": 0,
            "equal": equal, "rounds": rounds, "tps": tps, "p95": None, "expect": "-50%",
            **fields,
        }
    )  # fmt: skip
