"""A home that an earlier version made works with this one: labs, datasets, the service's jobs.

``data/home-0021.tar.xz`` was made by the version before one migration made all tables (schema
0021), on the fakes: a lab of three nodes that runs, with a snapshot; one that is stopped; a
dataset; their templates and images; and a service that was killed in the middle of creating labs.
"""

from __future__ import annotations

import hashlib
import json
import os
import shutil
import subprocess
import sys
import tarfile
from collections.abc import Iterator
from contextlib import closing, contextmanager, suppress
from pathlib import Path

import pytest

from lab.fake.storage import FakeStorage
from lab.locks import flock
from lab.paths import Home
from lab.wait import Deadline
from tests.support.serve_process import environment, serving

ARCHIVE = Path(__file__).parent / "data" / "home-0021.tar.xz"
ROOT = Path("/tmp/lab-upgrade")
"""Where it was made: templates are bound to the path of their home."""


@contextmanager
def reserved() -> Iterator[None]:
    """Be the only run that uses ``ROOT``. The kernel gives the lock back if a run is killed."""
    lock = ROOT.with_suffix(".lock")
    # Not O_CREAT alone: the kernel refuses that for another user's file in /tmp.
    with suppress(FileExistsError):
        os.close(os.open(lock, os.O_CREAT | os.O_EXCL, 0o644))
    handle = os.open(lock, os.O_RDONLY | os.O_CLOEXEC)
    try:
        assert flock.take_until(handle, Deadline.after(300)), f"another run keeps {lock}"
        yield
    finally:
        os.close(handle)


@contextmanager
def unpacked() -> Iterator[None]:
    """The home of the earlier version at its place."""
    with reserved():
        if ROOT.exists():  # a run was killed
            shutil.rmtree(ROOT)
        ROOT.mkdir()
        try:
            with closing(tarfile.open(ARCHIVE)) as archive:
                archive.extraction_filter = lambda member, _: member
                archive.extractall(ROOT.parent)  # noqa: S202  ours
            _seal()
            yield
        finally:
            shutil.rmtree(ROOT, ignore_errors=True)


@pytest.fixture
def env(tmp_path: Path) -> Iterator[dict[str, str]]:
    with unpacked():
        yield environment(tmp_path) | {"LAB_HOME": str(ROOT)}


def test_what_a_killed_run_left_is_removed() -> None:
    """Protects this test from being skipped forever after one run was killed."""
    with reserved():
        (ROOT / "left").mkdir(parents=True, exist_ok=True)
    with unpacked():
        assert ROOT.is_dir()
        assert not (ROOT / "left").exists()
    assert not ROOT.exists()


def _seal() -> None:
    """Note the times of the disks as they are now: unpacking changes them, an upgrade does not."""
    home = Home(ROOT)
    storage = FakeStorage(home.storage, home.id)
    for path in home.templates.glob("*/manifest.json"):
        values = json.loads(path.read_text())
        version = values.pop("format")
        del values["digest"]
        for node in values["nodes"]:
            volumes = [
                v
                for v in storage.labels()
                if str(v).endswith(f"{path.parent.name}/{node['name']}/os")
            ]
            assert volumes, storage.labels()
            node["seals"] = [s for v in volumes for s in map(storage.seal, storage.snapshots(v))]
        content = json.dumps(values, sort_keys=True).encode()
        digest = hashlib.blake2b(content, digest_size=16).hexdigest()
        path.write_text(json.dumps({"format": version, "digest": digest, **values}))


def lab(env: dict[str, str], *words: str) -> str:
    argv = [sys.executable, "-m", "lab", *words]
    done = subprocess.run(argv, env=env, capture_output=True, text=True, check=False, timeout=120)
    assert done.returncode == 0, done.stderr
    return done.stdout


def listed(env: dict[str, str], *words: str) -> dict[str, dict[str, object]]:
    found = json.loads(lab(env, *words, "-o", "json"))
    return {str(row.get("name") or row.get("key")): row for row in found}


@pytest.mark.rare
def test_a_home_of_an_earlier_version(env: dict[str, str]) -> None:
    """Protects labs that run, and requests that were accepted, while the program is replaced."""
    labs_and_templates(env)
    jobs(env)
    lab(env, "down", "--all", "--yes")
    assert not listed(env, "ls")


def labs_and_templates(env: dict[str, str]) -> None:
    before = listed(env, "ls")
    assert (before["shop"]["state"], before["rested"]["state"]) == ("ready", "stopped")
    assert "1" in lab(env, "sql", "shop", "-e", "SELECT 1")
    assert json.loads(lab(env, "status", "shop", "-o", "json"))["lab"]["nodes"][2]["role"]
    lab(env, "start", "rested")
    lab(env, "rollback", "shop", "--to", "before")
    lab(env, "rollback", "shop")
    templates = listed(env, "template", "ls")
    # The key of an image has the builder's source in it, which may have changed since.
    (image,) = (key for key in listed(env, "image", "ls") if "-crm." not in key)
    wanted = ("galera", "--nodes", "3", "--image", image, "--name", "new")
    new = json.loads(lab(env, "up", *wanted, "-o", "json"))
    assert new["started"] == "warm"
    assert listed(env, "template", "ls").keys() == templates.keys(), "no template is formed again"
    assert listed(env, "dataset", "ls")["crm"]["tables"]
    lab(env, "up", "galera", "--nodes", "1", "--dataset", "crm", "--name", "filled")
    lab(env, "down", "shop", "rested", "new", "filled")
    assert not {"shop", "rested", "new", "filled"} & listed(env, "ls").keys()


def jobs(env: dict[str, str]) -> None:
    token = lab(env, "token", "create", "upgrade", "--scope", "admin").split()[-1]
    (ROOT / "admin-token").write_text(token)
    with serving(env) as service:
        found = [job["id"] for job in service.ask("GET", "/v1/jobs").json()["items"]]
        assert len(found) == 3
        for job in found:
            ended = service.ask("GET", f"/v1/jobs/{job}?wait=60").json()
            assert ended["state"] == "succeeded", ended
        assert service.ask("GET", "/v1/labs/late1").json()["state"] == "ready"
