#!/usr/bin/env python3
# SPDX-License-Identifier: MIT
"""`rouse doctor --lint` warns of kept addresses of thread-local storage, and of nothing else."""

from __future__ import annotations

import json
import os
import platform
import re
import shutil
import subprocess
import sys
import tempfile
import unittest
from pathlib import Path

from common import COMMAND, SOURCE

from rouse.symbols import tls_lint

COMPILERS = ("gcc", "clang")
HEAD = """\
#include <errno.h>
#include <stdlib.h>
int rouse_sleep(unsigned long ns);
int rouse_mutex_lock_try(void *m);
void rouse_thread_yield(void);
extern __thread int mine;
void show(int *number);
static __attribute__((noinline)) void waits(void) { rouse_thread_yield(); show(NULL); }
"""
# By name: the flags, and the body. A line that is to be warned of ends in BAD.
FAULTY = {
    "kept_errno": (
        "-O2",
        "errno = 0;\nlong v = strtol(s, NULL, 10);\nrouse_sleep(1);\nif (errno != 0) /* BAD */\n"
        "return 1;\nreturn (int)v;",
    ),
    "kept_variable": (
        "-O2 -fPIC",
        "mine = 1;\nrouse_thread_yield();\nmine += atoi(s); /* BAD */\nreturn 0;",
    ),
    "kept_over_own": ("-O2", "errno = 0;\nwaits();\nreturn errno; /* BAD */"),
    "kept_in_loop": (
        "-O2",
        "int *p = &errno;\n"
        "for (int i = 0; i < *s; i++) {\n*p = i; /* BAD */\nrouse_sleep(1);\n}\nreturn 0;",
    ),
    "kept_on_stack": (
        "-O0",
        "int *p = &errno;\n*p = 0;\nrouse_sleep(atoi(s));\nreturn *p; /* BAD */",
    ),
}
CLEAN = {
    "before_only": (
        "-O2",
        "errno = atoi(s);\nif (errno == 3) return 1;\nrouse_sleep(1);\nreturn 0;",
    ),
    "after_only": ("-O2", "rouse_sleep(1);\nerrno = atoi(s);\nreturn errno;"),
    "never_waits": ("-O2", "errno = 0;\nrouse_mutex_lock_try((void *)s);\nreturn errno;"),
    "other_call": ("-O2", "errno = 0;\nshow(NULL);\nreturn errno;"),
    "value_only": ("-O2", "int kept = errno;\nrouse_sleep(1);\nreturn kept;"),
    "other_path": (
        "-O2",
        "if (atoi(s)) {\nerrno = 0;\nshow(NULL);\nreturn errno;\n}\nrouse_sleep(1);\nreturn 0;",
    ),
}


def doctor(*words: str | Path) -> subprocess.CompletedProcess[str]:
    return subprocess.run(
        [*COMMAND, "doctor", *map(str, words)],
        env={**os.environ, "PYTHONPATH": str(SOURCE)},
        text=True,
        capture_output=True,
        timeout=60,
    )


class Lint(unittest.TestCase):
    def setUp(self) -> None:
        place = tempfile.TemporaryDirectory()
        self.addCleanup(place.cleanup)
        self.folder = Path(place.name)

    def built(self, compiler: str, name: str, flags: str, body: str) -> tuple[Path, Path]:
        source, out = self.folder / f"{name}.c", self.folder / f"{name}-{compiler}.so"
        source.write_text(
            f"{HEAD}int {name}(const char *s);\nint {name}(const char *s)\n{{\n{body}\n}}\n"
        )
        # The library's calls are resolved when it is loaded, so that a shared library needs none.
        words = [compiler, "-g", *flags.split(), "-fPIC", "-shared", "-o", str(out), str(source)]
        subprocess.run([*words, "-Wno-unused-function"], check=True)
        return source, out

    def test_a_kept_address_is_named_with_its_function_and_line(self) -> None:
        for compiler in COMPILERS:
            for name, (flags, body) in FAULTY.items():
                with self.subTest(compiler=compiler, name=name):
                    source, out = self.built(compiler, name, flags, body)
                    lines = source.read_text().splitlines()
                    bad = next(n for n, line in enumerate(lines, 1) if "BAD" in line)
                    done = doctor("--lint", out)
                    self.assertEqual(done.returncode, 1, done.stdout + done.stderr)
                    found = re.findall(r"(?m)^warning: (\w+) \(.*?([^/]+):(\d+)\): ", done.stdout)
                    self.assertEqual({name for name, _, _ in found}, {name})
                    self.assertIn((name, source.name, str(bad)), found)

    def test_right_code_gives_no_warning(self) -> None:
        for compiler in COMPILERS:
            for name, (flags, body) in CLEAN.items():
                with self.subTest(compiler=compiler, name=name):
                    out = self.built(compiler, name, flags, body)[1]
                    done = doctor("--lint", out)
                    self.assertEqual((done.returncode, done.stderr), (0, ""), done.stdout)
                    self.assertIn("0 warnings", done.stdout)

    def test_the_examples_and_the_server_give_no_warning(self) -> None:
        build = Path(os.environ.get("ROUSE_BUILD", SOURCE / "build" / "check"))
        found = [*build.glob("examples/example_*"), build / "serve" / "rouse-serve"]
        found = [path for path in found if path.is_file()]
        if not found:
            self.skipTest("not run: neither the examples nor rouse-serve are built")
        for path in found:
            with self.subTest(path=path):
                self.assertEqual(tls_lint.examine(path).kept, [])

    def test_every_call_with_a_deadline_may_switch(self) -> None:
        """A call that waits has such a form."""
        headers = [path.read_text() for path in (SOURCE / "include" / "rouse").glob("*.h")]
        names = {name for text in headers for name in re.findall(r"\b(rouse_\w+)_until\(", text)}
        self.assertGreater(len(names), 20)
        for name in sorted(names):
            self.assertTrue(tls_lint.MAY_SWITCH.fullmatch(name), name)
            self.assertTrue(tls_lint.MAY_SWITCH.fullmatch(f"{name}_until"), name)

    def test_what_it_cannot_see_is_counted(self) -> None:
        body = "void (*volatile call)(void) = waits;\ncall();\nrouse_sleep(atoi(s));\nreturn 0;"
        out = self.built(COMPILERS[0], "by_pointer", "-O2", body)[1]
        self.assertIn("cannot tell for all of 1 function", doctor("--lint", out).stdout)
        self.assertEqual(json.loads(doctor("--lint", out, "--json").stdout)["unclear"], 1)

    def test_what_is_no_code_for_this_is_one_line(self) -> None:
        other = self.folder / "aarch64"
        whole = bytearray(Path(sys.executable).resolve().read_bytes())
        whole[18:20] = (183).to_bytes(2, "little")
        other.write_bytes(whole)
        text = self.folder / "text"
        text.write_text("no program")
        for path, says in (
            (other, "no code for x86-64"),
            (text, "no ELF file"),
            ("/no", "No such"),
        ):
            with self.subTest(path=path):
                done = doctor("--lint", path)
                self.assertEqual(done.returncode, 3)
                self.assertRegex(done.stderr, rf"\Arouse: .*{says}.*\n\Z")


if __name__ == "__main__":
    missing = [name for name in ("objdump", *COMPILERS) if not shutil.which(name)]
    if missing or platform.machine() != "x86_64":
        print(f"not run: {missing or platform.machine()}")
        raise SystemExit(77)
    unittest.main(verbosity=2)
