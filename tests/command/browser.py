# SPDX-License-Identifier: MIT
"""Shared by the tests of the page: a browser, and the pages that it opens.

The browser is Debian's chromium, driven by playwright. Any request to a network is an error.
"""

from __future__ import annotations

import importlib.util
import shutil
import tempfile
import unittest
from pathlib import Path
from typing import Any

from common import here

from known_tables import orders

from rouse.tables import parquet

CHROMIUM = "/usr/bin/chromium"
FLAGS = (
    *("--no-sandbox", "--disable-gpu", "--disable-quic", "--no-first-run", "--disable-sync"),
    *("--disable-background-networking", "--disable-component-update"),
)
MARKUP = "<img src=x onerror=alert(1)>&amp;</script><b>\x1b"


def not_run() -> str:
    if not Path(CHROMIUM).exists():
        return f"{CHROMIUM} is not installed"
    if importlib.util.find_spec("playwright") is None:
        return "the Python package playwright is not in build/venv"
    return ""


class Case(unittest.TestCase):
    place: Path
    browser: Any
    driver: Any

    @classmethod
    def setUpClass(cls) -> None:
        from playwright.sync_api import sync_playwright

        cls.place = Path(tempfile.mkdtemp(prefix="rouse-page-"))
        cls.addClassCleanup(shutil.rmtree, cls.place, ignore_errors=True)
        cls.driver = sync_playwright().start()
        cls.addClassCleanup(cls.driver.stop)
        cls.browser = cls.driver.chromium.launch_persistent_context(
            str(cls.place / "profile"), executable_path=CHROMIUM, headless=True, args=list(FLAGS)
        )
        cls.addClassCleanup(cls.browser.close)

    def setUp(self) -> None:
        self.wrong: list[str] = []

    def open(self, made: dict[str, Any], *words: str) -> Any:
        """Open the page of these tables, and collect the browser's errors."""
        file = self.place / f"{self.id()}.html"
        self.write(made, file, *words)
        return self.look_at(file)

    def open_orders(self) -> Any:
        """Open the page of the unchanged tables, which is made only once."""
        file = self.place / "orders.html"
        if not file.exists():
            self.write(orders(), file)
        return self.look_at(file)

    def write(self, made: dict[str, Any], file: Path, *words: str) -> None:
        folder = self.place / "tables"
        shutil.rmtree(folder, ignore_errors=True)
        parquet.write(made, folder)
        done = here("report", folder, "--format", "html", "-o", file, *words)
        self.assertEqual((done.returncode, done.stdout, done.stderr), (0, "", ""))

    def look_at(self, file: Path) -> Any:
        page = self.browser.new_page()
        self.addCleanup(page.close)
        page.on("console", lambda message: self.wrong.append(f"console: {message.text}"))
        page.on("pageerror", lambda error: self.wrong.append(f"error: {error}"))
        page.on("dialog", lambda dialog: self.wrong.append(f"dialog: {dialog.message}"))
        asked: list[str] = []
        page.on("request", lambda request: asked.append(request.url))
        page.goto(file.as_uri())
        page.wait_for_selector("body[data-ready]")
        self.asked = asked
        self.address = file.as_uri()
        return page

    def tearDown(self) -> None:
        self.assertEqual(self.wrong, [])
        outside = [url for url in self.asked if not url.startswith(("data:", "blob:"))]
        self.assertEqual(outside, [self.address])

    @staticmethod
    def choose(page: Any, key: str) -> None:
        page.locator(f"#tabs button[data-key={key}]").click()
