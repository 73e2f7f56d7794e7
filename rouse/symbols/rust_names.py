# SPDX-License-Identifier: MIT
"""Names of Rust functions as they stand in the source, from symbols mangled as `v0` or before it.

The grammar is RFC 2603's; the text is rustc's own without the hashes of crates, as `nm -C` prints
it. Symbols come from others' files, and a back reference may stand for a name that has two of
them, so a few bytes can mean a name of any length. Both the steps and the depth are bounded here.
Rejected: the package rust-demangler, which bounds neither; libiberty, which no shared library has.

The older symbols are C++'s, with escapes for the characters that C++ has not in its names, and a
hash at the end.
"""

from __future__ import annotations

import re
from collections.abc import Callable

STEPS_MOST = 4096  # names, types and back references in one symbol
DEEPEST = 64  # of them within each other
LONGEST = 16384  # letters
BASIC = {
    **{"a": "i8", "b": "bool", "c": "char", "d": "f64", "e": "str", "f": "f32", "h": "u8"},
    **{"i": "isize", "j": "usize", "l": "i32", "m": "u32", "n": "i128", "o": "u128", "p": "_"},
    **{"s": "i16", "t": "u16", "u": "()", "v": "...", "x": "i64", "y": "u64", "z": "!"},
}
UNSIGNED = "hjmoty"
SIGNED = "ailnsx"
ESCAPED = {"\n": "\\n", "\r": "\\r", "\t": "\\t", "'": "\\'", "\\": "\\\\"}
POINTERS = {"P": "*const ", "O": "*mut "}
REFERENCES = {"R": "&", "Q": "&mut "}
BASE_62 = {
    letter: value
    for value, letter in enumerate("0123456789abcdefghijklmnopqrstuvwxyzABCDEFGHIJKLMNOPQRSTUVWXYZ")
}
OLD_HASH = re.compile(r"::h[0-9a-f]{16}$")
OLD_ESCAPE = re.compile(r"\$(?:(SP|BP|RF|LT|GT|LP|RP|C)|u([0-9a-f]{2,6}))\$|\.\.")
OLD_LETTERS = {
    "SP": "@",
    "BP": "*",
    "RF": "&",
    "LT": "<",
    "GT": ">",
    "LP": "(",
    "RP": ")",
    "C": ",",
}


class UnknownNameError(Exception):
    """The symbol is not one of Rust's, or exceeds a bound."""


