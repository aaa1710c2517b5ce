"""Three hosts of a fleet on real guests: homes of their own on this machine, and one PostgreSQL."""

from __future__ import annotations

import signal
from collections.abc import Iterator
from contextlib import ExitStack
from dataclasses import replace
from pathlib import Path

import pytest

from lab.fleet.database import migrate
from lab.wait import Deadline, until
from tests.e2e.e2e_site import PXC, Site
from tests.e2e.test_serve import served
from tests.support.postgres_server import NEEDED, postgres, programs

pytestmark = [pytest.mark.e2e, pytest.mark.rare]

CONFIG = """
[serve]
database = "{url}"
host_name = "{name}"
fleet_address = "127.0.0.1"
fleet_port = 0
"""
THREE = (*PXC, "--nodes", "3")


@pytest.fixture(scope="module")
def url() -> Iterator[str]:
    if programs() is None:
        pytest.skip(NEEDED)
    with postgres() as found:
        migrate(found.url)
        yield found.url


def _host(site: Site, name: str, url: str, place: Path) -> Site:
    """The installation as a host of the fleet."""
    config = place / name / "lab" / "config.toml"
    config.parent.mkdir(parents=True)
    config.write_text(CONFIG.format(url=url, name=name))
    return replace(site, settings={"XDG_CONFIG_HOME": str(place / name)})


def test_a_lab_through_another_host(formed: Site, url: str, tmp_path: Path) -> None:
    """Protects users of a fleet: labs are warm, whole, and reached through any host.

    What they are cloned from is fetched by the host that lacks it.
    """
    name, limb = formed.name("far"), formed.name("limb")
    data, copy = formed.name("data"), formed.name("copy")
    with formed.sibling() as other, formed.sibling() as third:
        h1 = _host(formed, "h1", url, tmp_path)
        h2 = _host(replace(other, token=formed.token), "h2", url, tmp_path)
        h3 = _host(replace(third, token=formed.token), "h3", url, tmp_path)
        with served(h1, how=signal.SIGTERM) as (env, _):
            with ExitStack() as held:
                _, process = held.enter_context(served(h2, how=signal.SIGTERM))
                view = h1.lab(
                    "up", *THREE, "--name", name, "--host", "h2", "-o", "json", env=env
                ).json
                assert (view["state"], view["started"]) == ("ready", "warm")
                assert h1.guests() == []
                assert len(h2.guests()) == 3
                mine = formed.template(3)
                (theirs,) = other.lab("template", "ls", "-o", "json").json
                assert mine["form_seconds"] == theirs["form_seconds"], "it was formed once"
                _used(h1, env, name)
                h1.lab("snapshot", "take", name, "--label", "mine", env=env)
                (branch,) = h1.lab("branch", name, limb, "--at", "mine", "-o", "json", env=env).json
                assert branch["started"] == "warm"
                assert len(h2.guests()) == 6
                with served(h3, how=signal.SIGTERM):
                    source = "generate:sysbench?tables=2&rows=1000"
                    words = ("--from", source, "--blueprint", "single")
                    h1.lab("dataset", "create", data, *words, env=env, timeout=900)
                    asked = ("single", "--dataset", data, "--name", copy, "--host", "h3")
                    h1.lab("up", *asked, env=env, timeout=600)
                    assert len(h3.guests()) == 1
                    count = ("sql", copy, "-o", "json", "-e", "SELECT COUNT(*) FROM sbtest.sbtest1")
                    assert h1.lab(*count, env=env).json["rows"] == [[1000]]
                    h1.lab("down", copy, env=env)
                    h1.lab("dataset", "rm", data, env=env)
                process.send_signal(signal.SIGKILL)
                process.wait(20)
            gone = h1.lab("sql", name, "-e", "SELECT 1", env=env, code=None)
            assert gone.code == 5
            assert "h2" in gone.stderr
            with served(h2, how=signal.SIGTERM):

                def back() -> bool:
                    asked = ("status", name, "-o", "json")
                    return h1.lab(*asked, env=env, code=None).code == 0

                assert until(back, Deadline.after(60), most=2.0)
                _used(h1, env, name)
                hosts = {
                    one["name"]: one for one in h1.lab("host", "ls", "-o", "json", env=env).json
                }
                assert (hosts["h1"]["labs"], hosts["h2"]["labs"]) == (0, 2)
                for lab in (limb, name):
                    h1.lab("down", lab, env=env)
        assert other.settled(seconds=30.0) == []
        assert third.settled(seconds=30.0) == []
    assert formed.settled() == []


def _used(site: Site, env: dict[str, str], name: str) -> None:
    """Ask each node, over SQL and SSH, through the service of another host."""
    for node in ("n1", "n2", "n3"):
        asked = ("sql", name, "--node", node, "-o", "json", "-e")
        (row,) = site.lab(*asked, "SHOW STATUS LIKE 'wsrep_cluster_size'", env=env).json["rows"]
        assert row[1] == "3"
        site.lab("exec", name, "--node", node, "--", "true", env=env)
