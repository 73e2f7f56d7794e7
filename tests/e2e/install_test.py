#!/usr/bin/env python3
# SPDX-License-Identifier: MIT
"""Check `make install`: files, SONAME, exported symbols, the flags of rouse.pc, and refusals."""

from __future__ import annotations

import os
import re
import shutil
import subprocess
import tempfile
import unittest
from pathlib import Path

from installed import BUILD, COMPILERS, SOURCE, Installed, run, skip_without

PROTOTYPE = re.compile(r"\b(rouse_\w+)\s*\([^;{}]*;")  # not a definition
INLINE = re.compile(r"\bstatic inline\b[^;{}]*;")  # declared first, and defined by the header too
COMMENT = re.compile(r"/\*.*?\*/", re.DOTALL)

USER = """\
#include <rouse/rouse.h>
static void *twice(void *arg)
{
    return (char *)arg + (size_t)arg;
}
int main(void)
{
    struct rouse_thread *t;
    void *result;
    return rouse_thread_create(&t, NULL, twice, (void *)21) || rouse_thread_join(t, &result) ||
           result != (void *)42;
}
"""

VERSION = """\
#include <rouse/rouse.h>
#include <stdio.h>
#if !(ROUSE_VERSION_MAJOR > 0 || ROUSE_VERSION_MINOR >= 1)
#error "the numbers are not usable in #if"
#endif
int main(void)
{
    printf("%s %d.%d.%d\\n", ROUSE_VERSION, ROUSE_VERSION_MAJOR, ROUSE_VERSION_MINOR,
           ROUSE_VERSION_PATCH);
    return 0;
}
"""

CLOSER = """\
#include <dlfcn.h>
#include <stddef.h>
static void *give_back(void *arg)
{
    return arg;
}
int main(int argc, char **argv)
{
    void *library = argc == 2 ? dlopen(argv[1], RTLD_NOW) : NULL;
    if (!library)
        return 1;
    int (*create)(void **, void *, void *(*)(void *), void *) =
        dlsym(library, "rouse_thread_create");
    int (*join)(void *, void **) = dlsym(library, "rouse_thread_join");
    void *t, *result;
    for (int i = 0; i < 100; i++) {
        if (create(&t, NULL, give_back, &t) || join(t, &result) || result != &t)
            return 2;
        dlclose(library);
        if (dlopen(argv[1], RTLD_NOW | RTLD_NOLOAD) != library)
            return 3;
    }
}
"""

OF_LIBC = {
    "flockfile",
    "ftrylockfile",
    "funlockfile",
    "initgroups",
    "pthread_getattr_np",
    "pthread_mutex_clocklock",
    "pthread_mutex_lock",
    "pthread_mutex_timedlock",
    "pthread_mutex_trylock",
    "pthread_mutex_unlock",
    "pthread_mutexattr_setprotocol",
    "setegid",
    "seteuid",
    "setgid",
    "setgroups",
    "setregid",
    "setresgid",
    "setresuid",
    "setreuid",
    "setuid",
}

folder: Path
installed: Installed


def setUpModule() -> None:
    global folder, installed
    holder = tempfile.TemporaryDirectory()
    unittest.addModuleCleanup(holder.cleanup)
    folder = Path(holder.name)
    installed = Installed(folder / "root")


def declared() -> set[str]:
    """The functions that the public headers declare, without those that they define."""
    names: set[str] = set()
    for header in (SOURCE / "include/rouse").glob("*.h"):
        code = INLINE.sub("", COMMENT.sub("", header.read_text(encoding="utf-8")))
        names.update(PROTOTYPE.findall(code))
    return names


def symbols(*command: str | Path) -> set[str]:
    """The defined symbols that nm lists, without the names of versions."""
    lines = [line.split() for line in run("nm", "--defined-only", *command).splitlines()]
    return {line[2].split("@")[0] for line in lines if len(line) == 3 and line[1] != "A"}


def project_version() -> str:
    found = re.search(r"version: '([\d.]+)'", (SOURCE / "meson.build").read_text(encoding="utf-8"))
    assert found
    return found[1]


