#!/usr/bin/env bash
# SPDX-License-Identifier: MIT
# check.sh quick|all|GROUP... - every check and test; `make check` and `make check-all [GROUP=...]` run it after set-up.
#
# `make check` runs quick. Each group runs tests that quick leaves out. all means quick and every group.
# Each step and each test is counted once in the closing line `N passed, N failed, N skipped`. A step
# runs even if the one before it failed, so that one run shows all failures. The exit status is 0 only if
# nothing failed and at least one test was executed.
set -uo pipefail
cd "$(dirname "${BASH_SOURCE[0]}")/.."
# The programs of the tests inherit ignored signals. A script ignores SIGQUIT in its background jobs, for example.
[[ -z $(trap -p INT QUIT HUP TERM) ]] || exec env --default-signal tools/check.sh "$@"
source tools/sources.sh

groups=(asan tsan models stress serve recording valgrind database bench clang levels tidy aarch64 asan-e2e spark others packages)
wanted=" ${*:-quick} "
for word in $wanted; do
    if [[ " quick all ${groups[*]} " != *" $word "* ]]; then
        echo "check: there is no group $word. The groups are: ${groups[*]}" >&2
        exit 2
    fi
done

# wants GROUP: whether this run includes the group.
wants() { [[ $wanted == *" $1 "* || $wanted == *" all "* ]]; }

root=${ROUSE_BUILD_ROOT:-build}
out=$root/check-logs
jobs=${JOBS:-$(nproc)}
steps=$out/steps.tsv
testlogs=()

# The tests start the command thousands of times. It compiles its modules once, outside of the sources.
unset PYTHONDONTWRITEBYTECODE
export PYTHONPYCACHEPREFIX
PYTHONPYCACHEPREFIX=$(realpath -m "$root/pycache")

rm -rf "$out"
mkdir -p "$out"
: >"$steps"

# step NAME COMMAND...: run it, keep its output, and show the end of it if it fails. Status 77 means not run.
step() {
    local name=$1 log="$out/${1//[^a-zA-Z0-9._-]/_}.log" status=0 result began=$SECONDS
    shift
    "$@" >"$log" 2>&1 </dev/null || status=$?
    case $status in
    0) result=passed ;;
    77) result=skipped ;;
    *) result=failed ;;
    esac
    printf '%s\t%s\t%s\t%s\n' "$result" "$name" $((SECONDS - began)) "$log" >>"$steps"
    printf '%-7s %s (%d s)\n' "$result" "$name" $((SECONDS - began))
    if [[ $result == failed ]]; then
        tail -n 60 "$log"
        return 1
    fi
}

check_format() {
    local version
    version=$(clang-format --version 2>/dev/null | grep -o 'version [0-9]*')
    if [[ $version != "version 14" ]]; then
        echo "not run: the sources are formatted by clang-format 14, here is ${version:-none}"
        return 77
    fi
    c_files | xargs clang-format --dry-run --Werror
}

