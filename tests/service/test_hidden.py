"""What a token learns of what it must not see: nothing, whether it is there or not."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from tests.support.serve_world import BODY, Site, site


@pytest.fixture
def here(tmp_path: Path) -> Iterator[Site]:
    with site(tmp_path, max_ttl=7200.0) as found:
        yield found


def test_a_file_of_the_host_is_not_looked_at(here: Site, tmp_path: Path) -> None:
    """A source that is no server has no file with a password: the answer is always the same."""
    there = tmp_path / "there"
    there.write_text("secret")
    there.chmod(0o644)
    body = {"name": "d", "source": "generate:sysbench?rows=1"}
    answers = [
        here.ask("POST", "/v1/datasets", {**body, "defaults_file": str(path)}, token=here.token())
        for path in (there, tmp_path / "absent", tmp_path)
    ]
    assert {answer.status_code for answer in answers} == {422}
    assert len({answer.json()["detail"] for answer in answers}) == 1


def test_the_former_dataset_of_a_name_is_not_shown(here: Site) -> None:
    """Another project's job, and why it failed, are not the new dataset's."""
    alpha, beta = here.token("a", project="alpha"), here.token("b", project="beta")
    here.make("hidden-lab", token=alpha)
    here.make("other-lab", token=beta)
    made = here.ask("POST", "/v1/datasets?wait=60", {"name": "d", "source": "lab:hidden-lab"},
                    token=alpha)  # fmt: skip
    assert made.status_code == 201, made.text
    here.ask("DELETE", "/v1/labs/hidden-lab?wait=60", token=alpha)
    failed = here.ask("POST", "/v1/datasets/d/refresh?wait=60", token=alpha)
    assert failed.status_code == 404
    assert here.ask("GET", "/v1/datasets/d", token=alpha).json()["last_refresh"]["error"]
    here.ask("DELETE", "/v1/datasets/d?wait=60", token=alpha)
    made = here.ask("POST", "/v1/datasets?wait=60", {"name": "d", "source": "lab:other-lab"},
                    token=beta)  # fmt: skip
    assert made.status_code == 201, made.text
    assert made.json()["last_refresh"] is None
    shown = [here.ask("GET", f"/v1/images/mariadb-d.{number}", token=alpha) for number in (2, 7)]
    assert [one.status_code for one in shown] == [404, 404]
    assert len({one.json()["hint"] for one in shown}) == 1
    again = here.ask("POST", "/v1/datasets/d/refresh?wait=60", token=beta)
    assert again.json()["last_refresh"]["state"] == "succeeded"


def test_images_and_templates_of_others(here: Site) -> None:
    """Their names can be guessed: nothing tells one that is hidden from one that is not there."""
    alpha, beta = here.token("a", project="alpha"), here.token("b", project="beta")
    here.make("hidden-lab", token=alpha)
    asked = {"name": "d", "source": "lab:hidden-lab"}
    made = here.ask("POST", "/v1/datasets?wait=60", asked, token=alpha)
    image = made.json()["versions"][0]["image"]
    here.make("of-it", token=alpha, dataset="d")
    there = here.ask("GET", "/v1/templates").json()
    hidden = next(one["key"] for one in there if one["image"] == image)
    others = [one["key"] for one in there if one["image"] != image]
    absent = next(digit for digit in "0123456789abcdef" if digit not in {key[0] for key in others})

    def said(method: str, path: str, body: dict[str, Any] | None, name: str) -> tuple[Any, ...]:
        answer = here.ask(method, path.format(name), body, token=beta)
        problem = answer.json()
        texts = (problem.get("detail", ""), problem.get("hint"), problem.get("job"))
        return (answer.status_code, *(text and text.replace(name, "@") for text in texts))

    no_image = {said("GET", "/v1/images/{}", None, name) for name in (image, "mariadb-none.1")}
    no_image |= {
        said("POST", path, {**BODY, "image": name}, name)
        for path in ("/v1/labs", "/v1/preview")
        for name in (image, "mariadb-none.1", "mariadb-d")
    }
    assert len(no_image) == 1, no_image
    assert next(iter(no_image))[0] == 404
    no_template = {
        said("GET", "/v1/templates/{}", None, name)
        for name in (hidden, hidden[:13], absent * 14, absent)
    }
    assert len(no_template) == 1, no_template
    of_recipe = here.ask("POST", "/v1/preview", {**BODY, "image": "mariadb"}, token=beta)
    assert of_recipe.status_code == 200, of_recipe.text


def test_a_lease_that_is_too_long_is_beyond_a_limit(here: Site) -> None:
    """As other quotas: 429, with hours, and whose limit it is."""
    body = {**BODY, "ttl": "9h"}
    answer = here.ask("POST", "/v1/labs", body, token=here.token(ttl=3600.0))
    assert answer.status_code == 429, answer.text
    detail = answer.json()["detail"]
    assert detail == "a lease is limited to 1h for this token, 9h was requested"
    answer = here.ask("POST", "/v1/labs", body, token=here.token("other"))
    assert answer.json()["detail"] == "a lease is limited to 2h by this service, 9h was requested"