class Install(unittest.TestCase):
    def test_the_files_are_installed_where_they_belong(self) -> None:
        names = {path.as_posix().split("usr/local/", 1)[-1] for path in installed.files}
        headers = {f"include/rouse/{p.name}" for p in (SOURCE / "include/rouse").glob("*.h")}
        self.assertLessEqual(headers, names)
        for name in (
            "bin/rouse-serve",
            "bin/rouse-bench",
            "share/man/man1/rouse-serve.1",
            "share/man/man1/rouse-bench.1",
            "share/man/man3/rouse_mutex_lock.3",
            "share/man/man7/rouse.7",
            "share/doc/rouse/examples/echo_server.c",
            "share/doc/rouse/html/index.html",
            "share/bash-completion/completions/rouse",
            "share/bash-completion/completions/rouse-serve",
            "share/fish/vendor_completions.d/rouse.fish",
            "share/zsh/site-functions/_rouse-bench",
        ):
            self.assertIn(name, names)
        installed.only(f"{installed.shared.name}-gdb.py")

    def test_the_soname_is_the_major_version(self) -> None:
        dynamic = run("readelf", "-d", installed.shared)
        self.assertIn("[librouse.so.0]", dynamic)
        for link in ("librouse.so", "librouse.so.0"):
            self.assertTrue(installed.only(link).is_symlink())
            self.assertEqual(installed.only(link).resolve(), installed.shared)
        self.assertNotIn("RUNPATH", dynamic)

    def test_the_library_stays_when_it_is_closed(self) -> None:
        """Its workers run its code until the program ends."""
        source = folder / "closer.c"
        source.write_text(CLOSER)
        program = folder / "closer"
        run("gcc", "-o", program, source, "-ldl")
        run(program, installed.shared, timeout=60)

    def test_the_library_exports_exactly_the_declared_calls(self) -> None:
        self.assertEqual(symbols("--dynamic", installed.shared), declared() | OF_LIBC)

    def test_every_exported_symbol_has_a_version(self) -> None:
        """The version is that of a release, and not of a later one than this."""
        lines = run("nm", "--dynamic", "--defined-only", installed.shared).splitlines()
        versions: dict[str, str] = {}
        for _, kind, name in (line.split() for line in lines):
            if kind != "A":
                call, _, version = name.partition("@@")
                versions[call] = version
        # References to any version of libc's calls must find those that replace them.
        self.assertEqual({call for call, version in versions.items() if not version}, OF_LIBC)
        for call in OF_LIBC:
            del versions[call]
        self.assertEqual(set(versions), declared())
        ours = [int(number) for number in project_version().split(".")]
        for call, version in versions.items():
            self.assertRegex(version, r"^ROUSE_\d+\.\d+$", call)
            since = [int(number) for number in version.removeprefix("ROUSE_").split(".")]
            self.assertLessEqual(since, ours[:2], call)

    def test_a_program_is_refused_by_a_library_without_its_version(self) -> None:
        source = folder / "user.c"
        source.write_text(USER)
        program = installed.compile("gcc", source, folder / "versioned")
        old = folder / "old"
        old.mkdir()
        library = old / "librouse.so.0"
        script = old / "old.map"
        script.write_text("ROUSE_0.0 { global: *; };\n")
        stubs = old / "stubs.c"
        stubs.write_text("".join(f"void {name}(void) {{}}\n" for name in sorted(declared())))
        run(
            *("gcc", "-shared", "-fPIC", "-o", library, stubs),
            *("-Wl,-soname,librouse.so.0", f"-Wl,--version-script={script}"),
        )
        environment = {**os.environ, "LD_LIBRARY_PATH": str(old)}
        done = subprocess.run([program], capture_output=True, text=True, env=environment)
        self.assertNotEqual(done.returncode, 0)
        self.assertIn("version `ROUSE_0.1' not found", done.stderr)
        run(program, env=installed.environment, timeout=60)

    def test_the_version_in_the_header_is_the_project_s(self) -> None:
        source = folder / "version.c"
        source.write_text(VERSION)
        program = installed.compile("gcc", source, folder / "version")
        version = project_version()
        shown = run(program, env=installed.environment)
        self.assertEqual(shown.split(), [version, version])
        self.assertEqual(run(installed.program("rouse-serve"), "--version").split()[1], version)

    def test_the_main_header_brings_the_numbers_of_errors(self) -> None:
        for language in ("c", "c++"):
            words = ("gcc", "-fsyntax-only", f"-I{installed.headers.parent}", "-x", language, "-")
            run(*words, input="#include <rouse/rouse.h>\nint e = ETIMEDOUT + ECANCELED;\n")

    def test_the_archive_defines_only_prefixed_names(self) -> None:
        strangers = {
            name
            for name in symbols("--extern-only", installed.archive)
            if not name.startswith(("rouse_", "rsi_"))
        }
        self.assertEqual(strangers, set())

    def test_a_program_with_the_archive_exports_nothing_of_it(self) -> None:
        source = folder / "user.c"
        source.write_text(USER)
        program = installed.compile("gcc", source, folder / "user", static=True)
        exported = {
            name for name in symbols("--dynamic", program) if "rouse" in name or "rsi" in name
        }
        self.assertEqual(exported, set())

    def test_pkg_config_gives_all_that_a_build_needs(self) -> None:
        flags = installed.pkg_config("--cflags")
        # A function whose frame is larger than the guard page must touch that page.
        self.assertIn("-fstack-clash-protection", flags)
        self.assertIn("-lrouse", installed.pkg_config("--libs"))
        self.assertIn("-pthread", installed.pkg_config("--libs", "--static"))
        self.assertEqual(installed.pkg_config("--modversion"), [project_version()])

    def test_the_archive_links_with_either_compiler(self) -> None:
        """The archive is plain machine code, even if the library was built with LTO."""
        source = folder / "user.c"
        source.write_text(USER)
        for compiler in COMPILERS:
            for name, flags in (("plain", []), ("whole", ["-static"]), ("no-pie", ["-no-pie"])):
                with self.subTest(compiler=compiler, link=name):
                    program = folder / f"user-{compiler}-{name}"
                    needed = installed.pkg_config("--cflags", "--libs", "--static")
                    needed = [f.replace("-lrouse", "-l:librouse.a") for f in needed]
                    run(compiler, "-fno-lto", *flags, "-o", program, source, *needed)
                    run(program, timeout=60)

    def test_the_programs_run_where_they_are_installed(self) -> None:
        for name in ("rouse-serve", "rouse-bench"):
            self.assertIn(name, run(installed.program(name), "--help"))
            self.assertNotIn("librouse", run("readelf", "-d", installed.program(name)))


