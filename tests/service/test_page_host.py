"""The pages of images, templates and snapshots: what they show, what forms do, and to whom."""

from __future__ import annotations

from collections.abc import Iterator
from html import unescape

import pytest
from httpx import Client

from lab.lifecycle.snapshots.snapshot import snapshots
from tests.support.page_visit import place_of, visit
from tests.support.serve_world import Site, site


@pytest.fixture(scope="module")
def here(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Site]:
    with site(tmp_path_factory.mktemp("host")) as found:
        yield found


def done(here: Site, client: Client, path: str, **fields: str) -> str:
    """Send a form; the page of its job, which succeeded."""
    answer = client.post(path, data=fields)
    assert answer.status_code == 303, answer.text
    job = answer.headers["location"]
    assert here.ask("GET", f"/v1{job}?wait=30").json()["state"] == "succeeded"
    return unescape(client.get(job).text)


def labels(here: Site, name: str) -> list[str]:
    with here.service.core.contexts.use() as ctx:
        return [one.label for one in snapshots(ctx, name)]


def test_the_way_of_an_image(here: Site) -> None:
    """Protects who keeps the host: an image is built, seen, and removed once nothing uses it."""
    with visit(here) as client:
        assert "There are no images." in client.get("/images").text
        page = done(here, client, "/images", recipe="mariadb", key="k1")
        assert "build-image mariadb-" in page
        assert f'href="{place_of(client)}/images"' in page
        # Sent twice, as by a second click: the same job.
        client.post("/images", data={"recipe": "mariadb", "key": "k1"})
        assert len(here.ask("GET", "/v1/jobs?kind=build-image").json()["items"]) == 1
        key = here.ask("GET", "/v1/images").json()[0]["key"]
        page = client.get("/images").text
        assert f'action="{place_of(client)}/images/{key}/delete"' in page
        here.make("uses", nodes=1)
        page = unescape(client.get("/images").text)
        assert f'action="{place_of(client)}/images/{key}/delete"' not in page
        assert "delete these first" in page
        refused = client.post(f"/images/{key}/delete")
        assert refused.status_code == 409
        assert "is used by" in refused.text

        template = here.ask("GET", "/v1/templates").json()[0]["key"]
        page = client.get("/templates").text
        assert template in page
        assert "with RAM" in page
        refused = client.post(f"/templates/{template}/delete")
        assert refused.status_code == 409
        assert "is used by uses" in refused.text
        here.ask("DELETE", "/v1/labs/uses?wait=20")
        done(here, client, f"/templates/{template}/delete")
        assert "There are no templates." in client.get("/templates").text
        done(here, client, f"/images/{key}/delete")
        assert "There are no images." in client.get("/images").text
        assert client.post("/images/gone-1/delete").status_code == 404
        assert client.post("/images", data={"recipe": "no such"}).status_code == 422
    trail = here.ask("GET", "/v1/audit").json()["items"]
    assert {"buildImage", "deleteImage", "deleteTemplate"} <= {one["action"] for one in trail}


def test_the_way_of_a_dataset(here: Site) -> None:
    """Protects who works with data: loaded from a lab, chosen for another, refreshed, removed."""
    ci = here.token("data", project="data")
    here.make("origin", token=ci)
    with visit(here, ci) as client:
        assert "There are no datasets." in client.get("/datasets").text
        page = done(here, client, "/datasets", name="crm", source="lab:origin", keep="2", key="d1")
        assert "create-dataset crm@1" in page
        assert f'href="{place_of(client)}/datasets"' in page
        assert "<option>crm</option>" in client.get("/").text
        done(here, client, "/labs", name="of-crm", blueprint="galera", nodes="1", memory="384M",
             dataset="crm")  # fmt: skip
        done(here, client, "/datasets/crm/refresh")
        page = unescape(client.get("/datasets").text)
        assert "crm@2" in page
        assert "used by of-crm" in page
        assert client.post("/datasets/crm@1/delete").status_code == 409
        done(here, client, "/datasets/crm@1/delete", defer="yes")
        assert "removing" in client.get("/datasets").text
        refused = client.post("/datasets", data={"name": "x", "source": "/etc/shop.sql"})
        assert refused.status_code == 403
        assert client.post("/datasets", data={"name": "X", "source": ""}).status_code == 422
        here.ask("DELETE", "/v1/labs/of-crm?wait=20")
        done(here, client, "/datasets/crm/delete")
        assert "There are no datasets." in client.get("/datasets").text
    with visit(here, here.token("else", project="else")) as client:
        assert "For all projects" not in client.get("/datasets").text
        assert client.post("/datasets/crm/refresh").status_code == 404
    here.ask("DELETE", "/v1/labs/origin?wait=20")


