"""What loading data may take: protects other projects' labs from the datasets of one."""

from __future__ import annotations

import os
import time
import uuid
from concurrent.futures import ThreadPoolExecutor
from contextlib import suppress
from pathlib import Path
from typing import Any

import pytest
from websockets.exceptions import ConnectionClosed
from websockets.sync.client import connect

from lab.api.background.refresher import Refresher
from lab.api.jobs import uploads
from lab.api.jobs.quota import Loading, uploaded
from lab.api.jobs.submit import new_job
from lab.config.datasetfile import ScheduledDataset
from lab.errors import LimitReached, NotFound
from lab.lifecycle.datasets import load
from lab.lifecycle.service import token as tokens
from lab.requests.datasets import RefreshDataset
from lab.units import GIB, MIB
from lab.wait import Deadline, until
from tests.support.serve_world import BODY, MEMORY, Site, site
from tests.support.vanishing import vanishing

SLEEPS = "CREATE TABLE t (a INT);\nDO SLEEP(31536000);\n"
"""A server that loads without end."""


def asked(here: Site, token: str, tmp_path: Path, sql: str = SLEEPS) -> dict[str, Any]:
    """The body of a request for a dataset with ``sql``, which is uploaded."""
    dump, record = tmp_path / "dump.sql", tokens.check(here.service.core.store, token)
    dump.write_text(sql)
    file = os.open(dump, os.O_RDONLY)
    identity = uuid.uuid4().hex
    uploads.receive(here.service.core, record, identity, "dump.sql", file)
    return {"name": "d", "source": f"upload:{identity}"}


def states(here: Site, jobs: list[str]) -> list[str]:
    return [here.ask("GET", f"/v1/jobs/{job}").json()["state"] for job in jobs]


@pytest.mark.rare
@pytest.mark.parametrize(
    ("quota", "word"),
    [
        ({"memory": 384 * MIB}, "384M of memory, and would have 1G"),
        ({"nodes": 1, "memory": 8 * GIB}, "1 nodes, and would have 2"),
        ({"cpus": 1}, "1 processors, and would have 2"),
    ],
)
def test_loading_counts_in_the_quotas(tmp_path: Path, quota: dict[str, Any], word: str) -> None:
    """A dataset's guest counts as a node does; so does that of one that is loading."""
    with site(tmp_path, dataset_time=5.0) as here:
        token = here.token(**quota)
        if "nodes" in quota:
            body = {**asked(here, token, tmp_path), "name": "first"}
            assert here.ask("POST", "/v1/datasets", body, token=token).status_code == 202
        answer = here.ask("POST", "/v1/datasets", asked(here, token, tmp_path), token=token)
        assert answer.status_code == 429, answer.text
        assert word in answer.json()["detail"]
        assert "with this dataset's loading" in answer.json()["detail"]
        if "nodes" in quota:
            answer = here.ask("POST", "/v1/labs", {**BODY, "nodes": 1}, token=token)
            assert answer.status_code == 429, answer.text
        here.settled(30)


@pytest.mark.rare
def test_loading_has_a_deadline(tmp_path: Path) -> None:
    """The job fails, its guest is gone, and others get their labs."""
    with site(tmp_path, dataset_time=3.0, memory=1400 * MIB) as here:
        token = here.token()
        body = asked(here, token, tmp_path)
        answer = here.ask("POST", "/v1/datasets", body, token=token)
        job = answer.json()["id"]
        assert until(lambda: states(here, [job]) == ["running"], Deadline.after(20))
        began = time.monotonic()
        assert here.ask("POST", "/v1/labs?wait=60", BODY, token=here.token("b", project="beta"))
        assert time.monotonic() - began < 20
        found = here.ask("GET", f"/v1/jobs/{job}?wait=20").json()
        assert found["state"] == "failed"
        assert "not loaded within 3s" in found["error"]["detail"]
        assert found["error"]["status"] == 504
        with here.service.core.contexts.use() as ctx:
            assert not [name for name in ctx.hypervisor.guests() if "-d-" in name]


@pytest.mark.rare
def test_administrators_have_no_deadline(tmp_path: Path) -> None:
    with site(tmp_path, dataset_time=1.0) as here:
        body = asked(here, here.admin, tmp_path, "CREATE TABLE t (a INT); DO SLEEP(4);")
        assert here.ask("POST", "/v1/datasets?wait=60", body).status_code == 201


@pytest.mark.rare
def test_a_scheduled_refresh_has_the_limits_of_the_project(tmp_path: Path) -> None:
    """The service refreshes what a project named; the project chose how large it is."""
    scheduled = (ScheduledDataset("d", refresh=0.1, keep=1),)
    with site(tmp_path, dataset_size=8 * MIB, datasets=scheduled, sweep=3600.0) as here:
        token = here.token()
        here.make("origin", token=token)
        body = {"name": "d", "source": "lab:origin"}
        answer = here.ask("POST", "/v1/datasets?wait=60", body, token=token)
        assert answer.status_code == 201, answer.text
        core = here.service.core
        time.sleep(0.2)  # it is due
        Refresher(core, here.service.jobs).refresh()
        (job,) = core.store.jobs.latest(kinds=["refresh-dataset"])
        assert job.token == ""
        loading = Loading(core, job)
        loading(8 * MIB)
        with pytest.raises(LimitReached, match="more than 8M"):
            loading(8 * MIB + 1)
        here.settled(30)


