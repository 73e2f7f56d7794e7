#!/usr/bin/env bash
# SPDX-License-Identifier: MIT
# tidy.sh - clang-tidy over the library and the programs, as the clang build compiles them.
set -euo pipefail
cd "$(dirname "${BASH_SOURCE[0]}")/.."

root=${ROUSE_BUILD_ROOT:-build}
if ! command -v clang-tidy >/dev/null; then
    echo "not run: no clang-tidy here"
    exit 77
fi
tools/configure.sh clang
# A file a run: what it has seen of one file misleads it about va_list in the next.
find src serve bench -name '*.c' -not -path 'bench/peers/*' -print0 |
    xargs -0 -n 1 -P "${JOBS:-$(nproc)}" clang-tidy --quiet -p "$root/clang"
