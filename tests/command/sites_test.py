#!/usr/bin/env python3
# SPDX-License-Identifier: MIT
"""The function and line of an address agree with addr2line, or are empty if unknown."""

from __future__ import annotations

import os
import random
import re
import shutil
import subprocess
import tempfile
import time
import unittest
from collections.abc import Sequence
from pathlib import Path
from typing import Any
from unittest import mock

from common import SOURCE  # noqa: F401 enters the environment that the rest needs

import numpy as np
from elftools.elf.elffile import ELFFile
from synthetic import Builder

from rouse.store import layout
from rouse.symbols import demangle, elf, sites

MAIN = """\
#include "part.h"
#include <stdlib.h>
static int twice(int n)
{
    return n * 2 + atoi("1");
}
__attribute__((noinline)) int work(int n)
{
    int sum = 0;
    for (int i = 0; i < n; i++)
        sum += helper(i) + twice(i);
    return sum;
}
int main(int argc, char **argv)
{
    (void)argv;
    return work(argc);
}
"""
PART = """\
#include "part.h"
#include <stdio.h>
__attribute__((noinline)) int helper(int n)
{
    if (n > 3)
        puts("many");
    return n;
}
struct { long first; int many[8]; } table;
/* Code without a size, which belongs to no symbol. */
__asm__(".text\\n.globl bare\\n.type bare, @function\\nbare:\\n.fill 64, 1, 0x90\\nret\\n");
__attribute__((noinline)) int after(int n)
{
    return helper(n) + 1;
}
"""
CPP = """\
#include <iostream>
#include <map>
#include <mutex>
#include <string>
#include <thread>
#include <vector>
namespace db {
class Table {
    std::mutex lock;
    std::map<std::string, int> rows;

public:
    void put(const std::string &key)
    {
        std::lock_guard<std::mutex> hold(lock);
        rows[key]++;
    }
    __attribute__((noinline)) void checkpoint()
    {
        std::lock_guard<std::mutex> hold(lock);
        std::cout << rows.size();
    }
};
}
int main()
{
    db::Table table;
    std::vector<std::thread> all;
    for (int i = 0; i < 3; i++)
        all.emplace_back([&table, i] { table.put(std::to_string(i)); });
    for (auto &one : all)
        one.join();
    struct Local {
        db::Table &table;
        __attribute__((noinline)) void put_all()
        {
            for (int i = 0; i < 9; i++)
                table.put(std::to_string(i));
        }
    } local{table};
    local.put_all();
    auto several = [&](int n) __attribute__((noinline)) { table.put(std::to_string(n)); };
    several(3);
    several(4);
    table.checkpoint();
}
"""
FARM = """\
namespace
{
volatile int done;
class Farm
{
  public:
    template <typename Job> void run(Job job)
    {
        done = done + 1;
        job();
    }
};
namespace remote
{
void compile()
{
    done = done + 2;
}
} // namespace remote
} // namespace
int main()
{
    struct Local {
        void build()
        {
            done = done + 1;
            remote::compile();
        }
    } local;
    Farm farm;
    farm.run([&] {
        done = done - 1;
        local.build();
    });
    { farm.run([&] { done = done + 3; }); }
    return done;
}
"""
FARM_NAMES = {
    "main",
    "Farm::run",
    "main::{lambda()#1}",
    "main::{lambda()#2}",
    "main::Local::build",
    "remote::compile",
}
HEADER = "int helper(int n);\nint after(int n);\n"
COMPILERS = [name for name in ("gcc", "clang") if shutil.which(name)]


def output_of(*words: str) -> str:
    return subprocess.run(words, check=True, capture_output=True, text=True).stdout


def bare(name: str) -> str:
    """A function's name without template arguments."""
    while (shorter := re.sub(r"<[^<>]*>", "", name)) != name:
        name = shorter
    return name.rstrip()


