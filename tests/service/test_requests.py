"""The requests of jobs, as rows of the record have them."""

from __future__ import annotations

import json
from collections.abc import Mapping
from typing import Any, get_args

import pytest
from msgspec.structs import replace

from lab.api.jobs.stored import (
    concerns,
    origin_of,
    plain,
    pool_of,
    read_facts,
    subject_of,
    traceparent_of,
)
from lab.api.jobs.submit import digest_of
from lab.api.jobs.work import WORK
from lab.errors import InvalidSpec
from lab.lifecycle.core.context import Origin
from lab.request import Request, subject
from lab.requests.datasets import CreateDataset, DeleteDataset, RefreshDataset
from lab.requests.images import BuildImage, BuildTemplate, DeleteImage, DeleteTemplate
from lab.requests.labs import (
    BranchLab,
    CreateLab,
    DeleteLab,
    DropStandby,
    ExpireLab,
    FillPool,
    MakeStandby,
    Power,
    Promote,
    ResetLab,
    RestartLab,
    RollBack,
    SleepLab,
    StartLab,
    StopLab,
    UpgradeLab,
    WakeLab,
)
from lab.requests.snapshots import DeleteSnapshot, PruneSnapshots, TakeSnapshot
from lab.spec import LabSpec
from lab.state.records import LabRecord
from lab.state.service import JobKind, JobRecord
from lab.units import MIB

