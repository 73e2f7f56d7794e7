#!/usr/bin/env python3
# SPDX-License-Identifier: MIT
"""The README's way to an echo server: its commands and its program, run as they stand there.

They run in a copy of the sources and a home of their own. Two things differ: the ports are free
ones, and after a server's start it is waited for, as whoever types has no need to.
"""

from __future__ import annotations

import contextlib
import os
import re
import shutil
import socket
import subprocess
import tempfile
import unittest
from pathlib import Path

from installed import SOURCE, skip_without

SECTION = "Ten minutes to your own echo server"
PORTS = ("7777", "7778")
LIMIT_S = 540


def section() -> str:
    text = (SOURCE / "README.md").read_text(encoding="utf-8")
    found = re.search(rf"^## {SECTION}\n(.*?)^## ", text, re.DOTALL | re.MULTILINE)
    assert found
    return found[1]


def script() -> str:
    """The section's commands, its files written where the text says so."""
    lines: list[str] = []
    pieces = re.split(r"^```(\w+)\n(.*?)^```\n", section(), flags=re.DOTALL | re.MULTILINE)
    for text, language, code in zip(pieces[0::3], pieces[1::3], pieces[2::3], strict=False):
        if language == "sh":
            lines.append(code)
        else:
            name = re.findall(r"Save this as `(.+?)`", text)[-1]
            lines.append(f"cat >{name} <<'END OF FILE'\n{code}END OF FILE\n")
    return "".join(lines)


def with_free_ports(commands: str) -> str:
    with contextlib.ExitStack() as stack:
        for port in PORTS:
            probe = stack.enter_context(socket.socket())
            probe.bind(("127.0.0.1", 0))
            free = str(probe.getsockname()[1])
            up = f"until (exec 4<>/dev/tcp/127.0.0.1/{free}); do kill -0 $server; sleep 0.05; done"
            start = rf"^(.* {port} & server=\$!)$"
            commands, count = re.subn(start, rf"\1\n{up}", commands, flags=re.MULTILINE)
            assert count == 1
            commands = commands.replace(port, free)
    return commands


def plain_environment(home: Path) -> dict[str, str]:
    """That of a login, without what make, meson and these tests have set."""
    kept = {
        name: value
        for name, value in os.environ.items()
        if not re.match(r"(ROUSE_|MAKE|MFLAGS|MESON|PKG_CONFIG|LD_LIBRARY_PATH|DESTDIR|CC$)", name)
    }
    # The packages of the command need not be fetched again for each home.
    cache = os.environ.get("PIP_CACHE_DIR") or str(Path.home() / ".cache" / "pip")
    return {**kept, "HOME": str(home), "PIP_CACHE_DIR": cache}


class Readme(unittest.TestCase):
    def test_its_commands_lead_to_an_echo_server(self) -> None:
        with tempfile.TemporaryDirectory() as folder:
            home = Path(folder)
            checkout = home / "checkout"
            caches = shutil.ignore_patterns("build", ".git", "__pycache__", ".*_cache")
            shutil.copytree(SOURCE, checkout, symlinks=True, ignore=caches)
            # -m: as at a terminal; without it bash starts its jobs with SIGQUIT ignored.
            commands = "trap 'kill $(jobs -p) 2>/dev/null || true' EXIT\nset -meux\n" + script()
            result = subprocess.run(
                ["bash", "-c", with_free_ports(commands)],
                cwd=checkout,
                env=plain_environment(home),
                stdin=subprocess.DEVNULL,
                capture_output=True,
                text=True,
                timeout=LIMIT_S,
            )
            told = f"{result.stdout}\n{result.stderr}"
            self.assertEqual(result.returncode, 0, told)
            self.assertRegex(result.stdout, r"(?m)^hello$", told)
            rates = re.findall(r"^100 connections: (\d+) round trips", result.stdout, re.MULTILINE)
            self.assertEqual(len([rate for rate in rates if int(rate) > 0]), 2, told)
            # SIGQUIT's list: the connection of the "hello" still stands.
            self.assertIn('"connection"', result.stderr, told)


if __name__ == "__main__":
    skip_without("make", "meson", "pkg-config", "bash", "cc")
    unittest.main()