class Built(unittest.TestCase):
    def setUp(self) -> None:
        holder = tempfile.TemporaryDirectory()
        self.addCleanup(holder.cleanup)
        self.folder = Path(holder.name)
        (self.folder / "sub").mkdir()
        for name, text in (("main.c", MAIN), ("sub/part.c", PART), ("sub/part.h", HEADER)):
            (self.folder / name).write_text(text)

    def build(self, compiler: str, *flags: str, name: str = "program") -> Path:
        out = self.folder / name
        options = [*flags, "-Isub", "-Wl,--build-id", "-o", str(out)]
        words = [compiler, *options, "main.c", "sub/part.c"]
        subprocess.run(words, cwd=self.folder, check=True, capture_output=True)
        return out

    def code(self, path: Path) -> range:
        with path.open("rb") as file:
            text: Any = ELFFile(file).get_section_by_name(".text")
            return range(text["sh_addr"], text["sh_addr"] + text["sh_size"])

    def said(
        self, path: Path, addresses: Sequence[int], tool: str = "addr2line"
    ) -> list[tuple[str, str]]:
        """The function and file:line that addr2line prints for each address."""
        lines = output_of(tool, "-f", "-e", str(path), *map(hex, addresses)).splitlines()
        places = (re.sub(r" \(discriminator.*", "", line) for line in lines[1::2])
        return list(zip(lines[::2], places, strict=True))

    def symbol(self, path: Path, name: str) -> int:
        found = re.search(rf"^([0-9a-f]+) \w {name}$", output_of("nm", str(path)), re.MULTILINE)
        assert found
        return int(found[1], 16)

    def end(self, path: Path, name: str) -> int:
        lines = output_of("nm", "-S", str(path))
        found = re.search(rf"^([0-9a-f]+) ([0-9a-f]+) \w {name}$", lines, re.MULTILINE)
        assert found
        return int(found[1], 16) + int(found[2], 16)


