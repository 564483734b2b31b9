"""The system's Chromium, driven by Playwright (https://playwright.dev/python/)."""

from __future__ import annotations

import shutil
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Literal

from axe_playwright_python.sync_playwright import Axe
from playwright.sync_api import Browser, Page, sync_playwright

HEIGHT = 900


def find_chromium() -> str | None:
    return shutil.which("chromium")


@contextmanager
def start_browser() -> Iterator[Browser]:
    with sync_playwright() as playwright:
        # --no-sandbox: root cannot use it
        browser = playwright.chromium.launch(executable_path=find_chromium(), args=["--no-sandbox"])
        yield browser
        browser.close()


@contextmanager
def open_tab(
    browser: Browser, url: str, width: int = 1280, scheme: Literal["light", "dark"] = "light"
) -> Iterator[Page]:
    tab = browser.new_page(viewport={"width": width, "height": HEIGHT}, color_scheme=scheme)
    try:
        tab.goto(url)
        yield tab
    finally:
        tab.close()


def take_picture(tab: Page, file: Path) -> None:
    """Of the whole page."""
    tab.screenshot(path=file, full_page=True)


def list_violations(tab: Page) -> list[str]:
    """What axe-core (https://github.com/dequelabs/axe-core) reports, with the element."""
    found = Axe().run(tab, options={"resultTypes": ["violations"]}).response["violations"]
    return [
        f"{rule['id']}: {node['html'][:200]}: {node['failureSummary']}"
        for rule in found
        for node in rule["nodes"]
    ]
