#!/usr/bin/env python3
# SPDX-License-Identifier: MIT
"""The README's commands work when pasted, unchanged and in order, in a clean HOME."""

from __future__ import annotations

import os
import re
import shutil
import socket
import subprocess
import sys
import tempfile
import unittest
from pathlib import Path

from installed import SOURCE, skip_without

PORT = 7777  # the port in the README
WORDS_MOST = 900
LINES_MOST = 12  # lines of the echo server
LIMIT_S = 540

TEXT = (SOURCE / "README.md").read_text(encoding="utf-8")


def blocks() -> list[str]:
    return re.findall(r"^```sh\n(.*?)^```$", TEXT, flags=re.DOTALL | re.MULTILINE)


def plain_environment(home: Path) -> dict[str, str]:
    """The environment of a fresh login, without the variables of make, meson and these tests."""
    ours = r"(ROUSE_|MAKE|MFLAGS|MESON|PKG_CONFIG|LD_LIBRARY_PATH|DESTDIR|PREFIX|CC$)"
    kept = {name: value for name, value in os.environ.items() if not re.match(ours, name)}
    # Do not download the command's packages again for each HOME.
    cache = os.environ.get("PIP_CACHE_DIR") or str(Path.home() / ".cache" / "pip")
    return {**kept, "HOME": str(home), "PIP_CACHE_DIR": cache}


class Readme(unittest.TestCase):
    def test_it_is_short(self) -> None:
        self.assertLessEqual(len(TEXT.split()), WORDS_MOST)
        server = re.findall(r"<<'END'\n(.*?)^END$", TEXT, re.DOTALL | re.MULTILINE)
        self.assertEqual([len(lines.splitlines()) <= LINES_MOST for lines in server], [True])

    def test_its_commands_work_when_pasted(self) -> None:
        with socket.socket() as probe:
            try:
                probe.bind(("127.0.0.1", PORT))
            except OSError:
                print(f"not run: port {PORT} of the README is in use")
                sys.exit(77)
        with tempfile.TemporaryDirectory() as folder:
            home = Path(folder)
            checkout = home / "rouse"
            caches = shutil.ignore_patterns("build", ".git", "__pycache__", ".*_cache")
            shutil.copytree(SOURCE, checkout, symlinks=True, ignore=caches)
            before = {path for path in checkout.rglob("*") if "__pycache__" not in path.parts}
            # -m: each job gets its own process group and default signals, as at a terminal.
            first = "trap 'kill $(jobs -p) 2>/dev/null || true' EXIT\nset -meux\n"
            result = subprocess.run(
                ["bash", "-c", first + "".join(blocks())],
                cwd=checkout,
                env=plain_environment(home),
                stdin=subprocess.DEVNULL,
                capture_output=True,
                text=True,
                timeout=LIMIT_S,
            )
            output = f"{result.stdout}\n{result.stderr}"
            self.assertEqual(result.returncode, 0, output)
            # The report of `rouse run` names the line that waits and the lock.
            self.assertRegex(output, r"(?m)^.*cache_lock .*one_lock\.c:\d+ ", output)
            rates = re.findall(r"^100 connections: (\d+) round trips", result.stdout, re.MULTILINE)
            self.assertEqual([int(rate) > 0 for rate in rates], [True], output)
            # `rouse report` reads the echo server.
            self.assertRegex(result.stdout, r"(?m)^echo \d+, still running: ", output)
            left = {path for path in checkout.rglob("*") if "__pycache__" not in path.parts}
            fresh = {path.relative_to(checkout).parts[0] for path in left - before}
            self.assertEqual(fresh, {"build"}, "the checkout stays as it was")
            self.assertLessEqual(before, left)


if __name__ == "__main__":
    skip_without("make", "meson", "pkg-config", "bash", "cc")
    unittest.main(verbosity=2)
