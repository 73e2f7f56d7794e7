#!/usr/bin/env python3
# SPDX-License-Identifier: MIT
"""Five processes that number invoices by a file. Fault: they print with the file's lock held.

Usage: invoices.py [fixed] [SECONDS]. Repair: the lock is for the number alone.
"""

from __future__ import annotations

import fcntl
import os
import sys
import tempfile
import time
from pathlib import Path
from typing import IO

CLERKS = 5
PRINTER_S = 0.002


class Register:
    def __init__(self, path: str) -> None:
        self.file: IO[str] = Path(path).open("r+", encoding="ascii")  # noqa: SIM115

    def __enter__(self) -> Register:
        fcntl.flock(self.file, fcntl.LOCK_EX)
        return self

    def __exit__(self, *_: object) -> None:
        fcntl.flock(self.file, fcntl.LOCK_UN)

    def next_number(self) -> int:
        self.file.seek(0)
        number = int(self.file.read()) + 1
        self.file.seek(0)
        self.file.write(f"{number:012d}")
        self.file.flush()
        return number


def print_invoice(_number: int) -> None:
    time.sleep(PRINTER_S)


def issue(register: Register, is_fixed: bool) -> None:
    with register:
        number = register.next_number()
        if not is_fixed:
            print_invoice(number)
    if is_fixed:
        print_invoice(number)


def work(path: str, is_fixed: bool, until: float) -> None:
    register = Register(path)
    while time.monotonic() < until:
        issue(register, is_fixed)


def main() -> None:
    words = sys.argv[1:]
    seconds = next((float(word) for word in words if word != "fixed"), 1.0)
    began = time.monotonic()
    with tempfile.NamedTemporaryFile("r+", encoding="ascii") as file:
        file.write(f"{0:012d}")
        file.flush()
        for _ in range(CLERKS):
            if os.fork() == 0:
                work(file.name, "fixed" in words, began + seconds)
                os._exit(0)
        for _ in range(CLERKS):
            os.wait()
        file.seek(0)
        print(f"ops {int(file.read())} seconds {time.monotonic() - began:.6f}")


if __name__ == "__main__":
    main()
