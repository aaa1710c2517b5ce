"""The pages of snapshots and images in a real Chromium: by keyboard, live, and without a script."""

from __future__ import annotations

import re
from collections.abc import Iterator

import pytest
from playwright.sync_api import Browser, Page, expect

from tests.support.page_browser import CHROMIUM, NEEDED, chromium, make, tab_to, window
from tests.support.serve_process import Serving, environment, serving

pytestmark = [pytest.mark.skipif(CHROMIUM is None, reason=NEEDED), pytest.mark.rare]

LIVE = 5_000
"""Milliseconds within which news must be seen."""


@pytest.fixture(scope="module")
def here(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Serving]:
    with serving(environment(tmp_path_factory.mktemp("page"))) as found:
        yield found


@pytest.fixture(scope="module")
def browser() -> Iterator[Browser]:
    with chromium() as found:
        yield found


def back(page: Page, link: str) -> None:
    """From the page of a job, once that has succeeded."""
    expect(page.locator("#job h1 .state")).to_have_text("succeeded", timeout=20_000)
    page.get_by_role("link", name=link).click()


def test_snapshots_with_the_keyboard(browser: Browser, here: Serving) -> None:
    """Protects who has no mouse: taken, gone back to and removed; each is asked about first."""
    make(here, "keys")
    with window(browser, here) as page:
        page.goto("/labs/keys")
        tab_to(page, "its-snapshots")
        page.keyboard.press("Enter")
        expect(page.get_by_role("heading", name="Snapshots of keys")).to_be_visible()
        tab_to(page, "name")
        page.keyboard.press("Control+A")
        page.keyboard.type("first")
        tab_to(page, "take")
        page.keyboard.press("Enter")
        expect(page).to_have_url(re.compile("/jobs/"))
        expect(page.locator("#job h1 .state")).to_have_text("succeeded", timeout=LIVE)
        tab_to(page, "its-snapshots")
        page.keyboard.press("Enter")
        label = here.ask("GET", "/v1/labs/keys/snapshots").json()[-1]["label"]
        expect(page.locator("#snapshots h2").last).to_have_text(label)

        # Another one comes: neither what is open nor the focus is lost.
        back = page.locator(f"[id='back-{label}']")
        back.locator("summary").focus()
        page.keyboard.press("Enter")
        tab_to(page, f"back-{label}-n2")
        here.ask("POST", "/v1/labs/keys/snapshots?wait=20", {"name": "second"})
        expect(page.locator("#snapshots h2").last).to_contain_text("second.", timeout=LIVE)
        expect(page.locator(f"[id='back-{label}-n2']")).to_be_focused()
        page.keyboard.press("Enter")
        expect(page.locator("#job h1 .state")).to_have_text("succeeded", timeout=15_000)
        job = here.ask("GET", "/v1/jobs?kind=rollback").json()["items"][0]
        assert (job["lab"], job["state"]) == ("keys", "succeeded")

        page.goto("/labs/keys/snapshots")
        tab_to(page, f"protect-{label}")
        page.keyboard.press("Enter")
        expect(page.locator("#snapshots")).to_contain_text("protected")
        tab_to(page, f"protect-{label}")
        page.keyboard.press("Enter")
        expect(page.locator("#snapshots")).not_to_contain_text("protected")
        page.locator(f"[id='delete-{label}'] summary").focus()
        page.keyboard.press("Enter")
        tab_to(page, f"really-{label}")
        page.keyboard.press("Enter")
        expect(page.locator("#job h1 .state")).to_have_text("succeeded", timeout=LIVE)
        page.locator("#its-snapshots").press("Enter")
        expect(page.get_by_role("heading", name=label)).to_have_count(0)
    here.ask("DELETE", "/v1/labs/keys?wait=20")


@pytest.mark.rare
def test_images_and_templates_without_a_script(browser: Browser, here: Serving) -> None:
    """Protects who turned scripts off: what the host keeps is seen, built and removed."""
    make(here, "plain")
    with window(browser, here, java_script_enabled=False) as page:
        page.get_by_role("link", name="Images").click()
        image = page.locator("#images article")
        expect(image).to_have_count(1)
        expect(image).to_contain_text("delete these first")
        expect(image.get_by_role("button")).to_have_count(0)
        here.ask("DELETE", "/v1/labs/plain?wait=20")
        page.get_by_role("link", name="Templates").click()
        for _ in range(page.locator("#templates article").count()):
            one = page.locator("#templates article").first
            one.locator("summary").click()
            one.get_by_role("button").click()
            back(page, "All templates")
        expect(page.get_by_text("There are no templates.")).to_be_visible()
        page.get_by_role("link", name="Images").click()
        image.locator("summary").click()
        image.get_by_role("button").click()
        back(page, "All images")
        expect(page.get_by_text("There are no images.")).to_be_visible()
        page.get_by_label("Recipe").select_option("mariadb")
        page.get_by_role("button", name="Build").click()
        back(page, "All images")
        expect(image.locator(".state")).to_have_text("ready")