class Lines(Built):
    def test_each_address_has_the_line_that_addr2line_gives_it(self) -> None:
        flags = [
            ("-O0", "-g"),
            ("-O2", "-g"),
            ("-O2", "-gdwarf-2"),
            ("-O2", "-gdwarf-3"),
            ("-O2", "-gdwarf-4"),
            ("-O2", "-gdwarf-5"),
            ("-O2", "-g", "-ffunction-sections"),
            ("-O2", "-g", "-gz"),
            ("-O2", "-g", "-no-pie"),
        ]
        for compiler in COMPILERS:
            for some in flags:
                with self.subTest(compiler=compiler, flags=some):
                    path = self.build(compiler, *some)
                    file = elf.Elf(path)
                    code = self.code(path)
                    known = 0
                    for address, (_, place) in zip(code, self.said(path, code), strict=True):
                        line = file.line(address)
                        if place.endswith((":?", ":0")):
                            self.assertIsNone(line, hex(address))
                            continue
                        known += 1
                        assert line is not None, hex(address)
                        self.assertEqual(f"{Path(line.file).resolve()}:{line.line}", place)
                    self.assertGreater(known, 50)

    @unittest.skipUnless(
        shutil.which("g++") and shutil.which("llvm-addr2line"),
        "g++, clang++ or llvm-addr2line is missing",
    )
    def test_addresses_of_cpp_with_library_headers(self) -> None:
        """addr2line of binutils 2.40 names wrong files where DWARF 5 numbers one file twice."""
        (self.folder / "many.cpp").write_text(CPP)
        for flags in (("-gdwarf-4", "-gz"), ("-gdwarf-5", "-gdwarf64")):
            with self.subTest(flags=flags):
                path = self.folder / "many"
                words = ["g++", "-O2", *flags, "-pthread", "-o", str(path), "many.cpp"]
                subprocess.run(words, cwd=self.folder, check=True, capture_output=True)
                code = self.code(path)
                asked = random.Random(1).sample(code, min(len(code), 2000))
                lines = self.said(path, asked, "llvm-addr2line")
                file = elf.Elf(path)
                for address, (_, place) in zip(asked, lines, strict=True):
                    line = file.line(address)
                    said = place if line is None else f"{line.file}:{line.line}"
                    self.assertEqual(said, place, hex(address))
                self.assertGreater(sum(not place.startswith("??") for _, place in lines), 1000)

    @unittest.skipUnless(
        shutil.which("clang++") and shutil.which("llvm-addr2line"),
        "g++, clang++ or llvm-addr2line is missing",
    )
    def test_inlined_functions_are_listed(self) -> None:
        (self.folder / "many.cpp").write_text(CPP)
        for words in (["g++", "-gdwarf-5", "-ffunction-sections"], ["clang++", "-gdwarf-4"]):
            with self.subTest(words=words):
                path = self.folder / "many"
                words = [*words, "-O2", "-pthread", "-o", str(path), "many.cpp"]
                subprocess.run(words, cwd=self.folder, check=True, capture_output=True)
                self.check_inlined(path)

    def check_inlined(self, path: Path) -> None:
        code = self.code(path)
        asked = random.Random(2).sample(code, min(len(code), 500))
        words = ("llvm-addr2line", "-i", "-f", "-C", "-a", "-e", str(path))
        said: list[list[str]] = []
        for line in output_of(*words, *map(hex, asked)).splitlines():
            if re.fullmatch("0x[0-9a-f]+", line):
                said.append([])
            else:
                said[-1].append(re.sub(r" \(discriminator.*", "", line))
        file, deep = elf.Elf(path), 0
        for address, lines in zip(asked, said, strict=True):
            if lines[1].endswith((":0", ":?")):
                continue
            places = file.places(address)
            found = [f"{Path(place.file).resolve()}:{place.line}" for place in places]
            expected = [place for place in lines[1::2] if not place.endswith(":0")]
            expected = [str(Path(place).resolve()) for place in expected]
            self.assertEqual(found, expected, hex(address))
            name = demangle.short(places[0].function)
            # Names that addr2line does not know, or lambdas, which it names in another way.
            if not lines[0].startswith(("?", "_Z")) and "lambda" not in lines[0]:
                said_name = demangle.short(lines[0].removesuffix(".cold"))
                # It does not have the scopes of functions that are of this unit only.
                self.assertIn(bare(said_name), (bare(name), bare(name).split("::")[-1]))
            deep += len(places) > 1
        self.assertGreater(deep, 50)

    def test_functions_without_a_linkage_name_have_their_scopes(self) -> None:
        """Lambdas, and what is in local classes or namespaces without a name, are of one unit."""
        (self.folder / "farm.cpp").write_text(FARM)
        for words in (["g++", "-O0"], ["g++", "-O2"], ["clang++", "-O2"]):
            with self.subTest(words=words):
                path = self.folder / "farm"
                words = [*words, "-g", "-o", str(path), "farm.cpp"]
                if not shutil.which(words[0]):
                    continue
                subprocess.run(words, cwd=self.folder, check=True, capture_output=True)
                file = elf.Elf(path)
                names = {
                    bare(demangle.short(place.function))
                    for address in self.code(path)
                    for place in file.places(address)
                    if place.file.endswith("farm.cpp")
                }
                self.assertEqual(names - {""}, FARM_NAMES)

    def test_file_names_are_not_cut(self) -> None:
        path = self.build(COMPILERS[0], "-g")
        line = elf.Elf(path).line(self.symbol(path, "helper"))
        self.assertEqual(line, elf.Line(str(self.folder / "sub/part.c"), 4, "helper"))

    def test_separate_debug_information_is_used(self) -> None:
        path = self.build(COMPILERS[0], "-g")
        address = self.symbol(path, "helper")
        whole = elf.Elf(path)
        known = whole.line(address)
        self.assertIsNotNone(known)
        place = self.folder / "debug" / ".build-id"
        apart = place / whole.build_id[:2] / f"{whole.build_id[2:]}.debug"
        apart.parent.mkdir(parents=True)
        shutil.copyfile(path, apart)
        subprocess.run(["strip", path], check=True)
        self.assertIsNone(elf.Elf(path).line(address))
        with mock.patch.object(elf, "DEBUG_FILES", self.folder / "debug"):
            file = elf.Elf(path)
            self.assertEqual(file.line(address), known)
            self.assertEqual(file.function(address), ("helper", 0))

    def test_debug_information_that_a_link_names_is_used(self) -> None:
        for words in ([], ["-Wl,--build-id=none"]):
            path = self.build(COMPILERS[0], "-g", *words)
            address = self.symbol(path, "helper")
            known = elf.Elf(path).line(address)
            apart = self.folder / "part.debug"
            for command in (
                ["objcopy", "--only-keep-debug", str(path), str(apart)],
                ["strip", str(path)],
                ["objcopy", f"--add-gnu-debuglink={apart}", str(path)],
            ):
                subprocess.run(command, check=True)
            self.assertIsNotNone(known)
            for folder in (self.folder, self.folder / ".debug"):
                with self.subTest(words=words, folder=folder.name):
                    folder.mkdir(exist_ok=True)
                    apart = apart.rename(folder / apart.name)
                    file = elf.Elf(path)
                    self.assertEqual(file.line(address), known)
                    self.assertEqual(file.function(address), ("helper", 0))
            with apart.open("ab") as damaged:
                damaged.write(b"\0")
            self.assertIsNone(elf.Elf(path).line(address))
            apart.unlink()


