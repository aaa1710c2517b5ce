"""A home that an earlier version made works with this one: labs, templates, the service's jobs.

``data/home-0010.tar.xz`` was made by the version before the database's schema 0011, on the fakes: a
lab of three nodes that runs, with a snapshot; one that is stopped; their templates and image; and a
service that was killed in the middle of creating labs.
"""

from __future__ import annotations

import hashlib
import json
import shutil
import subprocess
import sys
import tarfile
from collections.abc import Iterator
from contextlib import closing
from pathlib import Path

import pytest

from lab.fake.storage import FakeStorage
from lab.paths import Home
from tests.support.serve_process import environment, serving

ARCHIVE = Path(__file__).parent / "data" / "home-0010.tar.xz"
ROOT = Path("/tmp/lab-upgrade")
"""Where it was made: templates are bound to the path of their home."""


@pytest.fixture
def env(tmp_path: Path) -> Iterator[dict[str, str]]:
    try:
        ROOT.mkdir()
    except FileExistsError:
        pytest.skip(f"{ROOT} exists: remove it to run this test")
    try:
        with closing(tarfile.open(ARCHIVE)) as archive:
            archive.extraction_filter = lambda member, _: member
            archive.extractall(ROOT.parent)  # noqa: S202  ours
        _seal()
        yield environment(tmp_path) | {"LAB_HOME": str(ROOT)}
    finally:
        shutil.rmtree(ROOT, ignore_errors=True)


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
    (image,) = listed(env, "image", "ls")
    wanted = ("galera", "--nodes", "3", "--image", image, "--name", "new")
    new = json.loads(lab(env, "up", *wanted, "-o", "json"))
    assert new["started"] == "warm"
    assert listed(env, "template", "ls").keys() == templates.keys(), "no template is formed again"
    lab(env, "down", "shop", "rested", "new")
    assert not {"shop", "rested", "new"} & listed(env, "ls").keys()


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