CREATED = 1795379392.1980302
PLAIN = {
    "blueprint": "galera", "nodes": 1, "engine": "mariadb", "image": "", "profile": "durable",
    "memory": 402653184, "cpus": 1, "disk": 0, "name": "plain", "any_name": False, "snapshots": "",
    "cold": False, "ttl": 3600.0, "heartbeat": 60.0, "idle": 600.0, "protected": True,
    "keep_failed": True, "owner": "root",
}  # fmt: skip
ROWS: list[tuple[JobKind, str, str, Mapping[str, Any], str, Request]] = [
    ("create", "plain", "", PLAIN,
     "6fb5c3402b70e22e7ccf935fac268fb517e98021246fd252cf2e30d7ef1ad64b",
     CreateLab(blueprint="galera", nodes=1, engine="mariadb", profile="durable", memory=384 * MIB,
               name="plain", ttl=3600.0, heartbeat=60.0, idle=600.0, protected=True,
               keep_failed=True, owner="root")),
    ("create", "shop", "",
     {"blueprint": "galera", "nodes": 2, "engine": "", "image": "", "profile": "",
      "memory": 402653184, "cpus": 1, "disk": 0, "name": "shop", "any_name": False,
      "snapshots": "hourly:2", "cold": True, "ttl": 3600.0, "heartbeat": None, "idle": None,
      "protected": False, "keep_failed": False, "owner": "root"},
     "e3ebb889e4243fec56f27ff36ceef6968abf018911f2a7112e40e581d0e2696f",
     CreateLab(blueprint="galera", nodes=2, memory=384 * MIB, name="shop", snapshots="hourly:2",
               cold=True, ttl=3600.0, owner="root")),
    ("fill", "galera-f928d9", "",
     {"blueprint": "galera", "name": "galera-f928d9", "nodes": 2, "engine": "",
      "memory": 402653184, "cpus": 1, "disk": 0, "ttl": None, "profile": "", "snapshots": "",
      "image": "", "cold": False, "owner": "pool", "pool": "small"}, "",
     FillPool(blueprint="galera", name="galera-f928d9", nodes=2, memory=384 * MIB, owner="pool",
              pool="small")),
    ("stop", "shop", "", {"node": "", "force": False, "created_at": CREATED},
     "3927c9bb44c71d361c3681479c8247f855d2dedbe7fb99e7fa8b234825051522",
     StopLab(created_at=CREATED)),
    ("start", "shop", "", {"node": "", "force": False, "created_at": CREATED},
     "3dd15b986c126cd9ee7b07c01e6d3543ba690ed90e7f437681d5e918baf15007",
     StartLab(created_at=CREATED)),
    ("restart", "shop", "", {"node": "n1", "force": False, "created_at": CREATED},
     "9c595e12c2750f364c1c34e78b1b7a597ed8ad6936a2b78f9adec1011ea1825c",
     RestartLab(created_at=CREATED, node="n1")),
    ("stop", "shop", "", {"node": "n1", "force": True, "created_at": CREATED},
     "af0dd80e95b170656b8be88acf4bbada256aa6f3760aceea8bb8379d85f16df3",
     StopLab(created_at=CREATED, node="n1", force=True)),
    ("sleep", "shop", "", {"node": "", "force": False, "created_at": CREATED}, "",
     SleepLab(created_at=CREATED)),
    ("wake", "shop", "", {"node": "", "force": False, "created_at": CREATED}, "",
     WakeLab(created_at=CREATED)),
    ("create", "", "", {"blueprint": "galera", "nodes": 2, "asleep_after": 0.0}, "",
     CreateLab(blueprint="galera", nodes=2, asleep_after=0.0)),
    ("promote", "shop", "", {"node": "n2", "force": False, "created_at": CREATED}, "",
     Promote(node="n2", created_at=CREATED)),
    ("upgrade", "shop", "",
     {"to": "mariadb:11.8", "node": "n2", "keep_failed": True, "workload": [], "statements": "",
      "created_at": CREATED}, "",
     UpgradeLab(to="mariadb:11.8", node="n2", keep_failed=True, created_at=CREATED)),
    ("snapshot", "shop", "", {"name": "before", "created_at": CREATED},
     "b60c6147fb651ed2afdaf486b7e5409ddbd78b17520be8b7a9f4955671681215",
     TakeSnapshot(created_at=CREATED, name="before")),
    ("snapshot", "shop", "", {"name": "", "scheduled": True, "created_at": CREATED}, "",
     TakeSnapshot(created_at=CREATED, name="", scheduled=True)),
    ("rollback", "shop", "",
     {"to": "before.20261122t202952", "node": "", "created_at": CREATED},
     "849166ab14841e54d39fd6eaf3267daec602f8b0e0151a042a2a939a1e0264ee",
     RollBack(created_at=CREATED, to="before.20261122t202952")),
    ("rollback", "shop", "",
     {"to": "before.20261122t202952", "node": "n2", "created_at": CREATED},
     "7755e242c77bfbe2f77b5ea5d9173326fa4740995236461f3cbb02fd13a7a20d",
     RollBack(created_at=CREATED, to="before.20261122t202952", node="n2")),
    ("rollback", "shop", "",
     {"to": "origin", "node": "", "created_at": CREATED, "cold": True, "keep_sessions": True}, "",
     RollBack(created_at=CREATED, to="origin", cold=True, keep_sessions=True)),
    ("reset", "shop", "", {"to": "base", "once": True, "created_at": CREATED}, "",
     ResetLab(created_at=CREATED, to="base", once=True)),
    ("standby", "shop", "", {"to": "base", "created_at": CREATED}, "",
     MakeStandby(created_at=CREATED, to="base")),
    ("drop-standby", "shop", "", {"created_at": CREATED}, "", DropStandby(created_at=CREATED)),
    ("snapshot", "shop", "",
     {"name": "x", "created_at": CREATED, "disks_only": True, "ttl": 60.0, "protected": True}, "",
     TakeSnapshot(created_at=CREATED, name="x", disks_only=True, ttl=60.0, protected=True)),
    ("branch", "shop", "",
     {"created_at": CREATED, "name": "try", "at": "origin", "count": 3, "ttl": 3600.0,
      "keep_sessions": False, "identity": "new", "owner": "ci"}, "",
     BranchLab(created_at=CREATED, name="try", at="origin", count=3, ttl=3600.0, identity="new",
               owner="ci")),
    ("prune-snapshots", "shop", "", {"created_at": CREATED},
     "16793b1b9b1a621366ef665c2ff64ad00c1d17aac2b25d5a6f20c23ef09b3173",
     PruneSnapshots(created_at=CREATED)),
    ("delete-snapshot", "shop", "snapshot:before.20261122t202952", {"created_at": CREATED},
     "7e62d2821fd32ee4ffa866ee94fd0ac12deaae8e805c07c64e30848f3b325f4a",
     DeleteSnapshot(created_at=CREATED)),
    ("delete-snapshot", "shop", "snapshot:x", {"created_at": CREATED, "force": True}, "",
     DeleteSnapshot(created_at=CREATED, force=True)),
    ("build-image", "", "", {"recipe": "mariadb", "rebuild": False},
     "256d6b73493a6d6d8226bc70ba9f53c208debd3b08fe3240e12b00534e3bffd4",
     BuildImage(recipe="mariadb")),
    ("build-template", "", "",
     {"blueprint": "galera", "nodes": 1, "engine": "", "image": "", "profile": "",
      "memory": 419430400, "cpus": 1, "disk": 0, "name": "", "ttl": None, "snapshots": ""},
     "2cfbd9ce4da7cdb3cddbbceecba8b806d652cdef17e208da3d1c87ae903733a9",
     BuildTemplate(blueprint="galera", nodes=1, memory=400 * MIB)),
    ("delete-image", "", "image:mariadb-a3f8a52fb7c3a841", {}, "", DeleteImage()),
    ("delete-template", "", "template:8a4b81a52386c0", {},
     "4d669b94af25a8b06eeeca3ef1034a32003344ee7ac93c71232db3d7de9f3a96", DeleteTemplate()),
    ("create-dataset", "", "dataset:crm",
     {"name": "crm", "source": "lab:shop", "blueprint": "galera", "keep": 3, "mask": "", "sql": "",
      "tables": ["crm.people"], "where": [], "schema_only": [], "defaults_file": "", "upload": "",
      "lab_created_at": CREATED, "shared": True}, "",
     CreateDataset(name="crm", source="lab:shop", blueprint="galera", keep=3,
                   tables=("crm.people",), lab_created_at=CREATED, shared=True)),
    ("refresh-dataset", "", "dataset:crm", {"keep": 2}, "", RefreshDataset(keep=2)),
    ("delete-dataset", "", "dataset:crm@1", {"defer": True}, "", DeleteDataset(defer=True)),
    ("delete", "shop", "", {"force": False, "created_at": CREATED},
     "db89fac45ddf3690a1586292d54b0cb4395ea9b0b58bd163bce73ac70cb84675",
     DeleteLab(created_at=CREATED)),
    ("delete", "lost", "", {"force": True, "created_at": None}, "", DeleteLab(force=True)),
    ("expire", "brief", "", {"created_at": 1795379395.5600364, "expires_at": 1795379394.6489706},
     "", ExpireLab(created_at=1795379395.5600364, expires_at=1795379394.6489706)),
]  # fmt: skip
"""Kind, lab, about, request and digest of rows as the service wrote them when requests were plain
dictionaries; and what they mean. A digest is empty where it was not compared."""