class Symbols(Built):
    def test_the_symbol_of_an_address_covers_it(self) -> None:
        path = self.build(COMPILERS[0], "-O1")
        file = elf.Elf(path)
        helper, bare, after = (self.symbol(path, name) for name in ("helper", "bare", "after"))
        self.assertEqual(file.function(helper), ("helper", 0))
        self.assertEqual(file.function(after + 3), ("after", 3))
        self.assertIsNone(file.function(bare))
        self.assertIsNone(file.function(bare + 60))
        self.assertIsNone(file.function(0))
        self.assertIsNone(file.function((1 << 64) - 1))

    def test_a_variable_is_named_by_an_address_within_it(self) -> None:
        path = self.build(COMPILERS[0], "-O1")
        file = elf.Elf(path)
        table = self.symbol(path, "table")
        self.assertEqual(file.variable(table), ("table", 0))
        self.assertEqual(file.variable(table + 12), ("table", 12))
        self.assertIsNone(file.variable(table + 40))
        self.assertIsNone(file.variable(self.symbol(path, "helper")))
        self.assertIsNone(file.function(table))

    def test_a_stripped_library_has_its_exported_names(self) -> None:
        path = self.build(COMPILERS[0], "-O1", "-fPIC", "-shared", name="lib.so")
        helper = self.symbol(path, "helper")
        subprocess.run(["strip", path], check=True)
        self.assertEqual(elf.Elf(path).function(helper), ("helper", 0))

    def test_cpp_names_are_demangled(self) -> None:
        for symbol, name in (
            (b"_ZN3app4loopEPv", b"app::loop(void*)"),
            (b"_ZZN3app4mainEvENKUlvE_clEv", b"app::main()::{lambda()#1}::operator()() const"),
            (b"_ZN12_GLOBAL__N_13runEv.cold", b"(anonymous namespace)::run() [clone .cold]"),
            *(
                (other, other)
                for other in (b"main", b"", b"_Z", b"_Zbroken", b"Z1fv", b"\xff_Z1fv")
            ),
        ):
            self.assertEqual(demangle.demangled(symbol), name)
        deep = b"_Z1f" + b"P" * 1_000_000 + b"i"
        self.assertEqual(demangle.demangled(deep), deep)

    def test_rust_names_are_demangled(self) -> None:
        names = (Path(__file__).parent / "rust_names.txt").read_text().splitlines()
        for symbol, name in (line.split(" ", 1) for line in names):
            self.assertEqual(demangle.demangled(symbol.encode()).decode(), name)

    def test_names_of_this_machines_rust_are_demangled_as_binutils_has_them(self) -> None:
        if not shutil.which("rustc"):
            self.skipTest("no rustc here")
        source = self.folder / "names.rs"
        source.write_text('fn main() { std::thread::spawn(|| println!("x")).join().unwrap(); }')
        program = self.folder / "names"
        for begin, mangling in (("_R", ["-Csymbol-mangling-version=v0"]), ("_ZN", [])):
            subprocess.run(["rustc", *mangling, "-o", program, source], check=True)
            self.check_names(program, begin)

    def check_names(self, program: Path, begin: str) -> None:
        """Compare the names of the program's symbols with those of binutils."""

        def listed(*options: str) -> list[str]:
            command = ["nm", "-p", *options, str(program)]
            lines = subprocess.run(command, check=True, capture_output=True, text=True).stdout
            return [line[19:] for line in lines.splitlines()]

        pairs = zip(listed(), listed("-C"), strict=True)
        named = [(symbol, name) for symbol, name in pairs if symbol.startswith(begin)]
        self.assertGreater(len(named), 100)
        for symbol, name in named:
            self.assertEqual(demangle.demangled(symbol.encode()).decode(), name, symbol)

    def test_a_small_rust_name_cannot_stand_for_a_huge_one(self) -> None:
        def doubled(times: int) -> str:
            """Return a name with 2^times units: each pair is two of the pair before."""
            pair, at = "_RINvC1a1bTuuE", 10
            for _ in range(times - 1):
                reference, at = f"B{base_62(at - len('_R'))}", len(pair)
                pair += f"T{reference}{reference}E"
            return f"{pair}E"

        small = demangle.demangled(doubled(2).encode())
        self.assertEqual(small, b"a::b::<((), ()), (((), ()), ((), ()))>")
        bombs = [doubled(40), "_RINvC1a1b" + "S" * 100_000 + "uE", "_RINvC1a1bB7_E"]
        bombs.append("_RNvC1a" + "9" * 5000 + "b")
        for symbol in bombs:
            start = time.process_time()
            self.assertEqual(demangle.demangled(symbol.encode()).decode(), symbol)
            self.assertLess(time.process_time() - start, 5)

    def test_short_names(self) -> None:
        for function, name in (
            ("main", "main"),
            ("db::Table::put(std::string const&)", "db::Table::put"),
            (
                "app::main()::{lambda()#1}::operator()() const",
                "app::main::{lambda()#1}",
            ),
            ("app::main()::$_0::operator()() const", "app::main::{lambda()#1}"),
            ("(anonymous namespace)::run() [clone .cold]", "run"),
            ("void std::__invoke<int (*)(int)>(std::x, int)", "std::__invoke<int (*)(int)>"),
            ("std::map<std::string, std::vector<int> >::~map()", "std::map<...>::~map"),
            ("Foo::operator bool() const", "Foo::operator bool"),
            ("operator new(unsigned long)", "operator new"),
            ("Box<A>::operator->() const", "Box<A>::operator->"),
            ("<alloc::Vec<T> as core::Drop>::drop", "<alloc::Vec<T> as core::Drop>::drop"),
            ("app::run::<u8, app::Tag>::{closure#0}", "app::run::{closure#0}"),
            ("<app::Pool<u8>>::take::<()>", "<app::Pool<u8>>::take"),
            ("app::<impl Tag>::take", "app::<impl Tag>::take"),
            ("", ""),
            ("(((", "((("),
        ):
            self.assertEqual(demangle.short(function), name)

    def test_cpp_names_without_a_demangler(self) -> None:
        demangle.calls.cache_clear()
        self.addCleanup(demangle.calls.cache_clear)
        with mock.patch.object(demangle, "LIBRARY", "libnone.so"):
            self.assertEqual(demangle.demangled(b"_Z1fv"), b"_Z1fv")


