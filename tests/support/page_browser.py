"""A real Chromium before ``lab serve`` on the fakes."""

from __future__ import annotations

import os
from collections.abc import Iterator
from contextlib import contextmanager
from shutil import which
from typing import Any

from playwright.sync_api import Browser, Page, sync_playwright

from tests.support.serve_process import Serving
from tests.support.serve_world import BODY

CHROMIUM = which("chromium")
NEEDED = "Chromium is not installed: `make setup-tests`, or apt-get install chromium"


@contextmanager
def chromium() -> Iterator[Browser]:
    """The browser of the distribution, without a window."""
    flags = ["--disable-dev-shm-usage", "--disable-gpu"]
    flags += ["--no-sandbox"] if os.geteuid() == 0 else []  # it refuses to be root in one
    with sync_playwright() as driver:
        found = driver.chromium.launch(executable_path=CHROMIUM, args=flags, timeout=60_000)
        try:
            yield found
        finally:
            found.close()


@contextmanager
def window(browser: Browser, here: Serving, token: str = "", **wanted: Any) -> Iterator[Page]:
    """A new window, signed in (with the administrator's token, or not at all if it is ``-``).

    Whatever its pages complain of, such as what the policy forbids, is an error.
    """
    context = browser.new_context(base_url=here.url, **wanted)
    context.set_default_timeout(10_000)
    page = context.new_page()
    complaints: list[str] = []
    page.on("pageerror", lambda error: complaints.append(str(error)))
    page.on("console", lambda said: complaints.append(said.text) if serious(said) else None)
    try:
        page.goto("/")
        if token != "-":
            page.get_by_label("Token").fill(token or here.token)
            page.get_by_role("button", name="Sign in").click()
            page.get_by_role("heading", name="Labs", exact=True).wait_for()
        yield page
        assert complaints == []
    finally:
        context.close()


def tab_to(page: Page, wanted: str) -> None:
    """Press Tab, as a user does, until the element with that id has the focus; each is seen."""
    for _ in range(60):
        page.keyboard.press("Tab")
        at = page.evaluate(
            "() => { const at = document.activeElement, box = at.getBoundingClientRect();"
            " return {id: at.id, seen: box.width > 0 && box.height > 0,"
            " ring: getComputedStyle(at).outlineStyle} }"
        )
        assert at["seen"], at
        assert at["ring"] != "none", at
        if at["id"] == wanted:
            return
    raise AssertionError(f"Tab does not lead to {wanted}")


def serious(said: Any) -> bool:
    """Whether a line of the console reports a fault; a refusal or a redirect to sign in is none."""
    refused = ("status of", "EventSource's response has a MIME type")
    return said.type == "error" and not any(text in said.text for text in refused)


def make(here: Serving, name: str, **asked: Any) -> dict[str, Any]:
    """A lab made through the API."""
    answer = here.ask("POST", "/v1/labs?wait=30", {**BODY, "name": name, **asked})
    assert answer.status_code == 201, answer.text
    found: dict[str, Any] = answer.json()
    return found
