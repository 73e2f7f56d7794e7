#!/usr/bin/env python3
# SPDX-License-Identifier: MIT
"""The projects of examples/consumers find an installed rouse, and build with it."""

from __future__ import annotations

import os
import re
import shutil
import subprocess
import tempfile
import unittest
from pathlib import Path

from installed import SOURCE, Installed, run, skip_without

LIMIT_S = 240
VERSION_ASKED = """\
cmake_minimum_required(VERSION 3.19)
project(asks C)
find_package(rouse {words} REQUIRED)
if(TARGET rouse::static)
  message(STATUS "has rouse::static")
endif()
"""
# A shared library cannot have the static one in it: it has no code for that.
PLUGIN = """
dynamic = dependency('rouse', fallback: 'rouse', static: false)
shared_module('plugin', files('../hello.c'), dependencies: dynamic)
"""

folder: Path
installed: Installed
version: str


def setUpModule() -> None:
    global folder, installed, version
    holder = tempfile.TemporaryDirectory()
    unittest.addModuleCleanup(holder.cleanup)
    folder = Path(holder.name)
    installed = Installed(folder / "root")
    (version,) = installed.pkg_config("--modversion")


class Consumer(unittest.TestCase):
    def setUp(self) -> None:
        """A copy of the examples, as users make one."""
        holder = tempfile.TemporaryDirectory()
        self.addCleanup(holder.cleanup)
        self.work = Path(holder.name) / "consumers"
        (source,) = {f for f in installed.files if f.parts[-2:] == ("consumers", "hello.c")}
        shutil.copytree((installed.root / source).parent, self.work)
        ours = r"ROUSE_|MAKE|MFLAGS|MESON|PKG_CONFIG|CMAKE|CFLAGS|LDFLAGS|CC$"
        kept = {name: value for name, value in os.environ.items() if not re.match(ours, name)}
        place = {"PKG_CONFIG_PATH": str(installed.pc.parent)}
        self.environment = {**kept, **place, "PKG_CONFIG_SYSROOT_DIR": str(installed.root)}

    def call(self, *words: str | Path, **variables: str) -> str:
        environment = {**self.environment, **variables}
        return run(*words, cwd=self.work, env=environment, timeout=LIMIT_S)

    def check(self, programs: Path, library: Path) -> None:
        """Both programs run, and only the first needs librouse.so."""
        for name, is_shared in (("hello", True), ("hello-static", False)):
            needed = run("readelf", "-d", programs / name)
            self.assertEqual("[librouse.so.0]" in needed, is_shared, name)
            shown = run(programs / name, env={**os.environ, "LD_LIBRARY_PATH": str(library)})
            self.assertEqual(shown, f"hello from a thread, rouse {version}\n")


class Make(Consumer):
    def test_make(self) -> None:
        self.call("make", "-C", "make", "CFLAGS=-O2 -Wall -Wextra -Werror")
        self.check(self.work / "make", installed.shared.parent)

    def test_make_without_rouse_says_what_to_do(self) -> None:
        done = subprocess.run(
            ["make", "-C", "make"],
            cwd=self.work,
            env={**self.environment, "PKG_CONFIG_PATH": "", "PKG_CONFIG_LIBDIR": "/nowhere"},
            capture_output=True,
            text=True,
        )
        self.assertNotEqual(done.returncode, 0)
        self.assertIn("pkg-config does not find rouse", done.stderr)


class Meson(Consumer):
    def test_meson_finds_an_installed_one(self) -> None:
        self.call("meson", "setup", "out", "meson", "-Dwerror=true")
        self.call("ninja", "-C", "out")
        self.check(self.work / "out", installed.shared.parent)

    def test_meson_builds_it_as_a_subproject(self) -> None:
        """Without an installed one. Only the libraries are built, and a plug-in may have it too."""
        subprojects = self.work / "meson/subprojects"
        subprojects.mkdir()
        caches = shutil.ignore_patterns("build", ".git", "__pycache__", ".*_cache")
        shutil.copytree(SOURCE, subprojects / "rouse", ignore=caches)
        with (self.work / "meson/meson.build").open("a", encoding="utf-8") as file:
            file.write(PLUGIN)
        nothing = {"PKG_CONFIG_PATH": "", "PKG_CONFIG_LIBDIR": str(self.work / "none")}
        self.call("meson", "setup", "out", "meson", "-Doptimization=0", **nothing)
        targets = self.call("ninja", "-C", "out", "-t", "targets", "all")
        self.assertNotIn("rouse-serve", targets)
        self.call("ninja", "-C", "out")
        out = self.work / "out"
        self.check(out, out / "subprojects/rouse")
        self.assertIn("[librouse.so.0]", run("readelf", "-d", out / "libplugin.so"))


