"""Schemathesis: what the document promises is what the service does, whatever is sent."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

import pytest
import schemathesis
from hypothesis import HealthCheck, Phase, given, settings
from schemathesis.checks import not_a_server_error
from schemathesis.core.result import Ok
from schemathesis.specs.openapi.checks import positive_data_acceptance

from tests.support.serve_world import MEMORY, Site, site


@pytest.fixture(scope="module")
def here(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Site]:
    with site(tmp_path_factory.mktemp("serve"), memory=2 * MEMORY) as found:
        found.make("shop")  # the name in the examples; there is no room for more
        yield found


# The service works in other threads of this process, and draws random numbers there.
@pytest.mark.filterwarnings("ignore:Do not use the .random. module")
@pytest.mark.parametrize("examples", [3, pytest.param(12, marks=pytest.mark.rare)])
def test_the_service_does_what_its_document_says(here: Site, examples: int) -> None:
    """Protects clients made from the document: each answer, 5xx too, is as documented."""
    document = here.ask("GET", "/openapi.json").json()
    schema = schemathesis.openapi.from_dict(document)
    found = [one for one in schema.get_all_operations() if isinstance(one, Ok)]
    operations = [one.ok() for one in found]
    assert len(operations) > 25
    headers = {"Authorization": f"Bearer {here.admin}"}
    for operation in operations:

        @given(case=operation.as_strategy())
        @settings(
            max_examples=examples,
            deadline=None,
            database=None,
            derandomize=True,
            suppress_health_check=list(HealthCheck),
            phases=[Phase.explicit, Phase.generate],
        )
        def check(case: schemathesis.Case[Any]) -> None:
            answer = case.call(base_url=str(here.client.base_url), headers=headers, timeout=20)
            # A blueprint that there is not has the form of one: to refuse it is right. So is 504
            # where an earlier request has stopped a node; whether it is documented is a check.
            excluded = [positive_data_acceptance]
            stopped = answer.status_code == 504 and " does not run" in answer.json()["detail"]
            excluded += [not_a_server_error] if stopped else []
            case.validate_response(answer, excluded_checks=excluded)

        check()