def job_of(
    kind: JobKind, request: Mapping[str, Any], about: str = "", lab: str = "shop"
) -> JobRecord:
    return JobRecord(
        id="j1", kind=kind, lab=lab, project="web", token="", state="queued",
        facts=request, digest="", created_at=CREATED, about=about,
    )  # fmt: skip


@pytest.mark.parametrize(("kind", "lab", "about", "row", "digest", "meant"), ROWS)
def test_rows_of_an_older_version_are_read(
    kind: JobKind, lab: str, about: str, row: Mapping[str, Any], digest: str, meant: Request
) -> None:
    """Protects jobs that were queued before an upgrade, and requests repeated after it.

    An equal request has the digest that the older version computed: it is the same job.
    """
    found = read_facts(job_of(kind, row, about, lab), WORK[kind].request)
    names = {"lab": lab, "about": about.partition(":")[2]}
    subjects = {name: names[mark.kind] for name, mark in subject(type(meant)).items()}
    assert found == replace(meant, **subjects)
    assert type(found) is type(meant)
    assert subject_of(found) == (lab, about)
    if digest:
        assert digest_of(found) == digest


def test_rows_of_all_kinds_are_tested() -> None:
    """Protects the table above from falling behind."""
    assert {row[0] for row in ROWS} == set(get_args(JobKind)) == set(WORK)


