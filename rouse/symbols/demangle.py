# SPDX-License-Identifier: MIT
"""Names of C++ functions as they stand in the source.

The C++ run-time library has the ABI's own call for it; numpy and pyarrow need that library, too, so
that it is there. Rejected: the package itanium-demangler, which knows no names of lambdas, which
threads' functions often are; cxxfilt, which makes the same call.
"""

from __future__ import annotations

import ctypes
from functools import cache
from typing import Any

LIBRARY = "libstdc++.so.6"
LONGEST = 4096  # the library's parser recurses, and names come from others' files


@cache
def calls() -> tuple[Any, Any] | None:
    """__cxa_demangle, and free, which takes its answer back; None where there is none."""
    try:
        demangle, free = ctypes.CDLL(LIBRARY).__cxa_demangle, ctypes.CDLL(None).free
    except (OSError, AttributeError):
        return None
    demangle.restype = ctypes.c_void_p
    demangle.argtypes = [ctypes.c_char_p, *[ctypes.c_void_p] * 3]
    free.restype, free.argtypes = None, [ctypes.c_void_p]
    return demangle, free


def demangled(symbol: bytes) -> bytes:
    """The symbol's name; itself if it is none of C++."""
    found = calls()
    if not symbol.startswith(b"_Z") or len(symbol) > LONGEST or found is None:
        return symbol
    demangle, free = found
    answer = demangle(symbol, None, None, None)
    if not answer:
        return symbol
    name = ctypes.string_at(answer)
    free(answer)
    return name
