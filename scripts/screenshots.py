#!/usr/bin/env python3
"""Take the pictures of docs/web.md again: Chromium before `lab serve`, on the fakes.

`make venv-dev setup-tests`, then `.venv/bin/python scripts/screenshots.py`.
"""

import sys
import tempfile
from pathlib import Path

from playwright.sync_api import ViewportSize

ROOT = Path(__file__).parents[1]
sys.path.insert(0, str(ROOT))

from tests.support.page_browser import chromium, make, window  # noqa: E402
from tests.support.serve_process import environment, serving  # noqa: E402

PICTURES = ROOT / "docs" / "img"
WIDE = ViewportSize(width=900, height=760)
TALL = ViewportSize(width=900, height=1100)
NARROW = ViewportSize(width=400, height=760)


def main() -> None:
    """Make some labs, and take a picture of each kind of page."""
    PICTURES.mkdir(exist_ok=True)
    with (
        tempfile.TemporaryDirectory(prefix="lab-pictures-") as scratch,
        serving(environment(Path(scratch))) as here,
        chromium() as browser,
    ):
        make(here, "shop", blueprint="pxc", nodes=3, ttl=7200)
        made = make(here, "orders", nodes=3)
        here.ask("POST", "/v1/labs/orders/nodes/n3/kill?wait=20")
        make(here, "billing", nodes=1, ttl=1800)
        with window(browser, here, viewport=WIDE) as page:
            page.screenshot(path=PICTURES / "labs.png")
            page.goto("/labs/shop")
            page.locator("#connect summary").click()
            page.set_viewport_size(TALL)
            page.screenshot(path=PICTURES / "lab.png")
            here.ask("POST", "/v1/labs/shop/snapshots?wait=20", {"name": "before-upgrade"})
            here.ask("POST", "/v1/labs/shop/branches?wait=20", {"at": "before-upgrade"})
            page.goto("/labs/shop/snapshots")
            page.locator("[id^='back-before-upgrade'] summary").click()
            page.set_viewport_size(WIDE)
            page.screenshot(path=PICTURES / "snapshots.png")
            body = {"name": "shop-data", "source": "lab:shop", "keep": 3}
            here.ask("POST", "/v1/datasets?wait=20", body)
            make(here, "experiment", dataset="shop-data")
            page.goto("/datasets")
            page.screenshot(path=PICTURES / "datasets.png")
        with window(browser, here, viewport=NARROW, color_scheme="dark") as page:
            page.goto(f"/jobs/{made['job']}")
            page.screenshot(path=PICTURES / "job.png")


if __name__ == "__main__":
    main()