class Parser:
    """Reads one symbol, and builds the name as it reads."""

    def __init__(self, text: str) -> None:
        self.text = text
        self.at = 0
        self.steps = 0
        self.depth = 0
        self.lifetimes = 0  # that the binders around this place name

    # Letters and numbers

    def peek(self) -> str:
        return self.text[self.at : self.at + 1]

    def take(self) -> str:
        letter = self.peek()
        if not letter:
            raise UnknownNameError
        self.at += 1
        return letter

    def accept(self, letter: str) -> bool:
        is_there = self.peek() == letter
        self.at += is_there
        return is_there

    def base_62(self) -> int:
        """Read a number that ends with `_`. The empty one means 0."""
        value, is_first = 0, True
        while not self.accept("_"):
            value, is_first = value * 62 + BASE_62.get(self.take(), 1 << 64), False
            if value >= 1 << 64:
                raise UnknownNameError
        return 0 if is_first else value + 1

    def tagged(self, tag: str) -> int:
        """Read a number that follows a tag. 0: the tag is not there."""
        return self.base_62() + 1 if self.accept(tag) else 0

    def decimal(self) -> int:
        """Read a length. It has no leading zeros, so what follows 0 is not part of it."""
        start = self.at
        if self.accept("0"):
            return 0
        while self.peek().isdigit():
            self.at += 1
        if start == self.at or self.at - start > 9:
            raise UnknownNameError
        return int(self.text[start : self.at])

    # Parts that may contain themselves

    def nested(self, read: Callable[[], str]) -> str:
        """Read a part within the bounds."""
        self.steps += 1
        self.depth += 1
        if self.steps > STEPS_MOST or self.depth > DEEPEST:
            raise UnknownNameError
        name = read()
        self.depth -= 1
        if len(name) > LONGEST:
            raise UnknownNameError
        return name

    def referred(self, read: Callable[[], str]) -> str:
        """Read a part again that stands earlier in the symbol."""
        before = self.at - 1
        target = self.base_62()
        if target >= before:
            raise UnknownNameError
        after, self.at = self.at, target
        name = read()
        self.at = after
        return name

    def until_end(self, read: Callable[[], str], between: str = ", ") -> str:
        parts = []
        while not self.accept("E"):
            parts.append(read())
        return between.join(parts)

    # Names

    def identifier(self) -> str:
        is_punycode = self.accept("u")
        size = self.decimal()
        self.accept("_")
        name = self.text[self.at : self.at + size]
        if len(name) < size:
            raise UnknownNameError
        self.at += size
        if not is_punycode:
            return name
        head, _, tail = name.rpartition("_")
        try:
            return (f"{head}-{tail}" if head else tail).encode().decode("punycode")
        except (UnicodeError, OverflowError) as error:
            raise UnknownNameError from error

    def path(self, is_value: bool = True) -> str:
        """Read a path. is_value: it names a function, so that arguments follow `::`."""
        return self.nested(lambda: self.read_path(is_value))

    def read_path(self, is_value: bool) -> str:
        kind = self.take()
        if kind == "C":
            self.tagged("s")
            return self.identifier()
        if kind == "N":
            return self.member(is_value)
        if kind in "MXY":
            if kind != "Y":  # where the impl block stands is not printed
                self.tagged("s")
                self.path()
            own = self.type()
            return f"<{own}>" if kind == "M" else f"<{own} as {self.path(False)}>"
        if kind == "I":
            name = self.path(is_value)
            return name + ("::<" if is_value else "<") + self.until_end(self.argument) + ">"
        if kind == "B":
            return self.referred(lambda: self.path(is_value))
        raise UnknownNameError

    def member(self, is_value: bool) -> str:
        """Read a name within a path. A capital marks what the compiler made, such as a closure."""
        space = self.take()
        if not (space.isascii() and space.isalpha()):
            raise UnknownNameError
        outer = self.path(is_value)
        number, name = self.tagged("s"), self.identifier()
        if space.islower():
            return f"{outer}::{name}" if name else outer
        made = {"C": "closure", "S": "shim"}.get(space, space)
        return f"{outer}::{{{made}{':' if name else ''}{name}#{number}}}"

    def argument(self) -> str:
        if self.accept("L"):
            return self.lifetime(self.base_62())
        return self.constant() if self.accept("K") else self.type()

    # Types

    def lifetime(self, number: int) -> str:
        """Return the name of a lifetime, counted from the innermost binder. 0: it has none."""
        if not number:
            return "'_"
        depth = self.lifetimes - number
        if depth < 0:
            raise UnknownNameError
        return f"'{chr(ord('a') + depth)}" if depth < 26 else f"'_{depth}"

    def bound(self, read: Callable[[], str]) -> str:
        """Read what a binder (`for<'a>`) may stand before."""
        count = self.tagged("G")
        if count > DEEPEST:
            raise UnknownNameError
        self.lifetimes += count
        names = ", ".join(self.lifetime(n) for n in range(count, 0, -1))
        name = (f"for<{names}> " if count else "") + read()
        self.lifetimes -= count
        return name

    def type(self) -> str:
        return self.nested(self.read_type)

    def read_type(self) -> str:
        kind = self.take()
        if kind in BASIC:
            return BASIC[kind]
        if kind in REFERENCES:
            number = self.base_62() if self.accept("L") else 0
            lifetime = f"{self.lifetime(number)} " if number else ""
            return REFERENCES[kind].replace("&", f"&{lifetime}") + self.type()
        if kind in POINTERS:
            return POINTERS[kind] + self.type()
        if kind == "A":
            return f"[{self.type()}; {self.constant()}]"
        if kind == "S":
            return f"[{self.type()}]"
        if kind == "T":
            parts = self.until_end(self.type, "\0").split("\0")
            return f"({', '.join(parts)}{',' if len(parts) == 1 and parts[0] else ''})"
        if kind == "F":
            return self.bound(self.signature)
        if kind == "D":
            traits = self.bound(lambda: self.until_end(self.trait, " + "))
            if not self.accept("L"):
                raise UnknownNameError
            number = self.base_62()
            return f"dyn {traits}" + (f" + {self.lifetime(number)}" if number else "")
        if kind == "B":
            return self.referred(self.type)
        self.at -= 1
        return self.path(False)

    def signature(self) -> str:
        start = "unsafe " if self.accept("U") else ""
        if self.accept("K"):
            abi = "C" if self.accept("C") else self.identifier().replace("_", "-")
            start += f'extern "{abi}" '
        arguments = self.until_end(self.type)
        result = self.type()
        return f"{start}fn({arguments})" + ("" if result == "()" else f" -> {result}")

    def trait(self) -> str:
        """Read a trait and its associated types: Iterator<Item = u8>."""
        name, bindings = self.path(False), []
        while self.accept("p"):
            bindings.append(f"{self.identifier()} = {self.type()}")
        if not bindings:
            return name
        start = f"{name[:-1]}, " if name.endswith(">") else f"{name}<"
        return start + ", ".join(bindings) + ">"

    # Constants

    def constant(self) -> str:
        return self.nested(self.read_constant)

    def read_constant(self) -> str:
        kind = self.take()
        if kind == "p":
            return "_"
        if kind == "B":
            return self.referred(self.constant)
        if kind not in UNSIGNED + SIGNED + "bc":
            raise UnknownNameError
        sign = "-" if kind in SIGNED and self.accept("n") else ""
        digits = ""
        while not self.accept("_"):
            digits += self.take()
        if len(digits) > 32 or not all(digit in "0123456789abcdef" for digit in digits):
            raise UnknownNameError
        value = int(digits or "0", 16)
        if kind == "b" and value < 2:
            return ("false", "true")[value]
        if kind == "c" and value < 0x110000 and not 0xD800 <= value < 0xE000:
            letter = chr(value)
            shown = letter if letter.isprintable() else f"\\u{{{value:x}}}"
            return f"'{ESCAPED.get(letter, shown)}'"
        if kind in "bc":
            raise UnknownNameError
        return f"{sign}{value if value < 1 << 64 else hex(value)}"


def demangled(symbol: str) -> str | None:
    """Return the name in the source. None: the symbol is none of Rust's v0, or exceeds a bound."""
    body = symbol.removeprefix("_R").partition(".")[0]  # what follows numbers a copy
    if not symbol.startswith("_R") or not body.isascii() or not body[:1].isupper():
        return None
    parser = Parser(body)
    try:
        name = parser.path()
        if parser.at < len(body):  # the crate that made this instance of a generic function
            parser.path()
    except UnknownNameError:
        return None
    return name if parser.at == len(body) else None


def unescaped(name: str) -> str | None:
    """Return the name in the source, from what C++ reads in an older symbol. None: it is of C++."""
    if not OLD_HASH.search(name):
        return None

    def letter(match: re.Match[str]) -> str:
        if match[0] == "..":
            return "::"
        if match[1]:
            return OLD_LETTERS[match[1]]
        code = int(match[2], 16)
        return chr(code) if code < 0x110000 and chr(code).isprintable() else match[0]

    parts = OLD_HASH.sub("", name).split("::")
    # A name that begins with an escape has an underscore before it.
    return "::".join(OLD_ESCAPE.sub(letter, re.sub(r"^_\$", "$", part)) for part in parts)
