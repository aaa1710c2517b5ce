"""Labs under KVM, in a machine that has it; without KVM here its processor's SVM is emulated.

``make test-kvm`` runs them: tests/e2e/test_kvm.py hands over the template of an emulated host.
"""

from __future__ import annotations

import json
import os
import time
import xml.etree.ElementTree as ET
from collections.abc import Iterator, Mapping, Sequence
from contextlib import closing
from dataclasses import replace
from pathlib import Path
from typing import Any

import pymysql
import pytest

from lab.config import settings
from lab.hypervisor.libvirt.connection import default_uri
from lab.hypervisor.libvirt.probe import no_kvm
from lab.imagebuild import manifest
from lab.lifecycle.core.context import open_context
from lab.lifecycle.images import image as images
from lab.run import run
from tests import ROOT
from tests.e2e.e2e_site import Site
from tests.e2e.test_image_boot import boots_by_firmware
from tests.e2e.user_site import User, account, command
from tests.platform.handed import GIVEN, bring, on_zvols, unpack

SLOW = 1800.0
"""Seconds that a command may take: what KVM does is emulated where this host has none."""
CLOCK = 1.0
"""Seconds that a guest's clock may differ from its host's."""

WHY, _ = no_kvm(listed=True, session=os.geteuid() != 0)
pytestmark = [
    pytest.mark.skipif(not GIVEN, reason="no template was handed over: `make test-kvm` does it"),
    pytest.mark.skipif(bool(WHY), reason=f"no KVM: {WHY}"),
]


@pytest.fixture(scope="module")
def site(big_pool: str, tmp_path_factory: pytest.TempPathFactory) -> Iterator[Site]:
    """An installation on ZVols, with the template of the emulated host."""
    with on_zvols(big_pool, tmp_path_factory.mktemp("config"), SLOW) as site:
        bring(site)
        yield site


def test_the_doctor_names_kvm(site: Site) -> None:
    """Protects whoever asks why labs are slow."""
    findings = {one["topic"]: one for one in site.lab("doctor", "-o", "json", code=None).json}
    assert findings["accelerator"]["value"].startswith("KVM")
    assert "nested=" in findings["kernel"]["value"]


def test_a_template_of_an_emulated_host_boots_and_says_why(site: Site) -> None:
    """Protects templates that travel: their disks serve anywhere, their RAM only where it fits."""
    (template,) = site.lab("template", "ls", "-o", "json").json
    name = site.name("brought")
    size = ("--image", _image(site), "--memory", str(template["memory"]))
    view = site.lab(
        "up", template["blueprint"], *size, "--name", name, "-o", "json", timeout=SLOW
    ).json
    assert view["template"] == template["key"]
    assert view["started"] == "cold"
    assert "accelerator KVM here, TCG there" in view["why_cold"]
    assert site.sql(name, "n1", "SELECT 1") == [[1]]
    site.lab("down", name, timeout=SLOW)
    site.lab("template", "rm", template["key"], timeout=SLOW)
    assert site.settled(seconds=60.0) == []


@pytest.mark.parametrize(("blueprint", "nodes"), [("single", 1), ("galera", 3)])
def test_a_lab_lives(site: Site, blueprint: str, nodes: int) -> None:
    """Protects the main path: formed cold, captured, a clone of it warm, back in time, branched."""
    name, branch = site.name(blueprint), site.name(f"{blueprint}-branch")
    for key in site.lab("template", "ls", "-o", "name").stdout.split():
        site.lab("template", "rm", key)  # whoever made it: this one is to be formed here
    began = time.monotonic()
    size = ("--nodes", str(nodes)) if nodes > 1 else ()
    argv = (blueprint, *size, "--image", _image(site), "--name", name, "-o", "json")
    view = site.lab("up", *argv, timeout=SLOW).json
    _took(f"{blueprint} formed and cloned", began)
    assert view["started"] == "warm", view["why_cold"]
    assert [_kind(name, node) for node in _nodes(view)] == [("kvm", "/dev/zvol")] * nodes
    _on_time(site, name)

    site.sql(name, "n1", "CREATE DATABASE kept")
    taken = _timed(site, "snapshot", "take", name, "--label", "mine", "-o", "json")
    assert taken["warm"], taken["why_cold"]
    site.sql(name, "n1", "CREATE DATABASE lost")
    back = _timed(site, "rollback", name, "--to", "mine", "-o", "json")
    assert back["started"] == "warm", back["why_cold"]
    _on_time(site, name)
    (other,) = _timed(site, "branch", name, branch, "--at", "mine", "-o", "json")
    assert other["started"] == "warm", other["why_cold"]
    for lab in (name, branch):
        for node in _nodes(view):
            assert site.sql(lab, node, "SHOW DATABASES LIKE 'kept'") == [["kept"]]
            assert site.sql(lab, node, "SHOW DATABASES LIKE 'lost'") == []
            if blueprint == "galera":
                assert site.sql(lab, node, _SIZE) == [["wsrep_cluster_size", str(nodes)]]
    site.lab("down", branch, timeout=SLOW)
    _reset_and_asleep(site, name, nodes)
    site.lab("down", name, timeout=SLOW)

    began = time.monotonic()
    again = _timed(site, "up", *argv)
    assert again["started"] == "warm", again["why_cold"]
    _on_time(site, name)
    site.lab("down", name, timeout=SLOW)
    assert site.settled(seconds=60.0) == []