def installed_with(tags: str, folder: Path) -> dict[str, int]:
    """The files, with their sizes, that an install with these tags leaves below its prefix."""
    options = ("--no-rebuild", "--quiet", "--tags", tags, "--destdir", folder)
    run("meson", "install", "-C", BUILD, *options)
    files = [path for path in folder.rglob("*") if path.is_file() and not path.is_symlink()]
    return {path.as_posix().split("usr/local/", 1)[-1]: path.stat().st_size for path in files}


class Targets(unittest.TestCase):
    """The installed files of the Makefile's two targets."""

    def tags(self, target: str) -> str:
        makefile = (SOURCE / "Makefile").read_text(encoding="utf-8")
        found = re.search(rf"^{target}:\n(?:\t.*\n)*?\t.*--tags (\S+)", makefile, re.MULTILINE)
        assert found
        return found[1]

    def test_install_leaves_a_few_megabytes_without_the_command(self) -> None:
        files = installed_with(self.tags("install"), folder / "library")
        self.assertNotIn("bin/rouse", files)
        self.assertEqual([name for name in files if name.startswith("lib/rouse/")], [])
        self.assertLess(sum(files.values()), 20_000_000)

    def test_both_targets_together_install_everything(self) -> None:
        files = installed_with(self.tags("install"), folder / "first")
        files |= installed_with(self.tags("install-tool"), folder / "second")
        self.assertIn("bin/rouse", files)
        linked = [file for file in installed.files if not (installed.root / file).is_symlink()]
        self.assertEqual(set(files), {p.as_posix().split("usr/local/", 1)[-1] for p in linked})