def test_statements_of_tokens_are_limited(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """An administrator may load what a server takes."""
    assert load._STATEMENT == 64 * MIB
    monkeypatch.setattr(load, "_STATEMENT", 128 << 10)  # the same in less time
    long = f"INSERT INTO t VALUES ('{'x' * (130 << 10)}');"
    sql = f"CREATE TABLE t (a TEXT);\n{long}\n"
    with site(tmp_path) as here:
        token = here.token()
        body = asked(here, token, tmp_path, sql)
        job = here.ask("POST", "/v1/datasets", body, token=token).json()["id"]
        found = here.ask("GET", f"/v1/jobs/{job}?wait=60", token=token).json()
        assert found["state"] == "failed"
        assert "statement 2, " in found["error"]["detail"]
        assert "is longer than 128K" in found["error"]["detail"]
        answer = here.ask("POST", "/v1/datasets?wait=60", asked(here, here.admin, tmp_path, sql))
        assert answer.status_code == 201, answer.text


def test_uploads_at_the_same_time_share_the_quota(tmp_path: Path) -> None:
    """Each counts what the other has sent so far; what has no room leaves nothing."""
    with site(tmp_path) as here:
        record = tokens.check(here.service.core.store, here.token(disk=6 * MIB))
        blob = tmp_path / "blob.sql"
        blob.write_bytes(b"-- x\n" * MIB)

        def send(number: int) -> object:
            file = os.open(blob, os.O_RDONLY)
            try:
                return uploads.receive(here.service.core, record, f"u{number}", "a.sql", file)
            except LimitReached as error:
                return error.what

        with ThreadPoolExecutor(2) as threads:
            found = list(threads.map(send, range(2)))
        assert sum("limited to 6M of disk" in str(one) for one in found) >= 1, found
        assert uploaded(here.service.core, "shop") <= 6 * MIB


def test_an_upload_is_not_affected_by_the_end_of_another(tmp_path: Path) -> None:
    """One is removed after it was counted in, before its size is read."""
    with site(tmp_path) as here:
        core = here.service.core
        record = tokens.check(core.store, here.token(disk=60 * MIB))
        (tmp_path / "blob.sql").write_bytes(b"-- x\n")
        first, second = (os.open(tmp_path / "blob.sql", os.O_RDONLY) for _ in range(2))
        uploads.receive(core, record, "other", "a.sql", first)
        with vanishing(core.settings.home.upload(record.id, "other")):
            uploads.receive(core, record, "mine", "a.sql", second)
        assert uploaded(core, "shop") == 5


def test_an_upload_that_is_loaded_meanwhile_is_not_found(tmp_path: Path) -> None:
    """Two requests name it: the second comes when the first one's job has just removed it."""
    with site(tmp_path) as here:
        token = here.token()
        core, record = here.service.core, tokens.check(here.service.core.store, token)
        body = asked(here, token, tmp_path, "-- x\n")
        found = uploads.find(core, record, body["source"].removeprefix("upload:"))
        uploads.discard(core, record.id, found.parent.name)
        with pytest.raises(NotFound, match="there is no upload"):
            uploads.size(found)


def test_uploads_of_a_token_are_limited_in_number(tmp_path: Path) -> None:
    with site(tmp_path) as here:
        token = here.token()
        record = tokens.check(here.service.core.store, token)
        for number in range(20):
            file = os.open("/dev/null", os.O_RDONLY)
            uploads.receive(here.service.core, record, f"u{number}", "a.sql", file)
        with pytest.raises(LimitReached, match="20 uploads that are not loaded yet"):
            uploads.receive(
                here.service.core, record, "more", "a.sql", os.open("/dev/null", os.O_RDONLY)
            )


def test_what_is_unpacked_counts_for_all_jobs_of_a_project(tmp_path: Path) -> None:
    """Two jobs have not each what is left of the quota: they share it."""
    with site(tmp_path) as here:
        record = tokens.check(here.service.core.store, here.token(disk=10 * MIB))
        core = here.service.core
        loads = []
        for number in range(2):
            job = new_job(record, RefreshDataset(name=f"d{number}"))
            core.store.jobs.add(job)
            loads.append(Loading(core, job))
        loads[0](6 * MIB)
        loads[1](3 * MIB)
        with pytest.raises(LimitReached, match="more than 10M"):
            loads[1](5 * MIB)
        loads[0].ended()
        loads[1](5 * MIB)


def test_a_trickled_upload_is_ended(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Protects the places for uploads: a byte now and then keeps none."""
    monkeypatch.setattr(uploads, "IDLE", 1.0)
    with site(tmp_path) as here:
        headers = {"Authorization": f"Bearer {here.token()}"}
        url = f"ws{str(here.client.base_url)[4:]}/v1/datasets/upload?name=a.sql"
        began = time.monotonic()
        with (
            connect(url, additional_headers=headers, compression=None) as client,
            suppress(ConnectionClosed),
        ):
            while time.monotonic() - began < 20:
                client.send(b"-")
                with suppress(TimeoutError):
                    client.recv(0.1)
        assert time.monotonic() - began < 10
        used = here.service.core.limits.uploads.used
        assert until(lambda: used() == 0, Deadline.after(10))


def test_what_a_template_takes_counts(tmp_path: Path) -> None:
    """Also of an administrator with a quota."""
    with site(tmp_path) as here:
        token = here.token(scope="admin", memory=MEMORY)
        answer = here.ask("POST", "/v1/templates", BODY, token=token)
        assert answer.status_code == 429, answer.text
        assert "with this template's nodes" in answer.json()["detail"]
