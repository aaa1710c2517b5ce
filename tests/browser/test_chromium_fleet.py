"""The pages of a fleet in a real Chromium: by keyboard, and live."""

from __future__ import annotations

from collections.abc import Iterator

import pytest
from playwright.sync_api import Browser, expect

from lab.fleet.database import migrate
from tests.support.fleet_process import Fleet, up
from tests.support.page_browser import CHROMIUM, NEEDED, chromium, tab_to, window
from tests.support.postgres_server import NEEDED as POSTGRES_NEEDED
from tests.support.postgres_server import postgres, programs

pytestmark = [
    pytest.mark.skipif(CHROMIUM is None, reason=NEEDED),
    pytest.mark.skipif(programs() is None, reason=POSTGRES_NEEDED),
    pytest.mark.rare,
]

LIVE = 10_000
"""Milliseconds within which news of another host must be seen."""


@pytest.fixture(scope="module")
def fleet(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Fleet]:
    """Two hosts, of which the second has a lab."""
    with postgres() as database:
        migrate(database.url)
        found = Fleet(tmp_path_factory.mktemp("fleet"), database.url)
        try:
            for name in ("h1", "h2"):
                found.start(name)
            up(found.hosts["h1"], "far", on="h2")
            yield found
        finally:
            found.close()


@pytest.fixture(scope="module")
def browser() -> Iterator[Browser]:
    with chromium() as found:
        yield found


def test_hosts_are_seen_and_drained_with_the_keyboard(browser: Browser, fleet: Fleet) -> None:
    """Protects who keeps a fleet and has no mouse; and from pages that the policy breaks."""
    with window(browser, fleet.hosts["h1"]) as page:
        page.get_by_role("link", name="Hosts").click()
        expect(page.get_by_role("meter", name="Memory for labs of h2")).to_be_visible()
        state = page.locator("#host-h2 .state")
        expect(state).to_have_text("up")
        tab_to(page, "drain-h2")
        page.keyboard.press("Enter")
        expect(state).to_have_text("draining", timeout=LIVE)
        fleet.hosts["h2"].ask("POST", "/v1/hosts/h2/undrain")
        expect(state).to_have_text("up", timeout=LIVE)


def test_a_lab_of_another_host_is_live(browser: Browser, fleet: Fleet) -> None:
    """Protects who looks at a lab: its page is the same wherever it is."""
    with window(browser, fleet.hosts["h1"]) as page:
        page.get_by_role("link", name="far", exact=True).click()
        state = page.locator("#lab h1 .state")
        expect(state).to_have_text("ready")
        fleet.hosts["h2"].ask("POST", "/v1/labs/far/stop?wait=30")
        expect(state).to_have_text("stopped", timeout=LIVE)
        page.locator("#all-start").click()
        expect(state).to_have_text("ready", timeout=LIVE)
        page.locator("#jobs a").first.click()
        expect(page.locator("#job h1")).to_contain_text("start far")
