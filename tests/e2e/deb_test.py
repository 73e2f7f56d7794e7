#!/usr/bin/env python3
# SPDX-License-Identifier: MIT
"""`make deb`: the same bytes each time, no complaint of lintian, and a bare Debian that works."""

from __future__ import annotations

import os
import re
import shutil
import subprocess
import tempfile
import unittest
from pathlib import Path

from bare_root import BareRoot, UnreachedError, skip_without_root
from dist_test import checkout, clean_environment
from installed import SOURCE, run, skip_without

LIMIT_S = 900
PACKAGES = ("librouse0", "librouse-dev", "rouse-doc", "rouse-tools")

folder: Path
first: Path  # the packages


def packaged(source: Path, to: Path) -> Path:
    run(source / "tools/deb.sh", to, cwd=source, env=clean_environment(), timeout=LIMIT_S)
    return to


def setUpModule() -> None:
    global folder, first
    holder = tempfile.TemporaryDirectory()
    unittest.addModuleCleanup(holder.cleanup)
    folder = Path(holder.name)
    first = packaged(checkout(folder / "first"), folder / "first-deb")


def suite() -> str:
    """The name of this system's release."""
    found = re.search(r"^VERSION_CODENAME=(\w+)", Path("/etc/os-release").read_text("utf-8"), re.M)
    return found[1] if found else "bookworm"


class Deb(unittest.TestCase):
    def test_the_same_commit_gives_the_same_bytes(self) -> None:
        """In another folder, at another time, and with another umask."""
        before = os.umask(0o077)
        self.addCleanup(os.umask, before)
        second = packaged(checkout(folder / "second place"), folder / "second-deb")
        names = {path.name for path in first.glob("*.deb")}
        self.assertLessEqual(set(PACKAGES), {name.split("_")[0] for name in names})
        self.assertEqual(names, {path.name for path in second.glob("*.deb")})
        for name in sorted(names):
            self.assertTrue((first / name).read_bytes() == (second / name).read_bytes(), name)

    def test_lintian_finds_nothing(self) -> None:
        (changes,) = first.glob("*.changes")
        done = subprocess.run(
            ["lintian", "--allow-root", "--fail-on", "error,warning", "--info", changes],
            capture_output=True,
            text=True,
            timeout=LIMIT_S,
        )
        self.assertEqual((done.returncode, done.stdout), (0, ""), done.stderr)

    def test_a_bare_debian_installs_uses_and_removes_them(self) -> None:
        try:
            root = BareRoot(folder / "root", suite())
        except UnreachedError as error:
            self.skipTest(f"not run: {error}")
        for package in first.glob("*.deb"):
            shutil.copy(package, root.place / "root")
        root.run("apt-get", "-qq", "update")
        debs = [f"/root/{path.name}" for path in first.glob("*.deb") if "dbgsym" not in path.name]
        root.install(*debs)
        self.commands_work(root)
        root.install("gcc", "libc6-dev", "pkg-config", "make", "cmake", "meson")
        self.consumers_build(root)
        root.run("apt-get", "-qq", "-y", "purge", *PACKAGES)
        left = root.run("find", "/", "-xdev", "-iname", "*rouse*", "-not", "-path", "/root/*")
        kept = {line for line in left.splitlines() if not line.startswith("/tmp/")}
        self.assertEqual(kept, set())

    def commands_work(self, root: BareRoot) -> None:
        version = re.search(r"^rouse \(([\d.]+)", (SOURCE / "debian/changelog").read_text("utf-8"))
        assert version
        self.assertEqual(root.run("rouse", "--version"), f"rouse {version[1]}\n")
        self.assertIn("sleep", root.run("rouse", "run", "-o", "-", "--", "sleep", "0.01"))
        self.assertIn("good", root.run("sh", "-c", "rouse doctor || true"))
        for name in ("rouse-serve", "rouse-bench"):
            self.assertIn(name, root.run(name, "--help"))
        for page in ("man1/rouse-run.1.gz", "man3/rouse_thread_create.3.gz", "man7/rouse.7.gz"):
            self.assertTrue((root.place / "usr/share/man" / page).exists(), page)
        refused = root.run("sh", "-c", "rouse top --batch 1 1 2>&1 || true")
        self.assertRegex(refused, r"^rouse: [^\n]*\n$")

    def consumers_build(self, root: BareRoot) -> None:
        root.run("cp", "-r", "/usr/share/doc/rouse/examples/consumers", "/tmp/consumers")
        for steps in (
            "make -C make && make/hello",
            "cmake -S cmake -B built && cmake --build built && built/hello",
            "meson setup meson/built meson && ninja -C meson/built && meson/built/hello",
        ):
            said = root.run("sh", "-c", f"cd /tmp/consumers && {steps}")
            self.assertIn("hello from a thread, rouse", said)


if __name__ == "__main__":
    skip_without("git", "xz", "dpkg-buildpackage", "dh", "dh_python3", "lintian", "meson", "gcc")
    skip_without_root()
    unittest.main(verbosity=2)
