#!/usr/bin/env python3
# SPDX-License-Identifier: MIT
"""What tools/layers.py lets pass and what it reports."""

from __future__ import annotations

import sys
import tempfile
import unittest
from pathlib import Path

sys.path.insert(0, str(Path(__file__).resolve().parents[2] / "tools"))
import layers

LONG_BODY = "    step();\n" * 70


class Includes(unittest.TestCase):
    def setUp(self) -> None:
        folder = tempfile.TemporaryDirectory()
        self.addCleanup(folder.cleanup)
        self.root = Path(folder.name)

    def findings(self, path: str, text: str) -> list[str]:
        file = self.root / path
        file.parent.mkdir(parents=True, exist_ok=True)
        file.write_text(text)
        return [f.text for f in layers.file_findings(self.root, Path(path))]

    def allows(self, path: str, include: str) -> bool:
        return not self.findings(path, f"#include {include}\n")

    def test_a_layer_sees_itself_and_what_lies_below(self) -> None:
        self.assertTrue(self.allows("src/core/a.c", '"ctx/ctx.h"'))
        self.assertTrue(self.allows("src/core/a.c", '"core/core.h"'))
        self.assertFalse(self.allows("src/base/a.c", '"os/os.h"'))
        self.assertFalse(self.allows("src/sync/a.c", '"io/io.h"'))

    def test_above_core_only_park_is_visible(self) -> None:
        self.assertTrue(self.allows("src/sync/a.c", '"core/park.h"'))
        self.assertFalse(self.allows("src/sync/a.c", '"core/core.h"'))
        self.assertFalse(self.allows("src/io/a.c", '"core/worker.h"'))

    def test_obs_stands_beside_the_layers(self) -> None:
        self.assertTrue(self.allows("src/obs/a.c", '"core/core.h"'))
        self.assertFalse(self.allows("src/obs/a.c", '"sync/mutex.h"'))
        self.assertTrue(self.allows("src/io/a.c", '"obs/record.h"'))
        self.assertTrue(self.allows("src/core/a.c", '"obs/record.h"'))
        self.assertFalse(self.allows("src/ctx/a.c", '"obs/record.h"'))

    def test_programs_see_the_public_headers_and_their_own(self) -> None:
        self.findings("serve/http.h", "")
        self.findings("src/core/park.h", "")
        self.assertTrue(self.allows("serve/a.c", '"http.h"'))
        self.assertTrue(self.allows("serve/a.c", "<rouse/thread.h>"))
        self.assertFalse(self.allows("serve/a.c", '"core/park.h"'))
        self.assertFalse(self.allows("examples/a.c", '"base/base.h"'))
        self.assertFalse(self.allows("bench/a.c", '"../src/core/park.h"'))
        self.assertFalse(self.allows("bench/a.c", '"io/fdtable.h"'))
        self.assertTrue(self.allows("bench/inside/a.c", '"io/fdtable.h"'))
        self.assertTrue(self.allows("preload/a.c", '"os/os.h"'))
        self.assertFalse(self.allows("preload/a.c", '"core/park.h"'))

    def test_a_file_outside_the_layers_is_reported(self) -> None:
        self.assertTrue(self.findings("src/stray.c", ""))
        self.assertTrue(self.findings("src/misc/stray.c", ""))

    def test_an_include_in_a_comment_is_none(self) -> None:
        self.assertFalse(self.findings("src/base/a.c", '/*\n#include "os/os.h"\n*/\n'))


class Sizes(unittest.TestCase):
    def functions(self, text: str) -> list[tuple[int, int]]:
        return [(f.line, f.lines) for f in layers.c_functions(text)]

    def findings(self, name: str, text: str) -> list[layers.Finding]:
        return list(layers.size_findings(Path(name), text))

    def test_functions_are_told_from_other_braces(self) -> None:
        text = (
            "struct a {\n    int b;\n};\n"
            "static int table[] = {\n    1,\n};\n"
            "#define EACH(x) \\\n    { x }\n"
            'extern "C" {\n'
            "__attribute__((format(printf, 1, 2))) void\nf(const char *t, ...)\n{\n    g('{');\n}\n"
            "}\n"
            "int main(void) { return 0; }\n"
        )
        self.assertEqual(self.functions(text), [(10, 3), (16, 1)])

    def test_the_branches_of_a_conditional_count_once(self) -> None:
        text = "#if A\nint f(void)\n{\n#else\nint f(int a)\n{\n#endif\n}\nint g(void)\n{\n}\n"
        self.assertEqual(self.functions(text), [(2, 6), (9, 2)])

    def test_a_long_function_needs_its_reason(self) -> None:
        function = "void f(void)\n{\n" + LONG_BODY + "}\n"
        self.assertEqual([f.line for f in self.findings("a.c", "\n" + function)], [2])
        self.assertFalse(self.findings("a.c", "/* length: one table of cases */\n" + function))
        self.assertTrue(self.findings("a.c", "/* length: too far away */\nint b;\n" + function))

    def test_a_long_python_function_needs_its_reason(self) -> None:
        function = "def f() -> None:\n" + LONG_BODY
        self.assertTrue(self.findings("a.py", function))
        self.assertFalse(self.findings("a.py", "# length: one table\n" + function))

    def test_a_long_file_needs_its_reason(self) -> None:
        self.assertTrue(self.findings("a.c", "int a;\n" * 501))
        self.assertFalse(self.findings("a.c", "int a;\n" * 500))
        self.assertFalse(self.findings("a.c", "/* size: generated */\n" + "int a;\n" * 501))


if __name__ == "__main__":
    unittest.main()
