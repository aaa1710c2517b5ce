"""The service on real guests: labs made over HTTP, and what a kill of it leaves of them."""

from __future__ import annotations

import re
import signal
from collections.abc import Iterator
from contextlib import contextmanager

import pytest
from e2e_site import PXC, Site

pytestmark = pytest.mark.e2e

THREE = (*PXC, "--nodes", "3")


@contextmanager
def service(site: Site, *, how: signal.Signals) -> Iterator[dict[str, str]]:
    """A running service, ended by the signal ``how``; the environment that leads to it."""
    process = site.start("serve", "--port", "0")
    assert process.stderr is not None
    url = ""
    while not url:
        line = process.stderr.readline()
        assert line, "the service ended"
        found = re.search(r"serving at (\S+)", line)
        url = found[1] if found else ""
    try:
        yield {"LAB_URL": url, "LAB_TOKEN_FILE": str(site.home.admin_token)}
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