def base_62(value: int) -> str:
    """Return a number as the names of Rust's symbols have it."""
    digits = "0123456789abcdefghijklmnopqrstuvwxyzABCDEFGHIJKLMNOPQRSTUVWXYZ"
    text = "_"
    value -= 1
    while value >= 0:
        text = digits[value % 62] + text
        value = value // 62 - (value < 62)
    return text


class Refusals(Built):
    def test_a_file_of_another_build_is_refused(self) -> None:
        path = self.build(COMPILERS[0])
        own = elf.Elf(path).build_id
        self.assertEqual(len(own), 40)
        elf.Elf(path, own)
        with self.assertRaisesRegex(elf.ElfError, "is another build"):
            elf.Elf(path, "00" * 20)

    def test_invalid_and_missing_files_are_refused(self) -> None:
        noise = self.folder / "noise"
        noise.write_bytes(b"\x7fELF" + bytes(range(256)) * 8)
        known = {noise: "no ELF", self.folder: "is no regular file", Path("/no"): "No such"}
        for path, says in known.items():
            with self.assertRaisesRegex(elf.ElfError, says):
                elf.Elf(path)

    def test_a_damaged_file_gives_no_frames_and_no_exception(self) -> None:
        path = self.build(COMPILERS[0], "-g")
        whole = path.read_bytes()
        code = self.code(path)
        for cut in range(64, len(whole), len(whole) // 60):
            path.write_bytes(whole[:cut] + bytes(len(whole) - cut))
            try:
                file = elf.Elf(path)
            except elf.ElfError:
                continue
            for address in code[::16]:
                file.line(address)
                file.function(address)


class OfAStore(Built):
    BIAS = 0x55_0000_0000

    def known(self, path: Path, build_id: str) -> sites.Sites:
        raw = bytes.fromhex(build_id)
        module = {
            "start": self.BIAS,
            "end": self.BIAS + (1 << 20),
            "bias": self.BIAS,
            "build_id_bytes": len(raw),
            "build_id": list(raw.ljust(32, b"\0")),
            "path": str(path).encode(),
        }
        read = Builder().chunk(layout.MODULES, [module]).store()
        self.resolver = sites.Resolver()
        return sites.Sites(read, self.resolver)

    def frames(self, path: Path, build_id: str, *addresses: int) -> list[sites.Frame]:
        known = self.known(path, build_id)
        return [known.frames(self.BIAS + address)[0] for address in addresses]

    def test_a_return_address_is_looked_up_in_its_call(self) -> None:
        """The address after a function's last call belongs to the next function."""
        path = self.build(COMPILERS[0], "-O1", "-g")
        file = elf.Elf(path)
        end = self.end(path, "helper")
        (frame,) = self.frames(path, file.build_id, end)
        self.assertEqual((frame.function, frame.offset), ("helper", end))
        self.assertEqual(frame.label, f"helper part.c:{frame.line}")

    def test_without_symbols_the_label_is_module_and_offset(self) -> None:
        path = self.build(COMPILERS[0], "-O1")
        subprocess.run(["strip", path], check=True)
        address = self.code(path)[20]
        (frame,) = self.frames(path, elf.Elf(path).build_id, address)
        self.assertEqual((frame.label, frame.function), (f"program+{address:#x}", None))
        (frame,) = self.frames(path, "ab" * 20, address)
        self.assertEqual(frame.label, f"program+{address:#x}")
        self.assertIn("another build", self.resolver.problems[0])

    def test_locks_that_are_variables_have_their_names(self) -> None:
        path = self.build(COMPILERS[0], "-O1")
        known = self.known(path, elf.Elf(path).build_id)
        table = self.BIAS + self.symbol(path, "table")
        words = [table, table + 12, table + 12, table + 40, 0, 5, 1 << 63]
        names = known.variables(np.array(words, np.uint64))
        self.assertEqual(names, {table: "table", table + 12: "table+0xc"})
        # Where the file is missing, the recording itself has the names.
        frames = dict(self.resolver.frames)
        path.unlink()
        elsewhere = self.known(path, known.modules[0].build_id)
        self.resolver.frames |= frames
        self.assertEqual(elsewhere.variables(np.array(words, np.uint64)), names)

    def test_an_address_in_no_module(self) -> None:
        path = self.build(COMPILERS[0])
        (frame,) = self.frames(path, elf.Elf(path).build_id, 1 << 40)
        self.assertEqual((frame.label, frame.module), (hex(self.BIAS + (1 << 40)), None))


class SpansTest(unittest.TestCase):
    SEED = int(os.environ.get("ROUSE_SEED", time.time_ns() % 1_000_000))

    def test_the_first_of_overlapping_modules_has_the_address(self) -> None:
        print(f"ROUSE_SEED={self.SEED}", flush=True)
        chance = random.Random(self.SEED)
        for _ in range(200):
            edges = [(chance.randrange(40), chance.randrange(40)) for _ in range(8)]
            addresses = list(range(42))
            want = [
                next((n for n, (start, end) in enumerate(edges) if start <= a < end), -1)
                for a in addresses
            ]
            got = sites.Spans(edges).of(np.array(addresses, np.uint64))
            self.assertEqual(got.tolist(), want, edges)

    def test_no_module_has_no_address(self) -> None:
        self.assertEqual(sites.Spans([]).of(np.array([1], np.uint64)).tolist(), [-1])


if __name__ == "__main__":
    if not COMPILERS or not shutil.which("addr2line"):
        print("not run: no compiler, or no addr2line here")
        raise SystemExit(77)
    unittest.main(verbosity=2)
