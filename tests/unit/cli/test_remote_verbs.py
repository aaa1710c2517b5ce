"""Each verb of the command line, against a service: it works, or docs/client.md says that not."""

from __future__ import annotations

import os
import re
import subprocess
import sys
from collections.abc import Iterator, Mapping
from contextlib import nullcontext
from pathlib import Path

import pytest

from lab.cli.commands import RootVerbs, Verbs
from tests import ROOT
from tests.support.serve_world import Site, site
from tests.support.ssh_server import ssh_server

PAGE = (ROOT / "docs" / "client.md").read_text()
SIZE = "--nodes 1 --memory 384M"

WORKS = {
    "up": f"up galera {SIZE} --name other",
    "down": "down other",
    "run": f"run galera {SIZE} -- true",
    "ls": "ls",
    "status": "status shop",
    "wait": "wait shop --timeout 30s",
    "start": "start shop",
    "sleep": "sleep shop",
    "wake": "wake shop",
    "promote": "promote shop n1",
    "upgrade": "upgrade shop --to mysql:9.7",
    "stop": "stop shop --node n1",
    "extend": "extend shop 2h",
    "snapshot take": "snapshot take shop --label mine",
    "snapshot ls": "snapshot ls shop",
    "snapshot protect": "snapshot protect shop mine",
    "snapshot unprotect": "snapshot unprotect shop mine",
    "snapshot rm": "snapshot rm shop mine",
    "snapshot prune": "snapshot prune shop",
    "rollback": "rollback shop --timeout 60s",
    "reset": "reset shop --to origin",
    "standby": "standby shop --remove",
    "branch": "branch shop shop-try --ttl 1h",
    "exec": "exec shop --agent -- no-such-program",
    "ssh": "ssh shop -- uptime",
    "cp": "cp shop:n1:/etc/hosts -",
    "dump": "dump shop -D crm",
    "logs": "logs shop --source console",
    "console": "console shop",
    "bundle": "bundle shop -o shop.tar.zst",
    "sql": "sql shop -e SELECT+1",
    "env": "env shop",
    "ca": "ca",
    "engine ls": "engine ls",
    "image build": "image build mariadb",
    "image ls": "image ls",
    "image show": "image show mariadb",
    "image export": "image export mariadb image.lab",
    "image import": "image import image.lab",
    "image rm": "image rm mariadb",
    "template build": f"template build galera {SIZE} --cpus 2",
    "template ls": "template ls",
    "template export": "template export TEMPLATE template.lab",
    "template import": "template import template.lab",
    "template rm": "template rm TEMPLATE",
    "dataset create": "dataset create crm --from lab:shop",
    "dataset refresh": "dataset refresh crm",
    "dataset ls": "dataset ls",
    "dataset show": "dataset show crm",
    "dataset scan": "dataset scan crm",
    "dataset rm": "dataset rm crm --defer",
    "gc": "gc --dry-run",
    "token create": "token create nightly --ttl 1h --max-labs 2",
    "token ls": "token ls",
    "token revoke": "token revoke nightly",
    "version": "version",
}
"""A call of each verb that is to work; `+` stands for a blank."""

_FLEET = ("ls", "show h1", "drain h1", "undrain h1", "adopt shop@h1", "rm h1")
WORKS |= {f"host {line.split()[0]}": f"host {line}" for line in _FLEET}

OTHERWISE = {
    **{f"host {line.split()[0]}": (3, "") for line in _FLEET},  # the service belongs to none
    "promote": (2, "every node of this topology takes writes"),
    "upgrade": (2, "cannot run on the engine"),  # of another family
    "exec": (127, "no-such-program: not found"),  # the fakes have no programs
    "sql": (7, "no SQL at 127.0.0.1:"),  # nor servers
    "sleep": (5, "not of the service's network"),  # nor ports that anything listens at
    "image rm": (4, "used by"),
}
"""The exit code and message of verbs that reach the fakes, which lack what they need."""

