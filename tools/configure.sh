#!/usr/bin/env bash
# SPDX-License-Identifier: MIT
# configure.sh NAME - have build/NAME configured as its name says; a no-op if it is already.
#
# The builds that users, checks and benchmarks share are named here and nowhere else. A build whose
# options changed since (or whose compiler did) is made anew. ROUSE_BUILD_ROOT: another place than build/.
# PREFIX: where the release is to be installed; /usr/local.
set -euo pipefail
cd "$(dirname "${BASH_SOURCE[0]}")/.."

name=${1:?usage: configure.sh NAME}
dir=${ROUSE_BUILD_ROOT:-build}/$name
cc=gcc cxx=g++
# Tests want the injected delays and counters; what is released does not.
test_options=(-Dtests=true -Drouse_test=true -Ddefault_library=static)
san_clang=(-Db_lundef=false) # clang links its run-time into the program, not into the library

# A prefix of one's own has a plain lib/; the distribution's layout is for those that are searched.
place=(-Dprefix="${PREFIX:-/usr/local}")
[[ ${PREFIX:-/usr/local} == /usr || ${PREFIX:-/usr/local} == /usr/local ]] || place+=(-Dlibdir=lib)

case $name in
release) options=("${place[@]}") cc=${CC:-gcc} ;;
check) options=(-Dtests=true) ;; # the code that is released, with its tests
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
    echo "configure.sh: no build is named $name" >&2
    exit 1
    ;;
esac
[[ $cc == clang ]] && cxx=clang++

want="$cc ${options[*]}"
if [[ -f $dir/build.ninja && -f $dir/.options && $(<"$dir/.options") == "$want" ]]; then
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
    echo "configure.sh: meson could not configure $dir; the whole log is $dir.log" >&2
    exit 1
fi
printf '%s' "$want" >"$dir/.options"
