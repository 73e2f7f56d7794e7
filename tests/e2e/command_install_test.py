#!/usr/bin/env python3
# SPDX-License-Identifier: MIT
"""The command `rouse`, installed by pip and by `make install-tool`, runs from any folder."""

from __future__ import annotations

import json
import os
import re
import shutil
import subprocess
import sys
import tempfile
import unittest
from pathlib import Path

from installed import SOURCE, UNREACHED, Installed, run, skip_without

PYTHON = "/usr/bin/python3" if Path("/usr/bin/python3").exists() else sys.executable
LIMIT_S = 500


def plain_environment() -> dict[str, str]:
    """The environment without variables that redirect Python or the command."""
    return {n: v for n, v in os.environ.items() if not re.match(r"PYTHON|ROUSE_|VIRTUAL_ENV", n)}


def version() -> str:
    found = re.search(r"version: '([\d.]+)'", (SOURCE / "meson.build").read_text(encoding="utf-8"))
    assert found
    return found[1]


class Folder(unittest.TestCase):
    def setUp(self) -> None:
        holder = tempfile.TemporaryDirectory()
        self.addCleanup(holder.cleanup)
        self.folder = Path(holder.name)

    def leave_out(self, reason: str) -> None:
        print(f"not run: {reason}")
        self.skipTest(reason)

    def check(self, command: Path) -> None:
        """The command runs and finds what its subcommands require."""
        environment = {**plain_environment(), "ROUSE_OBS_DIR": str(self.folder / "none")}
        self.assertIn("top", run(command, "--help", cwd=self.folder, env=environment))
        done = subprocess.run(
            [command, "top", "--batch", "1", "1"],
            capture_output=True,
            text=True,
            env=environment,
            timeout=60,
        )
        self.assertEqual(done.returncode, 3, done.stderr)
        self.assertRegex(done.stderr, r"^rouse: no process of this user records .*\n$")

    def check_run(self, command: Path) -> None:
        """The command finds the interposer, and the interposer finds its library."""
        words = ("run", "--json", "-o", "-", "--", "sleep", "0.01")
        output = json.loads(run(command, *words, cwd=self.folder, env=plain_environment()))
        self.assertEqual([row["kind"] for row in output["sections"]["wakes"]], ["sleep"])


class Pip(Folder):
    def test_pip_installs_the_command_with_the_programs(self) -> None:
        source = self.folder / "source"
        caches = shutil.ignore_patterns("build", ".git", "__pycache__", ".*_cache")
        shutil.copytree(SOURCE, source, ignore=caches)
        venv = self.folder / "venv"
        made = subprocess.run([PYTHON, "-m", "venv", venv], capture_output=True, text=True)
        if made.returncode:
            self.leave_out("no python3-venv here")
        done = subprocess.run(
            [venv / "bin/pip", "install", "--quiet", "--retries", "1", source],
            capture_output=True,
            text=True,
            timeout=LIMIT_S,
            env=plain_environment(),
        )
        if done.returncode and re.search(UNREACHED, done.stdout + done.stderr):
            self.leave_out("pip reaches no package index")
        self.assertEqual(done.returncode, 0, done.stdout + done.stderr)
        self.check(venv / "bin/rouse")
        self.check_run(venv / "bin/rouse")
        self.assertEqual(run(venv / "bin/rouse", "--version").strip(), f"rouse {version()}")
        for program in ("rouse-serve", "rouse-bench"):
            self.assertIn(program, run(venv / "bin" / program, "--help"))
        self.assertEqual(len(list(venv.rglob("librouse.so*"))), 1)
        run(venv / "bin/pip", "uninstall", "--yes", "--quiet", "rouse", env=plain_environment())
        self.assertEqual([p for p in venv.rglob("*rouse*") if p.name != "__pycache__"], [])


class MakeInstall(Folder):
    """The command as the Makefile installs it."""

    def test_the_command_lies_beside_its_packages(self) -> None:
        installed = Installed(self.folder)
        command = self.folder / "usr/local/bin/rouse"
        done = subprocess.run([command], capture_output=True, text=True, timeout=60)
        if done.returncode:  # this system does not have all of the command's packages
            self.assertEqual(done.returncode, 3)
            self.assertRegex(done.stderr, r"^rouse: needs the Python package \w+; .*\n$")
        python = SOURCE / "build/venv/bin/python"
        if not python.exists():
            self.leave_out("Python packages are not in build/venv")
        packages = command.parent.parent / "lib/rouse/packages"
        run(python, SOURCE / "tools/packages.py", "--copy", packages)
        self.check(command)
        self.check_run(command)
        self.assertEqual(run(command, "--version"), f"rouse {version()}\n")
        servers = ("programs/bench-raw-epoll", "programs/bench-raw-uring")
        client = "programs/bench-http-client"
        for name in ("rouse/store/decode.py", "rouse/lab/wrk.lua", client, *servers):
            self.assertIn(Path("usr/local/lib/rouse") / name, installed.files)
        code = "import sys; sys.path.insert(0, sys.argv[1]); from rouse import errors"
        code += "; print(errors.how_to_install('query', 'duckdb'))"
        for library, expected in (
            (packages.parent, f"python3 -m pip install --target {packages} duckdb"),
            (SOURCE, "pip install 'rouse[query]'"),
        ):
            said = run(python, "-I", "-B", "-c", code, library)
            self.assertEqual(said, f"install it: {expected}\n")


class SourceTree(Folder):
    def test_the_command_of_a_source_tree_runs_from_anywhere(self) -> None:
        """Start it through build/bin/rouse. It must not install anything here."""
        stamp = SOURCE / "build/venv/command.stamp"
        wanted = [SOURCE / "pyproject.toml", SOURCE / "tools/requirements.lock"]
        if not stamp.exists() or stamp.read_bytes() != b"".join(f.read_bytes() for f in wanted):
            self.leave_out("Python packages are not in build/venv")
        link = self.folder / "rouse"
        link.symlink_to(SOURCE / "tools/rouse.sh")
        self.check(link)


if __name__ == "__main__":
    skip_without("meson", "gcc")
    unittest.main(verbosity=2)