REFUSED = {
    "doctor": "doctor",
    "host init": "host init --pool tank/lab",
    "bench run": "bench run oltp_insert shop",
    "bench compare": "bench compare oltp_insert --lab-a shop --lab-b other",
    "bench experiment": "bench experiment dump-import",
    "bench ci": "bench ci 5f0e2a11",
    "bench ls": "bench ls",
    "bench show": "bench show 5f0e2a11",
    "bench export": "bench export",
    "bench rm": "bench rm 5f0e2a11",
    "engine add": "engine add mine --from build.tar.gz",
    "engine rm": "engine rm mine",
    "dataset export": "dataset export crm crm.lab",
    "dataset import": "dataset import crm.lab",
    "snapshot export": "snapshot export shop mine shop.lab",
    "snapshot import": "snapshot import shop.lab",
    "open": "open shop.tar.zst",
}
"""A call of each verb that is refused."""

HERE_ANYWAY = ("serve", "db migrate")
"""Verbs that are about this host, whatever LAB_URL says."""


def verbs(kind: type[Verbs] = RootVerbs, before: str = "") -> Iterator[str]:
    for word, target in kind.table.items():
        if isinstance(target, str):
            yield before + word
        else:
            yield from verbs(target, f"{before}{word} ")


@pytest.fixture(scope="module")
def here(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Site]:
    with site(tmp_path_factory.mktemp("verbs")) as found:
        found.make("shop")
        yield found


@pytest.fixture(scope="module")
def env(here: Site, tmp_path_factory: pytest.TempPathFactory) -> Mapping[str, str]:
    home = tmp_path_factory.mktemp("client")
    return {**os.environ, "LAB_URL": str(here.client.base_url), "LAB_TOKEN": here.admin,
            "LAB_HOME": str(home / "none"), "XDG_CONFIG_HOME": str(home),
            "TMPDIR": str(home)}  # fmt: skip


def called(here: Site, env: Mapping[str, str], line: str) -> tuple[int, str]:
    """Exit code, and all that was printed."""
    found = here.ask("GET", "/v1/templates").json()
    template = max(found, key=lambda one: int(one["cpus"]))["key"]  # that of `template build`
    words = [word.replace("+", " ").replace("TEMPLATE", template) for word in line.split()]
    done = subprocess.run([sys.executable, "-m", "lab", *words], env=env, cwd=env["TMPDIR"],
                          stdin=subprocess.DEVNULL, capture_output=True, text=True, timeout=120,
                          check=False)  # fmt: skip
    return done.returncode, done.stdout + done.stderr


def test_no_verb_is_forgotten() -> None:
    """Protects verbs to come: whoever adds one says what it is against a service."""
    assert sorted([*WORKS, *REFUSED, *HERE_ANYWAY]) == sorted(verbs())
    table = PAGE.split("commands and flags differ:")[1].split("```")[0]
    refused = [line for line in table.splitlines() if "| refused" in line]
    for verb in REFUSED:
        assert any(re.search(rf"`(lab )?{verb}\b", line) for line in refused), verb
    assert all(f"`lab {verb}`" in table for verb in HERE_ANYWAY)
    for verb in WORKS:
        assert not any(re.search(rf"`(lab )?{verb}`", line) for line in refused), verb


@pytest.mark.rare
def test_each_works(here: Site, env: Mapping[str, str]) -> None:
    """Protects the promise that the command line works unchanged, verb by verb."""
    for verb, line in WORKS.items():
        if verb == "rollback":
            assert called(here, env, "start shop")[0] == 0  # n1 was stopped
        reached = verb in ("ssh", "cp", "dump")
        with ssh_server(here, "shop") if reached else nullcontext():
            code, said = called(here, env, line)
        wanted, word = OTHERWISE.get(verb, (0, ""))
        assert (code, word in said) == (wanted, True), (line, said)
    assert not Path(env["LAB_HOME"]).exists()


@pytest.mark.parametrize("line", REFUSED.values())
def test_each_other_says_why_and_what_to_do(here: Site, env: Mapping[str, str], line: str) -> None:
    """Protects from half an answer, and from one about another host than is meant."""
    code, said = called(here, env, line)
    assert code == 2, said
    assert "error: " in said
    assert "\nhint: " in said
    assert not Path(env["LAB_HOME"]).exists()