def _reset_and_asleep(site: Site, name: str, nodes: int) -> None:
    """By a standby of the snapshot ``mine``; asleep and awake again; each time on time."""
    _timed(site, "standby", name, "--to", "mine", "-o", "json")
    site.sql(name, "n1", "CREATE DATABASE lost")
    back = _timed(site, "reset", name, "--to", "mine", "--once", "-o", "json")
    assert back["started"] == "warm", back["why_cold"]
    assert site.sql(name, "n1", "SHOW DATABASES LIKE 'kept'") == [["kept"]]
    assert site.sql(name, "n1", "SHOW DATABASES LIKE 'lost'") == []
    if nodes > 1:
        assert site.sql(name, "n1", _SIZE) == [["wsrep_cluster_size", str(nodes)]]
    _on_time(site, name)
    assert _timed(site, "sleep", name, "-o", "json")["state"] == "asleep"
    assert _timed(site, "wake", name, "-o", "json")["state"] == "ready"
    _on_time(site, name)


def test_an_image_boots_by_firmware(site: Site, short: Path) -> None:
    """Protects hosts whose guests boot from their disks, with the processor's virtualisation."""
    with open_context(settings.load(env=site.env)) as ctx:
        image = images.find(ctx, _image(site))
        base = images.snapshots(ctx, image)["os"]
        disk = ctx.storage.get(base.volume).path
        built = manifest.read(site.home.image(image.key))
    boots_by_firmware(replace(built, disks={"os": disk}), short, "kvm")


def test_an_ordinary_user_has_labs_under_kvm(libvirtd: None) -> None:
    """Protects who is not root: a session of libvirt's, the group that owns /dev/kvm."""
    del libvirtd
    with account() as (user, _):
        command(["usermod", "-aG", "kvm", user.name], timeout=60)
        archive = Path(f"~{user.name}/given.lab").expanduser()
        unpack(archive, timeout=SLOW)
        os.chown(archive, archive.parent.stat().st_uid, -1)
        findings = {one["topic"]: one for one in json.loads(_lab(user, "doctor -o json"))}
        assert findings["accelerator"]["value"].startswith("KVM")
        assert findings["libvirt"]["value"].endswith("qemu:///session")
        _lab(user, f"template import {archive}")
        (template,) = json.loads(_lab(user, "template ls -o json"))
        image = _lab(user, "image ls -o name").strip()
        up = f"up {template['blueprint']} --image {image} --memory {template['memory']} --name mine"
        view = json.loads(_lab(user, f"{up} -o json"))
        assert view["started"] == "cold"
        domain = user.run("virsh -q -c qemu:///session dumpxml lab-mine-n1", timeout=120).stdout
        assert ET.fromstring(domain).get("type") == "kvm"  # noqa: S314  libvirt's own XML
        assert json.loads(_lab(user, "snapshot take mine --label now -o json"))["warm"]
        back = json.loads(_lab(user, "rollback mine --to now -o json"))
        assert back["started"] == "warm", back["why_cold"]
        assert _lab(user, "sql mine -e 'SELECT 40 + 2'").split()[-1] == "42"
        _lab(user, "down mine --yes")
        assert _lab(user, "ls -o name") == ""


_SIZE = "SHOW STATUS LIKE 'wsrep_cluster_size'"


def _lab(user: User, words: str) -> str:
    """What a command of the user's prints; it succeeds, or the doctor has notes."""
    path = f"PYTHONPATH={ROOT}:/opt/python LAB_READY_TIMEOUT={SLOW:g}"
    done = user.run(f"{path} python3 -m lab {words}", timeout=SLOW, code=None)
    assert done.returncode == 0 or words.startswith("doctor"), f"{done.stdout}\n{done.stderr}"
    return done.stdout


def _image(site: Site) -> str:
    """The one image that there is: without its key another one might be built here."""
    (key,) = site.lab("image", "ls", "-o", "name").stdout.split()
    return key


def _nodes(view: Mapping[str, Any]) -> Sequence[str]:
    return [node["name"] for node in view["nodes"]]


def _timed(site: Site, *words: str) -> Any:
    """The command's answer; what it took is printed."""
    began = time.monotonic()
    answer = site.lab(*words, timeout=SLOW).json
    _took(" ".join(words[:2]), began)
    return answer


def _took(what: str, began: float) -> None:
    print(f"kvm: {what}: {time.monotonic() - began:.1f} s")  # noqa: T201


def _kind(lab: str, node: str) -> tuple[str, str]:
    """What runs a guest, and where its disk is."""
    argv = ["virsh", "-q", "-c", default_uri(), "dumpxml", f"lab-{lab}-{node}"]
    root = ET.fromstring(run(argv, timeout=120).stdout)  # noqa: S314  libvirt's own XML
    sources = [
        source.get("dev", "")
        for disk in root.iterfind("devices/disk")
        if disk.find("readonly") is None and (source := disk.find("source")) is not None
    ]
    assert all(source.startswith("/dev/zvol/") for source in sources), sources
    return root.get("type", ""), "/dev/zvol"


def _on_time(site: Site, name: str) -> None:
    """Each node's clock is its host's, within ``CLOCK`` seconds and what the question took."""
    view = site.lab("status", name, "-o", "json", code=None, timeout=SLOW).json["lab"]
    for address in view["addresses"]["rw"]:
        host, _, port = address.rpartition(":")
        login = {"user": view["user"], "password": view["password"]}
        with (
            closing(pymysql.connect(host=host, port=int(port), **login)) as there,
            there.cursor() as cursor,
        ):
            for _ in range(2):  # the first one translates the server's code
                before = time.time()
                cursor.execute("SELECT UNIX_TIMESTAMP(NOW(6))")
                after = time.time()
            (found,) = cursor.fetchone() or (0,)
        assert before - CLOCK < float(found) < after + CLOCK, (before, float(found), after)
