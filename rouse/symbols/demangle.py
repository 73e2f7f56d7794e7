# SPDX-License-Identifier: MIT
"""Names of C++ and Rust functions as they stand in the source.

The C++ run-time library has the ABI's own call for it. numpy and pyarrow need that library too, so
it is there. Rejected: the package itanium-demangler, which knows no names of lambdas, which
threads' functions often are; cxxfilt, which makes the same call. rust_names.py
reads Rust's names.
"""

from __future__ import annotations

import ctypes
import re
from functools import cache
from typing import Any

from rouse.symbols import rust_names

LIBRARY = "libstdc++.so.6"
CLONE = re.compile(r" \[clone [^]]*\]| \(\.[^)]*\)")
QUALIFIERS = re.compile(r"( const| volatile| &&?|\[abi:\w+\])+$")
OPENING, CLOSING = "(<[{", ")>]}"
OPERATOR = re.compile(r"\boperator\s*(\(\)|->\*?|<=>|<<=?|>>=?|[<>]=?|[^\w\s(]+)?")
CALL_OF_LAMBDA = re.compile(r"(\{lambda[^}]*\})::operator\(\)$")
LAMBDA_OF_CLANG = re.compile(r"\$_(\d+)::operator\(\)$")
SHORT = 24  # characters of template arguments that a short name keeps
NAMELESS = "(anonymous namespace)::"  # C++ gives nothing else in its place
LONGEST = 4096  # the library's parser recurses, and names come from others' files


@cache
def calls() -> tuple[Any, Any] | None:
    """Return __cxa_demangle, and free for its result. None: the library has none."""
    try:
        demangle, free = ctypes.CDLL(LIBRARY).__cxa_demangle, ctypes.CDLL(None).free
    except (OSError, AttributeError):
        return None
    demangle.restype = ctypes.c_void_p
    demangle.argtypes = [ctypes.c_char_p, *[ctypes.c_void_p] * 3]
    free.restype, free.argtypes = None, [ctypes.c_void_p]
    return demangle, free


def demangled(symbol: bytes) -> bytes:
    """Return the symbol's name in the source. A symbol of another language stays as it is."""
    if symbol.startswith(b"_R"):
        return (rust_names.demangled(symbol.decode("latin-1")) or "").encode() or symbol
    found = calls()
    if not symbol.startswith(b"_Z") or len(symbol) > LONGEST or found is None:
        return symbol
    demangle, free = found
    answer = demangle(symbol, None, None, None)
    if not answer:
        return symbol
    name = ctypes.string_at(answer)
    free(answer)
    return (rust_names.unescaped(name.decode("latin-1")) or "").encode() or name


def kept(inside: str, is_leading: bool) -> str:
    """Return what a short name keeps of a part in brackets. Rust's <T as Trait> leads a name."""
    if inside == "(anonymous namespace)" or inside.endswith("}"):
        return inside
    if inside.endswith(">"):
        return inside if is_leading or len(inside) <= SHORT else "<...>"
    return ""


def short(function: str) -> str:
    """A function's name with its scopes, without arguments, result and long template arguments."""
    name = QUALIFIERS.sub("", CLONE.sub("", function)).replace(NAMELESS, "")
    hidden: list[str] = []

    def hide(match: re.Match[str]) -> str:
        """Replace the brackets that belong to the names of operators."""
        hidden.append(match[0])
        return f"\x01{len(hidden) - 1}\x02"

    name = OPERATOR.sub(hide, name)
    depth, start, text = 0, 0, ""
    for at, letter in enumerate(name):
        if letter in OPENING:
            if not depth:
                text += name[start:at]
                start = at
            depth += 1
        elif letter in CLOSING and depth:
            depth -= 1
            if not depth:
                inside = name[start : at + 1]
                start = at + 1
                if letter == ">" and text.endswith("::") and not inside.startswith("<impl "):
                    # Rust's arguments follow `::`.
                    text = text.removesuffix("::")
                else:
                    text += kept(inside, is_leading=not text or text.endswith(("::", " ")))
        elif letter == " " and not depth:
            text += name[start:at]
            if "\x01" not in text:  # what stands before is the result's type
                text = ""
            else:
                text += " "
            start = at + 1
    text += name[start:]
    parts = re.split("\x01(\\d+)\x02", text)
    whole = "".join(hidden[int(part)] if i % 2 else part for i, part in enumerate(parts))
    whole = LAMBDA_OF_CLANG.sub(lambda found: f"{{lambda()#{int(found[1]) + 1}}}", whole)
    return CALL_OF_LAMBDA.sub(r"\1", whole) or function
