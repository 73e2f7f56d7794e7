# SPDX-License-Identifier: MIT
"""Reading the numbers and strings of DWARF, one after the other."""

from __future__ import annotations


class Reader:
    """Raises ValueError or IndexError past the end."""

    __slots__ = ("at", "data")

    def __init__(self, data: bytes, at: int) -> None:
        self.data, self.at = data, at

    def fixed(self, size: int) -> int:
        raw = self.data[self.at : self.at + size]
        if len(raw) != size:
            raise ValueError("a number reaches past the end of its section")
        self.at += size
        return int.from_bytes(raw, "little")

    def uleb(self) -> int:
        value = shift = 0
        while True:
            byte = self.data[self.at]
            self.at += 1
            value |= (byte & 0x7F) << shift
            if byte < 0x80:
                return value
            shift += 7

    def sleb(self) -> int:
        start = self.at
        value = self.uleb()
        bits = 7 * (self.at - start)
        return value - (1 << bits) if value >> (bits - 1) else value

    def string(self) -> bytes:
        end = self.data.find(b"\0", self.at)
        if end < 0:
            raise ValueError("a string reaches past the end of its section")
        text = self.data[self.at : end]
        self.at = end + 1
        return text

    def unit_length(self) -> tuple[int, bool]:
        """A unit's size, and whether its offsets have 8 bytes."""
        size = self.fixed(4)
        return (self.fixed(8), True) if size == 0xFFFFFFFF else (size, False)
