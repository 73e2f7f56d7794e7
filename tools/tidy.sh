#!/usr/bin/env bash
# SPDX-License-Identifier: MIT
# tidy.sh - clang-tidy over the libraries and the programs, as the clang build compiles them.
set -euo pipefail
cd "$(dirname "${BASH_SOURCE[0]}")/.."

root=${ROUSE_BUILD_ROOT:-build}
if ! command -v clang-tidy >/dev/null; then
    echo "not run: no clang-tidy here"
    exit 77
fi
tools/configure.sh clang
# BPF code is not compiled for the host. Its loaders include generated headers.
left_out=(-name '*.bpf.c')
if grep -q rouse_kernel.c "$root/clang/compile_commands.json"; then
    ninja -C "$root/clang" --quiet kernel/switches.h kernel/counts.h
else
    echo "not run: what loads BPF code, without libbpf"
    left_out+=(-o -name rouse_kernel.c -o -name counting.c -o -name rouse_switches.c)
fi
# One file per run: state from one file misleads clang-tidy about va_list in the next.
find src serve bench preload kernel -name '*.c' -not -path 'bench/peers/*' -not \( "${left_out[@]}" \) -print0 |
    xargs -0 -n 1 -P "${JOBS:-$(nproc)}" clang-tidy --quiet -p "$root/clang"
