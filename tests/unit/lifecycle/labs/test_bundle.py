"""A bundle of a lab on the fakes: what is in it, what is not, and what stays after a failure."""

from __future__ import annotations

import io
import json
import tarfile
from dataclasses import replace
from pathlib import Path

import pytest
import zstandard

from lab.bundle import questions
from lab.errors import NotFound, NotReady
from lab.lifecycle.core.context import Context
from lab.lifecycle.labs import bundle
from lab.lifecycle.labs.down import down
from lab.lifecycle.labs.power import stop
from lab.lifecycle.labs.up import up
from tests.support.lifecycle_world import World, named


@pytest.fixture(autouse=True)
def at_once(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(questions, "APART", 1.1)  # names have whole seconds


def unpacked(content: bytes, but: str = " ", top: str = "shop-") -> dict[str, str]:
    """The files of a bundle, below its only directory; ``but``: without those that begin so."""
    plain = zstandard.ZstdDecompressor().stream_reader(io.BytesIO(content)).read()
    with tarfile.open(fileobj=io.BytesIO(plain)) as tar:
        found = {}
        for member in tar.getmembers():
            first, _, path = member.name.partition("/")
            assert first.startswith(top), "all in one directory"
            assert (member.isfile(), member.mode) == (True, 0o600)
            if path.startswith(but):
                continue
            file = tar.extractfile(member)
            assert file is not None
            found[path] = file.read().decode()
    return found


def bundled(ctx: Context, name: str = "shop") -> dict[str, str]:
    file = io.BytesIO()
    view = bundle.bundle(ctx, name, file)
    found = unpacked(file.getvalue())
    assert view.files == len(found)
    return found


def test_all_nodes_are_in_it(world: World) -> None:
    """Protects who was not there when it failed."""
    with world.open() as ctx:
        up(ctx, named("shop"))
        ctx.home.console_log("lab-shop-n1").write_text("login:")
        found = bundled(ctx)
        password = ctx.store.labs.get("shop").password
    manifest = json.loads(found["manifest.json"])
    assert {one["name"]: one["state"] for one in manifest["nodes"]} == {
        "n1": "ready",
        "n2": "ready",
    }
    for node in ("n1", "n2"):
        ours = [path for path in found if path.startswith(f"nodes/{node}/")]
        for name in ("variables", "hostname", "grastate.dat", "journal", "error.log"):
            assert any(path.endswith((f"/{name}", f"-{name}")) for path in ours), name
        for name in ("processlist", "innodbstatus", "diskstats", "mysqladmin"):
            assert len([path for path in ours if path.endswith(f"-{name}")]) == 2, "two rounds"
    assert found["nodes/n1/console.log"] == "login:"
    assert json.loads(found["lab.json"])["name"] == "shop"
    for path, facts in manifest["files"].items():
        assert len(found[path].encode()) == facts["size"]
        assert f'href="{path}"' in found["index.html"] or path in ("manifest.json", "index.html")
    assert not any(password in text for text in found.values())


def test_what_cannot_be_asked_is_said(world: World) -> None:
    """Protects from a bundle that looks complete, and from one that fails for a dead node."""
    with world.open() as ctx:
        up(ctx, named("shop"))
        stop(ctx, "shop", node="n2", force=True)
        missing = json.loads(bundled(ctx)["manifest.json"])["missing"]
        assert {one["what"] for one in missing if one["what"].startswith("n1")} <= {"n1: console"}
        (why,) = [one["why"] for one in missing if one["what"] == "n2: guest"]
        assert "stopped" in why
        with pytest.raises(NotFound):
            bundle.bundle(ctx, "other", io.BytesIO())


def test_of_a_lab_that_failed(world: World) -> None:
    """Protects who reads the error: the lab is gone, and what was known of it is there."""
    with world.open() as ctx:
        down(ctx, up(ctx, named("first")).name)
    with replace(world, own_seconds=500.0).open() as ctx:
        with pytest.raises(NotReady) as caught:
            up(ctx, named("shop"), timeout=400.0)
        (detail,) = [one for one in caught.value.details if one.startswith("bundle: ")]
        path = Path(detail.removeprefix("bundle: "))
        assert path.parent == ctx.home.bundles
        assert path.stat().st_mode & 0o777 == 0o600
        manifest = json.loads(unpacked(path.read_bytes())["manifest.json"])
        assert manifest["why"] == caught.value.what
        assert ctx.store.labs.find("shop") is None


def test_of_a_template_that_did_not_form(world: World) -> None:
    """Protects the first `lab up` of all: it is the one that fails, and nothing of it stays."""
    with replace(world, own_seconds=500.0).open() as ctx:
        with pytest.raises(NotReady) as caught:
            up(ctx, named("shop"), timeout=400.0)
        (detail,) = [one for one in caught.value.details if one.startswith("bundle: ")]
        path = Path(detail.removeprefix("bundle: "))
        found = unpacked(path.read_bytes(), top="template-")
        manifest = json.loads(found["manifest.json"])
        assert manifest["lab"]["name"].startswith("template ")
        assert manifest["why"] == caught.value.what
        assert [one["name"] for one in manifest["nodes"]] == ["n1", "n2"]
        assert any(path.endswith("-processlist") for path in found)
        assert not ctx.hypervisor.guests()
