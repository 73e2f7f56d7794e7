#!/usr/bin/env python3
# SPDX-License-Identifier: MIT
"""Make the pictures of docs/pictures from real runs: top.svg and report.png.

Both show rouse-serve, whose connections share a lock, under 24 connections of wrk. The script needs
build/venv with the packages of `make check`, wrk and Debian's chromium.
"""

from __future__ import annotations

import argparse
import asyncio
import contextlib
import os
import re
import subprocess
import sys
import tempfile
from collections.abc import Iterator
from pathlib import Path

ROOT = Path(__file__).resolve().parent.parent
VENV = ROOT / "build" / "venv"
SERVE = ("--respond", "hi", "--workers", "2", "--shared-lock", "20", "--port", "0")
CHROMIUM = "/usr/bin/chromium"
TOP_SIZE = (92, 16)
RECORD_S = 8


@contextlib.contextmanager
def running(program: Path, folder: Path) -> Iterator[int]:
    """Start a server under constant load; return its process id."""
    environment = {**os.environ, "ROUSE_OBS_DIR": str(folder)}
    with subprocess.Popen(
        ["rouse-serve", *SERVE],
        executable=program,
        stdout=subprocess.PIPE,
        text=True,
        env=environment,
    ) as server:
        assert server.stdout
        address = re.findall(r"http://\S+", server.stdout.readline())[0]
        wrk = ["wrk", "-t1", "-c24", "-d600", address]
        with subprocess.Popen(wrk, stdout=subprocess.DEVNULL) as client:
            try:
                yield server.pid
            finally:
                client.kill()
                server.kill()


def picture_top(pid: int, file: Path) -> None:
    """Draw the second sample, because percentages need an interval."""
    from rouse.top import live, rowtext, watched

    async def whole() -> str:
        app = live.Top(watched.Watched([str(pid)]), rowtext.Wanted(), 3600)
        async with app.run_test(size=TOP_SIZE) as pilot:
            await asyncio.sleep(3)
            app.look()
            await pilot.pause()
            return app.export_screenshot(title="rouse top")

    file.write_text(asyncio.run(whole()), encoding="utf-8")


def rouse(*words: str | Path) -> None:
    environment = {**os.environ, "PYTHONPATH": str(ROOT)}
    subprocess.run([sys.executable, "-m", "rouse", *words], check=True, env=environment)


def picture_report(pid: int, place: Path, file: Path) -> None:
    from playwright.sync_api import sync_playwright

    os.chdir(place)  # the page shows the file's name as given
    rouse("record", "-o", "serve.rouse", "--seconds", str(RECORD_S), str(pid))
    rouse("report", "serve.rouse", "--format", "html", "-o", "page.html")
    with sync_playwright() as driver:
        browser = driver.chromium.launch(executable_path=CHROMIUM, args=["--no-sandbox"])
        page = browser.new_page(viewport={"width": 1180, "height": 1000})
        page.goto((place / "page.html").as_uri())
        page.wait_for_selector("body[data-ready]")
        page.mouse.move(0, 0)
        page.screenshot(path=str(file))
        browser.close()


def main() -> int:
    parser = argparse.ArgumentParser(description=(__doc__ or "").split("\n", 1)[0])
    parser.add_argument("--serve", type=Path, default=ROOT / "build" / "bin" / "rouse-serve")
    parser.add_argument("--to", type=Path, default=ROOT / "docs" / "pictures", metavar="FOLDER")
    options = parser.parse_args()
    to, serve = options.to.resolve(), options.serve.resolve()
    with tempfile.TemporaryDirectory() as name:
        folder = Path(name) / "recordings"
        with running(serve, folder) as pid:
            os.environ["ROUSE_OBS_DIR"] = str(folder)
            picture_top(pid, to / "top.svg")
            picture_report(pid, Path(name), to / "report.png")
    return 0


if __name__ == "__main__":
    if Path(sys.prefix).resolve() != VENV.resolve():
        python = str(VENV / "bin" / "python")
        os.execv(python, [python, *sys.argv])
    sys.path.insert(0, str(ROOT))
    sys.exit(main())
