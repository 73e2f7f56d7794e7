# SPDX-License-Identifier: MIT
"""Shared by the tests of the installed library: an installed copy, and programs built from it."""

from __future__ import annotations

import os
import platform
import shutil
import subprocess
import sys
from collections.abc import Sequence
from pathlib import Path

SOURCE = Path(os.environ.get("ROUSE_SOURCE", Path(__file__).resolve().parents[2]))
BUILD = Path(os.environ.get("ROUSE_BUILD", SOURCE / "build" / "check"))
COMPILERS = ("gcc", "clang")
# Whether the processor has the instruction that threads with own storage need.
HAS_OWN_TLS = platform.machine() != "x86_64" or " fsgsbase " in Path("/proc/cpuinfo").read_text(
    "ascii"
)
# The messages of a pip that reaches no index of packages.
UNREACHED = r"NewConnectionError|ConnectTimeoutError|ProxyError|Temporary failure|No route to host"


def run(*command: str | Path, **options: object) -> str:
    """The standard output of a command that must succeed."""
    result = subprocess.run(  # type: ignore[call-overload]
        [str(word) for word in command],
        **{"stdout": subprocess.PIPE, "stderr": subprocess.PIPE, "text": True, **options},
    )
    if result.returncode:
        raise AssertionError(f"{command}: status {result.returncode}\n{result.stderr}")
    return str(result.stdout)


def skip_without(*commands: str) -> None:
    for command in commands:
        if shutil.which(command) is None:
            print(f"not run: no {command} here")
            sys.exit(77)


class Installed:
    """A copy installed below a folder, as for a package, and found through pkg-config."""

    def __init__(self, folder: Path) -> None:
        self.root = folder
        run("meson", "install", "-C", BUILD, "--no-rebuild", "--quiet", "--destdir", folder)
        files = sorted(path for path in folder.rglob("*") if not path.is_dir())
        self.files = [path.relative_to(folder) for path in files]
        self.pc = self.only("rouse.pc")
        self.headers = self.only("thread.h").parent
        self.archive = self.only("librouse.a")
        self.shared = self.only("librouse.so").resolve()

    def only(self, name: str) -> Path:
        """The installed file of this name, of which there must be exactly one."""
        found = [path for path in self.files if path.name == name]
        if len(found) != 1:
            raise AssertionError(f"{name} is installed {len(found)} times: {found}")
        return self.root / found[0]

    def program(self, name: str) -> Path:
        """An installed program; a file of completions has the same name."""
        return self.headers.parents[1] / "bin" / name

    def pkg_config(self, *options: str) -> list[str]:
        environment = {
            **os.environ,
            "PKG_CONFIG_PATH": str(self.pc.parent),
            "PKG_CONFIG_SYSROOT_DIR": str(self.root),
        }
        return run("pkg-config", *options, "rouse", env=environment).split()

    def compile(
        self, compiler: str, source: Path, out: Path, static: bool = False, more: Sequence[str] = ()
    ) -> Path:
        """Build a program as the README does. static: link librouse.a, but no other archive.

        more: flags of other libraries.
        """
        flags = self.pkg_config("--cflags", "--libs", *(["--static"] if static else []))
        if static:
            flags = [f.replace("-lrouse", "-l:librouse.a") for f in flags]
        strict = ("-O2", "-Wall", "-Wextra", "-Werror")
        run(compiler, *strict, "-o", out, source, *flags, *more)
        return out

    @property
    def environment(self) -> dict[str, str]:
        """The environment of programs that link the shared library."""
        return {**os.environ, "LD_LIBRARY_PATH": str(self.shared.parent)}
