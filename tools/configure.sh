#!/usr/bin/env bash
# SPDX-License-Identifier: MIT
# configure.sh NAME - configure build/NAME, unless it is configured already.
#
# This is the only list of the builds that users, checks and benchmarks share. A build is configured again from
# scratch when its options or its compiler changed, or when the checkout was moved or copied: meson writes absolute
# paths. ROUSE_BUILD_ROOT replaces build/. PREFIX is where the release will be installed (default /usr/local).
set -euo pipefail
cd "$(dirname "${BASH_SOURCE[0]}")/.."

name=${1:?usage: configure.sh NAME}
dir=${ROUSE_BUILD_ROOT:-build}/$name
cc=gcc cxx=g++
# Tests use injected delays and counters. The release has neither.
test_options=(-Dtests=true -Drouse_test=true -Ddefault_library=static)
san_clang=(-Db_lundef=false) # clang links its run-time into the program, not into the library

# A private prefix uses plain lib/. Only the prefixes that the loader searches use the distribution's layout.
place=(-Dprefix="${PREFIX:-/usr/local}")
[[ ${PREFIX:-/usr/local} == /usr || ${PREFIX:-/usr/local} == /usr/local ]] || place+=(-Dlibdir=lib)

case $name in
release) options=("${place[@]}") cc=${CC:-gcc} ;;
check) options=(-Dtests=true) ;; # the released code with its tests
debug) options=("${test_options[@]}" -Doptimization=0) ;;
asan) options=("${test_options[@]}" -Doptimization=1 -Db_sanitize=address,undefined) ;;
tsan) options=("${test_options[@]}" -Doptimization=1 -Db_sanitize=thread "${san_clang[@]}") cc=clang ;;
clang) options=(-Dtests=true) cc=clang ;;
clang-asan)
    options=("${test_options[@]}" -Doptimization=1 -Db_sanitize=address,undefined "${san_clang[@]}")
    cc=clang
    ;;
gcc-tsan) options=("${test_options[@]}" -Doptimization=1 -Db_sanitize=thread) ;;
O3) options=("${test_options[@]}" -Doptimization=3) ;;
lto) options=(-Dtests=true -Db_lto=true) ;;
clang-O0) options=("${test_options[@]}" -Doptimization=0) cc=clang ;;
clang-O3) options=("${test_options[@]}" -Doptimization=3) cc=clang ;;
clang-lto) options=(-Dtests=true -Db_lto=true) cc=clang ;;
aarch64) options=("${test_options[@]}" --cross-file tools/aarch64.ini --cross-file "$dir.ini") ;;
*)
    echo "configure.sh: unknown build '$name'; HACKING.md lists the builds" >&2
    exit 1
    ;;
esac
[[ $cc == clang ]] && cxx=clang++

want="$cc ${options[*]}"
if [[ -f $dir/build.ninja && -f $dir/.options && $(<"$dir/.options") == "$want" ]] &&
    grep -qF "\"source\": \"$(pwd -P)\"" "$dir/meson-info/meson-info.json"; then
    exit 0
fi
rm -rf "$dir"
mkdir -p "$dir"
if [[ $name == aarch64 ]]; then
    packages=$PWD/build/aarch64-packages
    printf "[properties]\nsys_root = '%s'\npkg_config_libdir = '%s'\n" \
        "$packages" "$packages/usr/lib/aarch64-linux-gnu/pkgconfig" >"$dir.ini"
fi
if ! CC=$cc CXX=$cxx meson setup "$dir" "${options[@]}" >"$dir.log" 2>&1; then
    tail -n 20 "$dir.log" >&2
    echo "configure.sh: meson could not configure $dir; the full log is $dir.log" >&2
    exit 1
fi
printf '%s' "$want" >"$dir/.options"
