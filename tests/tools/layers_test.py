#!/usr/bin/env python3
# SPDX-License-Identifier: MIT
"""Which includes tools/layers.py allows, and how it measures functions."""

from __future__ import annotations

import contextlib
import io
import sys
import tempfile
import unittest
from pathlib import Path

sys.path.insert(0, str(Path(__file__).resolve().parents[2] / "tools"))
import layers


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

    def test_a_layer_includes_itself_and_lower_layers(self) -> None:
        self.assertTrue(self.allows("src/core/a.c", '"ctx/ctx.h"'))
        self.assertTrue(self.allows("src/core/a.c", '"core/core.h"'))
        self.assertFalse(self.allows("src/base/a.c", '"os/os.h"'))
        self.assertFalse(self.allows("src/sync/a.c", '"io/io.h"'))

    def test_above_core_only_its_public_headers_are_visible(self) -> None:
        self.assertTrue(self.allows("src/sync/a.c", '"core/park.h"'))
        self.assertTrue(self.allows("src/io/a.c", '"core/poller.h"'))
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

    def test_records_of_the_interposer_do_not_see_its_hooks(self) -> None:
        for header in ("process/real.h", "record/wait.h", "accept/order.h", "hooks/mutex.h"):
            self.findings(f"preload/{header}", "")
        self.assertTrue(self.allows("preload/hooks/a.c", '"record/wait.h"'))
        self.assertTrue(self.allows("preload/lifecycle.c", '"accept/order.h"'))
        self.assertFalse(self.allows("preload/record/a.c", '"accept/order.h"'))
        self.assertFalse(self.allows("preload/accept/a.c", '"hooks/mutex.h"'))
        self.assertFalse(self.allows("preload/process/a.c", '"record/wait.h"'))

    def test_a_file_outside_the_layers_is_reported(self) -> None:
        self.assertTrue(self.findings("src/stray.c", ""))
        self.assertTrue(self.findings("src/misc/stray.c", ""))

    def test_an_include_in_a_comment_is_none(self) -> None:
        self.assertFalse(self.findings("src/base/a.c", '/*\n#include "os/os.h"\n*/\n'))


class Imports(unittest.TestCase):
    def findings(self, files: dict[str, str]) -> list[str]:
        with tempfile.TemporaryDirectory() as folder:
            for name, text in files.items():
                file = Path(folder, "rouse", name)
                file.parent.mkdir(parents=True, exist_ok=True)
                file.write_text(text)
            return [str(finding) for finding in layers.import_findings(Path(folder))]

    def test_a_package_imports_from_itself_and_from_those_below(self) -> None:
        files = {"clock.py": "", "store/a.py": "", "query/a.py": "", "query/b.py": ""}
        files["query/a.py"] = (
            "from rouse import clock\nfrom rouse.store.a import x\nfrom rouse.query import b\n"
        )
        self.assertEqual(self.findings(files), [])

    def test_an_import_of_a_package_above_is_reported(self) -> None:
        files = {"store/a.py": "import os\nfrom rouse.query import b\n", "query/b.py": ""}
        (found,) = self.findings(files)
        self.assertIn("rouse/store/a.py:2: rouse.store.a must not import rouse.query.b", found)

    def test_an_import_inside_a_function_counts(self) -> None:
        text = "def f():\n    from rouse.cli.b import c\n"
        self.assertEqual(len(self.findings({"clock.py": text, "cli/b.py": ""})), 1)
        self.assertEqual(self.findings({"__main__.py": text, "cli/b.py": ""}), [])

    def test_a_circle_inside_a_package_is_reported(self) -> None:
        files = {
            "query/a.py": "from rouse.query import b\n",
            "query/b.py": "from rouse.query.c import x\n",
            "query/c.py": "import rouse.query.a\n",
        }
        (found,) = self.findings(files)
        self.assertIn("rouse.query.a -> rouse.query.b -> rouse.query.c -> rouse.query.a", found)

    def test_a_package_that_has_no_place_is_reported(self) -> None:
        (found,) = self.findings({"misc/a.py": ""})
        self.assertIn("lies outside the packages", found)


class Sizes(unittest.TestCase):
    def functions(self, text: str) -> list[tuple[int, int]]:
        return [(f.line, f.lines) for f in layers.c_functions(text)]

    def test_functions_are_distinguished_from_other_braces(self) -> None:
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

    def test_the_longest_pieces_are_listed_and_are_no_error(self) -> None:
        with tempfile.TemporaryDirectory() as folder:
            root = Path(folder)
            (root / "src/base").mkdir(parents=True)
            long = Path("src/base/long.c")
            (root / long).write_text("\nvoid f(void)\n{\n" + "    step();\n" * 700 + "}\n")
            self.assertFalse(list(layers.file_findings(root, long)))
            with contextlib.redirect_stdout(io.StringIO()) as out:
                layers.print_longest(root, [long])
        self.assertRegex(out.getvalue(), r"(?m)^ +704  src/base/long\.c$")
        self.assertRegex(out.getvalue(), r"(?m)^ +702  src/base/long\.c:2$")


if __name__ == "__main__":
    unittest.main(verbosity=2)
