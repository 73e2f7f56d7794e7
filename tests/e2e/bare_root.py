# SPDX-License-Identifier: MIT
"""A minimal Debian of its own, as a place where nothing is installed yet."""

from __future__ import annotations

import os
import shutil
import subprocess
from pathlib import Path

from installed import run, skip_without

MIRROR = "http://deb.debian.org/debian"
CERTIFICATES = Path("/etc/ssl/certs/ca-certificates.crt")
# A namespace of its own: the mounts end with the command.
ENTER = """
set -e
mount -t proc proc "$1/proc"
mount --rbind /dev "$1/dev"
mount -t tmpfs tmpfs "$1/dev/shm"
root=$1
shift
exec chroot "$root" "$@"
"""


def skip_without_root() -> None:
    """Leave the whole program out if no bare root can be made here."""
    skip_without("debootstrap", "unshare", "chroot")
    if os.geteuid() != 0:
        print("not run: only root can make a bare Debian")
        raise SystemExit(77)


class UnreachedError(Exception):
    """The mirror cannot be reached."""


class BareRoot:
    def __init__(self, place: Path, suite: str) -> None:
        """Make it in an empty folder. suite: bookworm, trixie and so on."""
        self.place = place
        done = subprocess.run(
            ["debootstrap", "--variant=minbase", suite, str(place), MIRROR],
            capture_output=True,
            text=True,
            timeout=900,
        )
        if done.returncode and "Failed getting release file" in done.stdout + done.stderr:
            raise UnreachedError(f"debootstrap does not reach {MIRROR}")
        assert done.returncode == 0, done.stdout[-2000:] + done.stderr
        shutil.copy("/etc/resolv.conf", place / "etc/resolv.conf")
        shutil.copy(CERTIFICATES, place / "root/certificates.crt")

    def run(self, *words: str | Path, seconds: float = 600) -> str:
        """The standard output of a command in it, as root, which must succeed."""
        environment = {
            "PATH": "/usr/local/bin:/usr/bin:/bin:/usr/sbin:/sbin",
            "HOME": "/root",
            "LANG": "C.UTF-8",
            "DEBIAN_FRONTEND": "noninteractive",
            "PIP_CERT": "/root/certificates.crt",
            "PIP_DISABLE_PIP_VERSION_CHECK": "1",
        }
        enter = ("unshare", "--mount", "sh", "-c", ENTER, "sh", str(self.place))
        return run(*enter, *words, env=environment, timeout=seconds)

    def install(self, *packages: str | Path) -> None:
        self.run("apt-get", "-qq", "-y", "--no-install-recommends", "install", *packages)