check_lint() {
    if [[ ! -x build/venv/bin/ruff ]]; then
        echo "not run: ruff and mypy could not be installed into build/venv"
        return 77
    fi
    local status=0
    python_files | xargs build/venv/bin/ruff format --check || status=1
    python_files | xargs build/venv/bin/ruff check || status=1
    # The command is one package. Other folders are checked one by one, since two scripts may share a name.
    build/venv/bin/mypy -p rouse || status=1
    python_files | grep -v '^rouse/' | xargs -n1 dirname | sort -u | while read -r folder; do
        build/venv/bin/mypy "$folder"/*.py || exit 1
    done || status=1
    return $status
}

# Each public header alone, in C17 and in C++17, by both compilers.
check_headers() {
    local header status=0
    local warnings=(-Wall -Wextra -Werror -Wundef -Iinclude -fsyntax-only)
    for header in include/rouse/*.hpp; do
        local line="#include <rouse/$(basename "$header")>" standard
        for standard in 17 20; do
            g++ -std=c++$standard "${warnings[@]}" -Wshadow -pedantic -x c++ - <<<"$line" || status=1
            clang++ -std=c++$standard "${warnings[@]}" -Wshadow -pedantic -x c++ - <<<"$line" || status=1
        done
    done
    for header in include/rouse/*.h; do
        local line="#include <rouse/$(basename "$header")>"$'\nextern int a_declaration;' # ISO C requires one
        local cc
        for cc in gcc clang; do
            $cc -std=c17 -pedantic -Wstrict-prototypes "${warnings[@]}" -x c - <<<"$line" || status=1
            ${cc/gcc/g}++ -std=c++17 "${warnings[@]}" -x c++ - <<<"$line" || status=1
        done
    done
    return $status
}

check_shell() {
    local script status=0
    while read -r script; do
        bash -n "$script" || status=1
    done < <(find .ci tools tests bench -name '*.sh' -o -path .ci/run)
    return $status
}

build() {
    tools/configure.sh "$1" && ninja -C "$root/$1" -j "$jobs"
}

# Show meson's progress: one line that changes on a terminal, and every 20th test elsewhere.
progress() {
    local is_terminal=0
    [[ -t 1 ]] && is_terminal=1
    awk -v is_terminal=$is_terminal '
        $1 ~ /^[0-9]+\/[0-9]+$/ {
            split($1, n, "/")
            if (is_terminal) printf "\r\033[K%s", substr($0, 1, 100)
            else if (n[1] % 20 == 0) printf "        %s tests\n", $1
            fflush()
        }
        END { if (is_terminal) printf "\r\033[K" }'
}

# run_tests BUILD NAME ARGUMENTS...: `meson test` with its own log; the summary shows its failures.
run_tests() {
    local name=$1 log=$2 began=$SECONDS
    shift 2
    local dir=$root/$name
    local json=$dir/meson-logs/$log.json
    local wrapper=()
    # The thread sanitizer needs fixed addresses for its shadow memory, which strong randomisation may occupy.
    if [[ $name == *tsan* ]] && setarch -R true 2>/dev/null; then
        wrapper=(setarch -R)
    elif [[ $name == aarch64 ]]; then
        wrapper=(tools/qemu.sh)
    fi
    rm -f "$json"
    # Parallel tests often wait, so run one job more than there are processors.
    "${wrapper[@]}" meson test -C "$dir" --logbase "$log" --num-processes $((jobs + 1)) \
        --print-errorlogs "$@" 2>&1 </dev/null | tee "$out/$name-$log.log" | progress
    local status=${PIPESTATUS[0]}
    if [[ -s $json ]]; then
        testlogs+=("$json")
    elif ((status)) && ! grep -q 'No suitable tests defined' "$out/$name-$log.log"; then
        step "tests of $name: $log" replay "$out/$name-$log.log" $status
        return
    fi
    printf '%-7s tests of %s: %s (%d s)\n' "$( ((status)) && echo FAILED || echo ran)" \
        "$name" "$log" $((SECONDS - began))
}

replay() {
    cat "$1"
    return "$2"
}

build_and_test() {
    local name=$1
    shift
    if step "build $name" build "$name"; then
        run_tests "$name" "$@"
    fi
}

# configure_and_test BUILD NAME ARGUMENTS...: build only what these tests need, which meson does.
configure_and_test() {
    local name=$1
    shift
    if step "configure $name" tools/configure.sh "$name"; then
        run_tests "$name" "$@"
    fi
}

native=(--suite unit --suite fault --suite stress)

if wants quick; then
    step "format" check_format
    step "layers" python3 tools/layers.py
    step "map" python3 tools/map.py --check
    step "prose" tools/prose.py
    step "lint" check_lint
    step "shell" check_shell
    step "headers" check_headers
    # Short storms: the group `stress` runs them at full length.
    ROUSE_SCALE=${ROUSE_SCALE:-10} build_and_test check native "${native[@]}" --suite tools --suite command
    [[ -f $root/check/build.ninja ]] && run_tests check e2e --suite e2e --suite package
else
    step "build check" build check
fi

# in_check GROUP ARGUMENTS...: run that group's tests in the build `check`.
in_check() {
    local group=$1
    shift
    if wants "$group" && [[ -f $root/check/build.ninja ]]; then
        run_tests check "$group" "$@"
    fi
}

in_check stress --suite stress
in_check models --suite model
in_check serve --suite serve
wants all && export ROUSE_FUZZ=${ROUSE_FUZZ:-2000} # rounds of tests/command/fuzz_test.py
in_check recording --suite recording
in_check valgrind --suite valgrind
in_check database --suite database
in_check bench --suite bench
# Short storms: the groups `stress` and `tsan` run them at full length.
wants asan && ROUSE_SCALE=${ROUSE_SCALE:-30} configure_and_test asan native "${native[@]}" --timeout-multiplier 4
wants tsan && configure_and_test tsan stress --suite stress --timeout-multiplier 8
if wants clang; then
    build_and_test clang native "${native[@]}"
    build_and_test clang-asan native "${native[@]}" --timeout-multiplier 4
    build_and_test gcc-tsan native "${native[@]}" --timeout-multiplier 8
    build_and_test tsan unit --suite unit --suite fault --timeout-multiplier 8
fi
if wants levels; then
    # Whether the compiler keeps a thread-local address over a switch depends on the optimisation level.
    for name in debug O3 lto clang-O0 clang-O3 clang-lto; do
        build_and_test "$name" native --suite unit
    done
fi
wants tidy && step "clang-tidy" tools/tidy.sh
if wants aarch64; then
    # An emulated program takes several times as long, so storms are short, as in quick.
    ROUSE_SCALE=${ROUSE_SCALE:-10} build_and_test aarch64 native "${native[@]}" --timeout-multiplier 10
    [[ -f $root/aarch64/build.ninja ]] && run_tests aarch64 interposer --suite emulated
fi
in_check spark --suite spark
in_check others --suite others
in_check packages --suite packages
if wants asan-e2e && step "build asan" build asan; then
    run_tests asan e2e --suite e2e --suite serve --suite bench --timeout-multiplier 4
fi

python3 tools/summary.py --steps "$steps" "${testlogs[@]}"