def test_the_way_of_a_snapshot(here: Site) -> None:
    """Protects who tries something: a snapshot is taken, gone back to, and removed."""
    here.make("shop")
    with visit(here, here.token("ci", project="shop")) as client:
        assert client.get("/labs/shop/snapshots").status_code == 404  # another project's
    with visit(here) as client:
        assert f'href="{place_of(client)}/labs/shop/snapshots"' in client.get("/labs/shop").text
        page = done(here, client, "/labs/shop/snapshots", name="before-upgrade", key="k2")
        assert f'href="{place_of(client)}/labs/shop/snapshots"' in page
        client.post("/labs/shop/snapshots", data={"name": "before-upgrade", "key": "k2"})
        label = labels(here, "shop")[-1]
        assert sum(one.startswith("before-upgrade.") for one in labels(here, "shop")) == 1
        page = client.get("/labs/shop/snapshots").text
        assert page.index("<h2>origin") < page.index(f"<h2>{label}")  # which descends from it
        done(here, client, f"/labs/shop/snapshots/{label}/rollback")
        done(here, client, f"/labs/shop/snapshots/{label}/rollback", node="n2")
        asked = [
            one.facts for one in here.service.core.store.jobs.latest() if one.kind == "rollback"
        ]
        assert sorted((one["to"], one["node"]) for one in asked) == [(label, ""), (label, "n2")]
        done(here, client, f"/labs/shop/snapshots/{label}/rollback", cold="yes")
        assert here.ask("GET", "/v1/labs/shop").json()["started"] == "cold"
        done(here, client, f"/labs/shop/snapshots/{label}/reset")
        assert here.ask("GET", "/v1/labs/shop").json()["started"] == "warm"
        done(here, client, f"/labs/shop/snapshots/{label}/delete")
        assert label not in labels(here, "shop")
        assert client.post(f"/labs/shop/snapshots/{label}/delete").status_code == 404
        wrong = client.post("/labs/shop/snapshots", data={"name": "Not A Name"})
        assert wrong.status_code == 422
        assert 'value="Not A Name"' in wrong.text


def test_the_tree_of_snapshots(here: Site) -> None:
    """Protects who looks for what is kept: RAM, pause, end, protection, parents and branches."""
    here.make("tree")
    path = "/labs/tree/snapshots"
    with visit(here) as client:
        done(here, client, path, name="first", ttl="2h", protected="yes", key="k3")
        done(here, client, path, name="second", disks_only="yes", key="k4")
        first, second = labels(here, "tree")[1:]
        job = done(here, client, f"{path}/branches", branch_name="twig", at=first, count="2",
                   branch_ttl="30m", key="k5")  # fmt: skip
        for name in ("twig-1", "twig-2"):
            assert f'href="{place_of(client)}/labs/{name}"' in job
        here.ask("DELETE", "/v1/labs/twig-2?wait=20")
        (made,) = here.ask("GET", "/v1/jobs?kind=branch&lab=tree").json()["items"]
        job = client.get(f"/jobs/{made['id']}").text
        assert "/labs/twig-1" in job
        assert "/labs/twig-2" not in job
        parent = unescape(client.get("/labs/twig-1").text)
        assert f'href="{place_of(client)}/labs/tree/snapshots"' in parent
        assert f"tree@{first}" in parent
        page = unescape(client.get(path).text)
        cards = dict(zip(["origin", "first", "second"], page.split("<article")[1:], strict=True))
        assert "level-0" in cards["origin"]
        assert "level-1" in cards["first"]
        assert "level-2" in cards["second"]
        assert f"descends from {first}" in cards["second"]
        for text in ("of RAM", "paused for 0.", "expires in 1h59m", "protected"):
            assert text in cards["first"], text
        assert f'href="{place_of(client)}/labs/twig-1"' in cards["first"]
        assert "disks only: it was taken with disks only" in cards["second"]
        assert "the lab is here" in cards["second"]
        assert "the lab is here" not in cards["first"]
        refused = client.post(f"{path}/{first}/delete")
        assert here.ask("GET", f"/v1{refused.headers['location']}?wait=30").json()["state"] == (
            "failed"
        )
        assert client.post(f"{path}/{first}/protect", data={"protected": "no"}).status_code == 303
        assert here.ask("GET", f"/v1{path}").json()[1]["protected"] is False
        client.post(f"{path}/{second}/protect", data={"protected": "yes"})
        done(here, client, f"{path}/{second}/delete", force="yes")
        assert labels(here, "tree") == ["origin", first]
        wrong = client.post(f"{path}/branches", data={"branch_name": "Not A Name", "count": "99"})
        assert wrong.status_code == 422
        assert 'value="Not A Name"' in wrong.text
        assert wrong.text.count('aria-invalid="true"') == 2
    trail = here.ask("GET", "/v1/audit").json()["items"]
    assert {"branchLab", "changeSnapshot"} <= {one["action"] for one in trail}


def test_who_may_only_look_sees_no_forms(here: Site) -> None:
    """Protects from what would be refused: forms are shown to those who may send them."""
    here.make("seen", token=here.token("seer", project="seer"))
    for scope, forms in (("read", set()), ("use", {"/labs/seen/snapshots"})):
        token = here.token(f"looks-{scope}", scope=scope, project="seer")  # type: ignore[arg-type]
        with visit(here, token) as client:
            for path in ("/images", "/templates", "/labs/seen/snapshots"):
                page = client.get(path).text
                found = {part.split('"')[0] for part in page.split('action="')[1:]}
                actions = {one.removeprefix(place_of(client)) for one in found}
                assert "/sign-out" in actions
                shown = {one for one in actions - {"/sign-out"} if one.startswith(path)}
                assert bool(shown) == (path in forms), (scope, path)
                assert "looks-" in page
                # The users of an image are shown to those who see all projects.
                assert "delete these first" not in page
