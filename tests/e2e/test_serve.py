"""The service on real guests: labs made over HTTP, and what a kill of it leaves of them."""

from __future__ import annotations

import re
import signal
import subprocess
import sys
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import replace
from pathlib import Path

import pytest

from lab.wait import Deadline, until
from tests.e2e.e2e_site import PXC, Site

pytestmark = pytest.mark.e2e

THREE = (*PXC, "--nodes", "3")
POOL = """
[serve]
sweep = 0.5

[[serve.pool]]
blueprint = "pxc"
engine = "mariadb"
nodes = 3
"""
ACTIVITY = """
import sys
from lab.lifecycle.service.activity import activity
from lab.lifecycle.core.context import open_context
from lab.config.settings import load
with open_context(load()) as context:
    print(activity(context, sys.argv[1], patience=5.0))
"""


@contextmanager
def service(site: Site, *, how: signal.Signals) -> Iterator[dict[str, str]]:
    """A running service, ended by the signal ``how``; the environment that leads to it."""
    with served(site, how=how) as (env, _):
        yield env


@contextmanager
def served(
    site: Site, *, how: signal.Signals
) -> Iterator[tuple[dict[str, str], subprocess.Popen[str]]]:
    """``service``, with its process."""
    process = site.start("serve", "--port", "0")
    assert process.stderr is not None
    url = ""
    while not url:
        line = process.stderr.readline()
        assert line, "the service ended"
        found = re.search(r"serving at (\S+)", line)
        url = found[1] if found else ""
    try:
        yield {"LAB_URL": url, "LAB_TOKEN_FILE": str(site.home.admin_token)}, process
    finally:
        process.send_signal(how)
        process.communicate(timeout=60)


def test_labs_are_made_over_http(site: Site) -> None:
    """Protects CI pipelines: the same lab, and it outlives a service that is killed."""
    name = site.name("http")
    with service(site, how=signal.SIGKILL) as env:
        view = site.lab("up", *THREE, "--name", name, "-o", "json", env=env).json
        assert (view["started"], view["state"]) == ("warm", "ready")
        assert view["expires_at"] is not None
    for node in view["nodes"]:
        rows = site.sql(name, node["name"], "SHOW STATUS LIKE 'wsrep_cluster_size'")
        assert rows == [["wsrep_cluster_size", "3"]]
    with service(site, how=signal.SIGTERM) as env:
        (found,) = site.lab("ls", "-o", "json", env=env).json
        assert (found["name"], found["state"]) == (name, "ready")
        site.lab("down", name, env=env)
        assert site.lab("ls", "-o", "json", env=env).json == []


def activity(site: Site, lab: str) -> str:
    """What a lab's servers have been asked so far, as the service looks at it."""
    argv = [sys.executable, "-c", ACTIVITY, lab]
    return subprocess.run(argv, env=site.env, capture_output=True, text=True, check=True).stdout


def states(site: Site) -> list[str]:
    return [str(lab["state"]) for lab in site.lab("ls", "-o", "json").json]


@pytest.mark.rare
def test_a_lab_is_claimed_from_a_pool(site: Site, tmp_path: Path) -> None:
    """Protects who is in a hurry: a whole lab, at once; and labs from being taken for idle."""
    (tmp_path / "lab").mkdir()
    (tmp_path / "lab" / "config.toml").write_text(POOL)
    pooling = replace(site, settings={"XDG_CONFIG_HOME": str(tmp_path)})
    with service(pooling, how=signal.SIGTERM) as env:
        deadline = Deadline.after(120)
        assert until(lambda: states(site) == ["pooled"], deadline, first=0.5)
        view = site.lab("up", *THREE, "-o", "json", env=env).json
        assert view["seconds"] < 1.0, "it was made, not claimed"
        name = view["name"]
        for node in view["nodes"]:
            rows = site.sql(name, node["name"], "SHOW STATUS LIKE 'wsrep_cluster_size'")
            assert rows == [["wsrep_cluster_size", "3"]]
        before = activity(site, name)
        site.lab("status", name)
        assert activity(site, name) == before, "a look is no use"
        assert "busy=False" in before
        site.sql(name, "n2", "DO 1")
        assert activity(site, name) != before
        site.lab("down", name, env=env)
        assert until(lambda: states(site) == ["pooled"], deadline, first=0.5)
    assert states(site) == ["pooled"], "the next service keeps it"
    site.lab("down", "--all", "--yes")
