"""The web page in a real Chromium: live, with the keyboard alone, narrow, and without a script."""

from __future__ import annotations

import re
from collections.abc import Iterator
from pathlib import Path

import pytest
from playwright.sync_api import Browser, Page, expect

from lab.names import GuestName
from lab.paths import Home
from tests.support.page_browser import CHROMIUM, NEEDED, chromium, make, tab_to, window
from tests.support.serve_process import Serving, environment, serving

pytestmark = pytest.mark.skipif(CHROMIUM is None, reason=NEEDED)

LIVE = 5_000
"""Milliseconds within which news must be seen: sooner than the page looks on its own."""


@pytest.fixture(scope="module")
def home(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return tmp_path_factory.mktemp("page")


@pytest.fixture(scope="module")
def here(home: Path) -> Iterator[Serving]:
    with serving(environment(home)) as found:
        yield found


@pytest.fixture(scope="module")
def browser() -> Iterator[Browser]:
    with chromium() as found:
        yield found


def mark(page: Page) -> None:
    """Leave a mark that a reload would wipe."""
    page.evaluate("() => { window.mark = 1 }")


def marked(page: Page) -> bool:
    return bool(page.evaluate("() => window.mark === 1"))


def read_log(page: Page, log: Path) -> None:
    """From the page of a node's logs: its console, which is given something to tell."""
    log.parent.mkdir(parents=True, exist_ok=True)
    log.write_text("Linux version <6.12>\n" + "line\n" * 500 + "login:\n")
    page.get_by_role("link", name="console").press("Enter")
    expect(page.locator("#log")).to_contain_text("login:")
    assert page.locator("#log").evaluate("one => one.scrollTop") > 0  # the latest is in sight
    page.get_by_role("link", name="2000 lines").press("Enter")
    expect(page.locator("#log")).to_contain_text("Linux version <6.12>")


def test_the_whole_way_with_the_keyboard(browser: Browser, here: Serving, home: Path) -> None:
    """Protects who has no mouse: from signing in to signing out, every stop in sight."""
    with window(browser, here, "-", permissions=["clipboard-read", "clipboard-write"]) as page:
        expect(page.get_by_label("Token")).to_be_focused()
        page.keyboard.type(here.token)
        page.keyboard.press("Enter")
        expect(page.get_by_text("There are no labs.")).to_be_visible()
        tab_to(page, "nodes")
        page.keyboard.press("Control+A")
        page.keyboard.type("2")
        tab_to(page, "name")
        page.keyboard.type("keys")
        page.keyboard.press("Enter")
        expect(page).to_have_url(re.compile("/jobs/"))
        mark(page)
        expect(page.get_by_role("link", name="The lab keys")).to_be_visible(timeout=15_000)
        expect(page.locator("#job h1 .state")).to_have_text("succeeded", timeout=LIVE)
        assert marked(page)
        tab_to(page, "its-lab")
        page.keyboard.press("Enter")
        expect(page.locator("#lab h1 .state")).to_have_text("ready")

        made = here.ask("GET", "/v1/labs/keys").json()
        dsn = made["connection"]["dsn"]
        expect(page.get_by_text(dsn)).not_to_be_visible()
        page.get_by_text("Show connection strings").focus()
        page.keyboard.press("Enter")
        expect(page.get_by_text(dsn)).to_be_visible()
        tab_to(page, "copy-1")
        page.keyboard.press("Enter")
        expect(page.get_by_role("status")).to_have_text("DSN copied")
        assert page.evaluate("() => navigator.clipboard.readText()") == dsn

        tab_to(page, "n1-logs")
        page.keyboard.press("Enter")
        expect(page.get_by_role("heading", name="Logs of keys n1")).to_be_visible()
        read_log(page, Home(home / "home").console_log(GuestName(made["nodes"][0]["guest"])))
        page.get_by_role("link", name="keys").press("Enter")

        page.locator("#delete summary").focus()
        page.keyboard.press("Enter")
        tab_to(page, "really")
        page.keyboard.press("Enter")
        expect(page.get_by_text("The lab is removed.")).to_be_visible(timeout=15_000)
        page.get_by_role("button", name="Sign out").press("Enter")
        expect(page.get_by_role("heading", name="Sign in")).to_be_visible()
        page.goto("/")
        expect(page.get_by_label("Token")).to_be_focused()


def test_news_come_without_a_reload(browser: Browser, here: Serving) -> None:
    """Protects who watches, types or has the focus somewhere: news change nothing else."""
    with window(browser, here) as page:
        make(here, "first")
        mark(page)
        first = page.locator("#labs article", has_text="first")
        expect(first.locator("h2 .state")).to_have_text("ready", timeout=LIVE)
        expect(page.get_by_role("status")).to_contain_text("first: ready")

        page.locator("#new").evaluate("one => one.open = true")
        page.get_by_label("Name").fill("half-typ")
        box = page.get_by_label("Name").bounding_box()
        make(here, "second")
        expect(page.locator("#lab-second")).to_be_visible(timeout=LIVE)
        expect(page.get_by_label("Name")).to_have_value("half-typ")
        expect(page.get_by_label("Name")).to_be_focused()
        assert page.get_by_label("Name").bounding_box() == box

        page.locator("#delete-second summary").focus()
        page.keyboard.press("Enter")
        tab_to(page, "really-second")
        assert here.ask("DELETE", "/v1/labs/first?wait=20").status_code == 204
        expect(page.locator("#lab-first")).not_to_be_visible(timeout=LIVE)
        expect(page.locator("#really-second")).to_be_focused()
        expect(page.get_by_role("status")).to_contain_text("first: removed")

        page.locator("#lab-second").click()
        mark(page)
        page.locator("#connect summary").click()
        here.ask("POST", "/v1/labs/second/nodes/n2/kill?wait=20")
        node = page.locator("#nodes li", has_text="n2")
        expect(node.locator(".state")).to_have_text("stopped", timeout=LIVE)
        expect(page.locator("#lab h1 .state")).to_have_text("not-primary")
        expect(page.locator("#string-1")).to_be_visible()
        assert marked(page)
        node.get_by_role("button", name="Start").click()
        expect(page.locator("#lab h1 .state")).to_have_text("ready", timeout=15_000)
        mark(page)
        here.ask("DELETE", "/v1/labs/second?wait=20")
        expect(page.get_by_text("there is no lab")).to_be_visible(timeout=LIVE)
        assert marked(page)


def test_marked_text_stays_marked(browser: Browser, here: Serving) -> None:
    """Protects who copies an address by hand: news wait until that is done."""
    make(here, "copied")
    with window(browser, here) as page:
        page.evaluate(
            "() => getSelection().selectAllChildren(document.querySelector('#labs code'))"
        )
        marked = page.evaluate("() => getSelection().toString()")
        assert marked.startswith("127.0.0.1:")
        with page.expect_response(lambda one: one.url == page.url, timeout=LIVE):
            make(here, "waits")
        expect(page.locator("#jobs")).to_contain_text("create waits", timeout=LIVE)
        assert page.evaluate("() => getSelection().toString()") == marked
        expect(page.locator("#lab-waits")).to_have_count(0)
        page.evaluate("() => getSelection().removeAllRanges()")
        here.ask("DELETE", "/v1/labs/copied?wait=20")
        expect(page.locator("#lab-waits")).to_be_visible(timeout=LIVE)
    here.ask("DELETE", "/v1/labs/waits?wait=20")


def test_a_token_that_was_revoked_leads_out(browser: Browser, here: Serving) -> None:
    """Protects from what stays on the screen: who is shut out sees the sign-in, soon."""
    made = here.ask("POST", "/v1/tokens", {"name": "guest", "project": "p"}).json()
    with window(browser, here, made["text"]) as page:
        expect(page.get_by_text("There are no labs.")).to_be_visible()
        assert here.ask("DELETE", f"/v1/tokens/{made['token']['id']}").status_code == 200
        make(here, "wakes")
        expect(page.get_by_role("heading", name="Sign in")).to_be_visible(timeout=LIVE)
    here.ask("DELETE", "/v1/labs/wakes?wait=20")


def test_a_link_from_another_site(browser: Browser, here: Serving) -> None:
    """Protects who follows a link in a chat: who is signed in is, from there too."""
    text = f'<a href="{here.url}/jobs">the jobs</a>'
    with window(browser, here) as page:
        page.wait_for_function("() => localStorage.getItem('place')")  # set at the end of loading
        page.route(
            "http://chat.example/", lambda one: one.fulfill(body=text, content_type="text/html")
        )
        page.goto("http://chat.example/")
        page.get_by_role("link", name="the jobs").click()
        expect(page.get_by_role("heading", name="Jobs")).to_be_visible()


def test_the_focus_covers_no_hint(browser: Browser, here: Serving) -> None:
    """Protects who reads: the ring around a field ends above the text below it."""
    with window(browser, here, "-") as page:
        field = page.get_by_label("Token")
        expect(field).to_be_focused()
        ring = field.evaluate(
            "one => { const css = getComputedStyle(one);"
            " return parseFloat(css.outlineWidth) + parseFloat(css.outlineOffset) }"
        )
        box, hint = field.bounding_box(), page.locator("#token-hint").bounding_box()
        assert box
        assert hint
        assert box["y"] + box["height"] + ring <= hint["y"]


def test_wrong_tokens_and_reading_ones(browser: Browser, here: Serving) -> None:
    """Protects labs from guests; users see what is wrong."""
    body = {"name": "looker", "project": "p", "scope": "read"}
    reading = here.ask("POST", "/v1/tokens", body).json()["text"]
    user = here.ask("POST", "/v1/tokens", {"name": "user", "project": "p"}).json()["text"]
    lab_of_p = {"blueprint": "galera", "nodes": 1, "name": "seen"}
    sent = {"Authorization": f"Bearer {user}"}
    here.client.post(f"{here.url}/v1/labs?wait=30", json=lab_of_p, headers=sent)
    with window(browser, here, "-") as page:
        page.get_by_label("Token").fill("lab_nonsense")
        page.get_by_role("button", name="Sign in").click()
        expect(page.get_by_role("alert")).to_contain_text("no valid token")
        expect(page.get_by_label("Token")).to_be_focused()
        page.get_by_label("Token").fill(reading)
        page.get_by_role("button", name="Sign in").click()
        expect(page.locator("#lab-seen")).to_be_visible()
        buttons = page.get_by_role("button")
        expect(buttons).to_have_text(["Sign out"])
        page.locator("#lab-seen").click()
        expect(page.get_by_role("heading", name="seen")).to_be_visible()
        expect(buttons).to_have_text(["Sign out"])
        expect(page.get_by_text("connection strings")).to_have_count(0)
        refused = page.evaluate(
            "async () => (await fetch(document.querySelector('main').dataset.base"
            " + '/labs/seen/delete', {method: 'POST'})).status"
        )
        assert refused == 403
    here.ask("DELETE", "/v1/labs/seen?wait=20")


def test_mistakes_are_told_beside_the_form(browser: Browser, here: Serving) -> None:
    """Protects who mistyped: the focus is on what is wrong, and what was typed stays."""
    with window(browser, here) as page:
        page.locator("#new").evaluate("one => one.open = true")
        page.get_by_label("Name").fill("Not A Name")
        page.get_by_role("button", name="Create").click()
        expect(page.get_by_role("alert")).to_be_focused()
        expect(page.get_by_label("Name")).to_have_value("Not A Name")
        expect(page.get_by_label("Name")).to_have_attribute("aria-invalid", "true")
        # The page of a refused form stays live.
        make(here, "later")
        expect(page.locator("#lab-later")).to_be_visible(timeout=LIVE)
        expect(page.get_by_label("Name")).to_have_value("Not A Name")
    here.ask("DELETE", "/v1/labs/later?wait=20")


@pytest.mark.rare
@pytest.mark.parametrize("scheme", ["light", "dark"])
def test_a_narrow_window(browser: Browser, here: Serving, scheme: str) -> None:
    """Protects who has a telephone: nothing sticks out of 400 pixels, in either scheme."""
    made = make(here, f"narrow-{scheme}-with-a-name", nodes=9)
    size = {"width": 400, "height": 800}
    with window(browser, here, viewport=size, color_scheme=scheme) as page:
        dark = page.evaluate("() => getComputedStyle(document.body).backgroundColor")
        assert (dark == "rgb(19, 24, 23)") == (scheme == "dark")
        name = made["name"]
        lab = f"/labs/{name}"
        own = (lab, f"{lab}/nodes/n1/logs", f"{lab}/snapshots", f"/jobs/{made['job']}")
        for path in ("/", "/images", "/templates", *own):
            page.goto(path)
            page.evaluate("() => document.querySelectorAll('details').forEach(d => d.open = true)")
            assert page.evaluate("() => document.documentElement.scrollWidth") <= 400, path
    here.ask("DELETE", f"/v1/labs/{name}?wait=20")


@pytest.mark.rare
def test_the_whole_way_without_a_script(browser: Browser, here: Serving) -> None:
    """Protects who turned scripts off: forms and links do everything."""
    with window(browser, here, java_script_enabled=False) as page:
        page.locator("#new > summary").click() if not page.get_by_label("Name").is_visible() else 0
        page.get_by_label("Name").fill("plain")
        page.get_by_label("Nodes", exact=True).fill("2")
        page.get_by_role("button", name="Create").click()
        # The job's page reloads itself while it runs.
        page.get_by_role("link", name="The lab plain").click(timeout=20_000)
        expect(page.locator("#lab h1")).to_contain_text("plain")
        for _ in range(100):
            if page.locator("#lab h1 .state").inner_text() == "ready":
                break
            page.reload()
        page.get_by_text("Show connection strings").click()
        dsn = here.ask("GET", "/v1/labs/plain").json()["connection"]["dsn"]
        expect(page.get_by_text(dsn)).to_be_visible()
        expect(page.get_by_role("button", name="Copy")).to_have_count(0)
        page.get_by_label("New lease").fill("2h")
        page.get_by_role("button", name="Extend").click()
        expect(page.locator("#lab")).to_contain_text("1h59m")
        page.get_by_role("link", name="Logs of n1").click()
        expect(page.get_by_role("heading", name="Logs of plain n1")).to_be_visible()
        page.get_by_role("link", name="plain").click()
        page.locator("#delete summary").click()
        page.get_by_role("button", name="Delete plain").click()
        expect(page.get_by_text("The lab is removed.")).to_be_visible(timeout=20_000)
        page.get_by_role("button", name="Sign out").click()
        expect(page.get_by_label("Token")).to_be_visible()