@pytest.mark.parametrize("request_", [row[5] for row in ROWS])
def test_what_is_written_is_read(request_: Request) -> None:
    """Protects jobs from a restart: nothing is lost between two processes of the service."""
    text = json.dumps(plain(request_))
    about = {"lab": "shop", "about": "x"}
    request_ = replace(
        request_, **{name: about[mark.kind] for name, mark in subject(type(request_)).items()}
    )
    job = job_of("create", json.loads(text), "thing:x")
    assert read_facts(job, type(request_)) == request_


def test_missing_fields_have_defaults() -> None:
    """Protects jobs of versions whose requests had fewer fields."""
    found = read_facts(job_of("create", {"blueprint": "pxc"}), CreateLab)
    assert found == CreateLab("pxc")
    assert not found.cold
    assert read_facts(job_of("start", {}), Power) == Power(lab="shop")


def test_a_request_of_a_newer_version_is_read() -> None:
    """Protects lists and quotas from one that says what this version does not know."""
    row = {"blueprint": "pxc", "options": {"shards": 2}, "snapshots": "lunar:2"}
    found = read_facts(job_of("create", row), CreateLab)
    assert (found.blueprint, found.options) == ("pxc", {"shards": 2})
    with pytest.raises(InvalidSpec, match="'lunar:2' is not a schedule"):
        found.check()
    with pytest.raises(InvalidSpec, match="unknown option 'shards'"):
        replace(found, snapshots="").check()


def test_unknown_fields_are_ignored() -> None:
    """Protects a return to an older version."""
    job = job_of("start", {"node": "n1", "colour": "red", "traceparent": "00-1-2-01"})
    assert read_facts(job, Power) == Power(lab="shop", node="n1")
    assert traceparent_of(job) == "00-1-2-01"
    assert traceparent_of(job_of("start", {})) == ""


@pytest.mark.parametrize("row", [{}, {"blueprint": "pxc", "nodes": "three"}, {"blueprint": 5}])
def test_an_invalid_row_is_reported(row: Mapping[str, Any]) -> None:
    """Protects the operator from a traceback: the error names the job and the field."""
    with pytest.raises(InvalidSpec, match=r"the request of job j1 \(create\) is invalid: .+"):
        read_facts(job_of("create", row), CreateLab)


def test_a_request_says_all_of_a_lab() -> None:
    """Protects the pools: a member is created as its specification says."""
    spec = LabSpec(
        "pxc", "", 5, "mariadb", 512 * MIB, 2, 8 << 30, 60.0, "durable", "hourly:2",
        "mariadb-0123456789abcdef",
    )  # fmt: skip
    found = FillPool.of(spec, name="pxc-1", owner="pool", pool="small")
    assert LabSpec.of(found) == replace(spec, name="pxc-1")
    job = job_of("fill", plain(found))
    assert pool_of(job) == "small"
    assert origin_of(job, found, None) == Origin("web", "j1", pool="small")
    row = job_of("create", {"blueprint": "pxc", "any_name": True})
    assert read_facts(row, CreateLab).accept_pooled_name


def test_a_specification_is_parsed_once() -> None:
    """Protects the time of a request: quota, admission and job use the same parts of it."""
    request = read_facts(job_of("create", PLAIN), CreateLab)
    assert request.size is request.size
    assert request.chosen is request.chosen
    assert request.schedule is request.schedule
    assert plain(request) == PLAIN  # what is cached is not written


def test_a_job_concerns_the_lab_that_was_meant() -> None:
    """Protects a lab from jobs for another that had its name before."""
    lab = LabRecord(
        "shop", "percona", "8.4", "image", "ready", "secret", "lab", "ci", CREATED,
        blueprint="pxc", node_count=3, memory=768 * MIB, cpus=1, disk=0,
    )  # fmt: skip
    assert concerns(job_of("stop", {"created_at": CREATED}), lab)
    assert concerns(job_of("stop", {}), lab)
    assert concerns(job_of("delete", {"created_at": None}), lab)
    assert not concerns(job_of("stop", {"created_at": CREATED - 1.0}), lab)