class Checkout(unittest.TestCase):
    """A copy of the sources in which make and the scripts are run."""

    def setUp(self) -> None:
        holder = tempfile.TemporaryDirectory()
        self.addCleanup(holder.cleanup)
        self.home = Path(holder.name)
        self.checkout = self.home / "rouse"
        caches = shutil.ignore_patterns("build", ".git", "__pycache__", ".*_cache")
        shutil.copytree(SOURCE, self.checkout, symlinks=True, ignore=caches)

    def call(self, *words: str, **variables: str) -> subprocess.CompletedProcess[str]:
        ours = r"ROUSE_|MAKE|MFLAGS|MESON|DESTDIR|PREFIX|CC$"
        kept = {name: value for name, value in os.environ.items() if not re.match(ours, name)}
        return subprocess.run(
            words,
            cwd=self.checkout,
            env={**kept, "HOME": str(self.home), **variables},
            stdin=subprocess.DEVNULL,
            capture_output=True,
            text=True,
            timeout=100,
        )

    def test_install_with_the_checkout_as_prefix_deleted_a_header(self) -> None:
        alias = self.home / "alias"
        alias.symlink_to(self.checkout)
        for prefix in (self.checkout, self.checkout / "build/out", alias, "relative"):
            for target in ("install", "install-tool"):
                with self.subTest(prefix=prefix, target=target):
                    done = self.call("make", target, f"PREFIX={prefix}")
                    self.assertNotEqual(done.returncode, 0)
                    self.assertIn(f"make {target}: PREFIX={prefix} is", done.stderr)
                    self.assertRegex(done.stderr, r"try PREFIX=\S+/\.local\n")
        self.assertFalse((self.checkout / "build").exists(), "it refuses before it builds")
        for staging, status in ((self.checkout / "debian/tmp", 0), (self.checkout, 1)):
            prefix = "/usr" if status == 0 else "/"
            done = self.call("tools/prefix.sh", "install", prefix, str(staging))
            self.assertEqual(done.returncode, status, done.stderr)
        done = self.call("tools/prefix.sh", "installed", f"{self.home}/.local")
        self.assertIn(f"installed in {self.home}/.local\n", done.stdout)
        self.assertIn(f"export PATH={self.home}/.local/bin:$PATH", done.stdout)
        headers = {p.name for p in (SOURCE / "include/rouse").glob("*.h")}
        self.assertEqual({p.name for p in (self.checkout / "include/rouse").glob("*.h")}, headers)

    def test_make_failed_after_the_checkout_was_moved(self) -> None:
        done = self.call("tools/configure.sh", "release")
        self.assertEqual(done.returncode, 0, done.stderr)
        moved = self.home / "moved"
        self.checkout.rename(moved)
        self.checkout = moved
        stamps = set()
        for _ in range(2):
            done = self.call("tools/configure.sh", "release")
            self.assertEqual(done.returncode, 0, done.stderr)
            done = self.call("ninja", "-C", "build/release", "-n")
            self.assertEqual(done.returncode, 0, done.stdout + done.stderr)
            self.assertNotIn(f"{self.home}/rouse", done.stdout)
            stamps.add((moved / "build/release/build.ninja").stat().st_mtime_ns)
        self.assertEqual(len(stamps), 1, "the second time nothing is configured")

    def test_install_tool_succeeded_without_venv_and_left_a_broken_command(self) -> None:
        fake = self.home / "fake"
        fake.mkdir()
        (fake / "venv.py").write_text("import sys\nsys.exit('no ensurepip here')\n")
        prefix = self.home / "prefix"
        done = self.call("make", "install-tool", f"PREFIX={prefix}", PYTHONPATH=str(fake))
        self.assertNotEqual(done.returncode, 0)
        self.assertRegex(
            done.stderr, r"setup: could not install the Python packages into build/venv"
        )
        self.assertIn("python3-venv", done.stderr)
        self.assertFalse(prefix.exists(), "nothing is installed")


if __name__ == "__main__":
    skip_without("meson", "pkg-config", "nm", "readelf", *COMPILERS)
    unittest.main(verbosity=2)
