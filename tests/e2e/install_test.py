#!/usr/bin/env python3
# SPDX-License-Identifier: MIT
"""What `meson install` leaves: files, the SONAME, the exported symbols, the flags of rouse.pc."""

from __future__ import annotations

import re
import tempfile
import unittest
from pathlib import Path

from installed import COMPILERS, SOURCE, Installed, run, skip_without

PROTOTYPE = re.compile(r"\b(rouse_\w+)\s*\(")
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

folder: Path
installed: Installed


def setUpModule() -> None:
    global folder, installed
    holder = tempfile.TemporaryDirectory()
    unittest.addModuleCleanup(holder.cleanup)
    folder = Path(holder.name)
    installed = Installed(folder / "root")


def declared() -> set[str]:
    """The functions of the public headers."""
    names: set[str] = set()
    for header in (SOURCE / "include/rouse").glob("*.h"):
        names.update(PROTOTYPE.findall(COMMENT.sub("", header.read_text(encoding="utf-8"))))
    return names


def symbols(*command: str | Path) -> set[str]:
    """The defined symbols that nm lists."""
    lines = run("nm", "--defined-only", *command).splitlines()
    return {line.split()[-1].split("@")[0] for line in lines if len(line.split()) == 3}


class Install(unittest.TestCase):
    def test_the_files_stand_where_they_belong(self) -> None:
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

    def test_the_library_exports_exactly_what_the_headers_declare(self) -> None:
        self.assertEqual(symbols("--dynamic", installed.shared), declared())

    def test_the_archive_has_names_of_its_own_only(self) -> None:
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
        # A frame larger than the guard page must touch it.
        self.assertIn("-fstack-clash-protection", flags)
        self.assertIn("-lrouse", installed.pkg_config("--libs"))
        self.assertIn("-pthread", installed.pkg_config("--libs", "--static"))
        version = re.search(r"version: '([\d.]+)'", (SOURCE / "meson.build").read_text())
        assert version
        self.assertEqual(installed.pkg_config("--modversion"), [version[1]])

    def test_the_archive_links_whatever_the_compiler(self) -> None:
        """Plain machine code, even if the library was optimised as a whole."""
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
            self.assertIn(name, run(installed.only(name), "--help"))
            self.assertNotIn("librouse", run("readelf", "-d", installed.only(name)))


if __name__ == "__main__":
    skip_without("meson", "pkg-config", "nm", "readelf", *COMPILERS)
    unittest.main()