class CMake(Consumer):
    def setUp(self) -> None:
        if shutil.which("cmake") is None:
            print("not run: no cmake here")
            self.skipTest("no cmake here")
        super().setUp()

    def configure(self, project: str, root: Path) -> subprocess.CompletedProcess[str]:
        prefix = root / "usr/local"
        out = self.work / "out"
        shutil.rmtree(out, ignore_errors=True)
        return subprocess.run(
            ["cmake", "-S", project, "-B", out, f"-DCMAKE_PREFIX_PATH={prefix}"],
            cwd=self.work,
            env=self.environment,
            capture_output=True,
            text=True,
            timeout=LIMIT_S,
        )

    def asks(self, words: str, root: Path) -> subprocess.CompletedProcess[str]:
        project = self.work / "asks"
        project.mkdir(exist_ok=True)
        (project / "CMakeLists.txt").write_text(VERSION_ASKED.format(words=words))
        return self.configure("asks", root)

    def test_cmake_builds_and_runs_with_both_libraries(self) -> None:
        done = self.configure("cmake", installed.root)
        self.assertEqual(done.returncode, 0, done.stderr)
        commands = self.call("cmake", "--build", "out", "--verbose")
        self.assertIn("-fstack-clash-protection", commands)
        self.check(self.work / "out", installed.shared.parent)

    def test_the_prefix_may_be_moved_and_may_lack_the_static_library(self) -> None:
        moved = self.work.parent / "moved"
        shutil.copytree(installed.root, moved, symlinks=True)
        for file in moved.rglob("rouse*.cmake"):
            self.assertNotIn(str(folder), file.read_text(encoding="utf-8"))
        (archive,) = moved.rglob("librouse.a")
        archive.unlink()
        done = self.asks("", moved)
        self.assertEqual(done.returncode, 0, done.stderr)
        self.assertNotIn("has rouse::static", done.stdout)
        # Libraries beneath /lib are those beneath /usr/lib, whose headers are beneath /usr.
        (moved / "lib").symlink_to("usr/local/lib")
        (config,) = moved.glob("lib/**/rouse-config.cmake")
        project = self.work / "cmake/CMakeLists.txt"
        text = re.sub(r"add_executable\(hello-static.*", "", project.read_text(), flags=re.DOTALL)
        text = re.sub(r"\n#.*\n$", "\n", text)
        project.write_text(text)
        out = self.work / "linked"
        self.call("cmake", "-S", "cmake", "-B", out, f"-Drouse_DIR={config.parent}")
        self.call("cmake", "--build", out)

    def test_cmake_accepts_the_versions_that_are_compatible(self) -> None:
        major, minor, patch = (int(number) for number in version.split("."))
        accepted = (
            *("", f"{major}", f"{major}.{minor}", f"{version} EXACT"),
            *(f"{major}.{minor}...{major + 1}", f"{major}.{minor}...{version}"),
        )
        for words in accepted:
            done = self.asks(words, installed.root)
            self.assertEqual(done.returncode, 0, f"{words}: {done.stderr}")
            self.assertIn("has rouse::static", done.stdout)
        refused = (
            *(f"{major + 1}", f"{major}.{minor + 1}", f"{major}.{minor}.{patch + 1} EXACT"),
            *(f"{major}.0...<{version}", f"{major + 1}...{major + 2}"),
        )
        for words in refused:
            done = self.asks(words, installed.root)
            self.assertNotEqual(done.returncode, 0, words)
            self.assertIn(f"version: {version}", done.stderr)


if __name__ == "__main__":
    skip_without("meson", "ninja", "make", "pkg-config", "readelf", "gcc")
    unittest.main(verbosity=2)
