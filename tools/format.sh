#!/usr/bin/env bash
# SPDX-License-Identifier: MIT
# format.sh - format the C and Python sources as `make check` requires.
set -euo pipefail
cd "$(dirname "${BASH_SOURCE[0]}")/.."
source tools/sources.sh

c_files | xargs clang-format -i
if [[ -x build/venv/bin/ruff ]]; then
    python_files | xargs build/venv/bin/ruff format --quiet
fi
