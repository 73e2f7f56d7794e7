#!/usr/bin/env bash
# SPDX-License-Identifier: MIT
# setup.sh SET... - install what is missing to build, check, check-all, bench, run the command `rouse` or the
# demonstrations of demos/; a no-op if nothing is.
#
# Made for Debian 12 and later with nothing but git, make, gcc and python3. It says what it installs
# and asks nothing; only a missing package costs more than one question to dpkg. Where there is no
# apt-get, or neither root nor sudo, it goes on if the tools are there by another way.
set -euo pipefail
cd "$(dirname "${BASH_SOURCE[0]}")/.."

# a|b: either will do; the first that this distribution has is installed.
declare -A packages=(
    [build]="meson ninja-build pkg-config gcc libc6-dev libllhttp-dev|node-llhttp valgrind
             lowdown"
    [check]="g++ clang libclang-rt-14-dev|libclang-rt-dev llvm clang-format libcmocka-dev spin wrk
             curl strace gdb python3-venv ca-certificates chromium libbpf-dev
             libjemalloc2 libgoogle-perftools4|libgoogle-perftools4t64"
    [command]="python3-venv ca-certificates"
    [check-all]="clang-tidy gcc-aarch64-linux-gnu g++-aarch64-linux-gnu libc6-dev-arm64-cross
                 qemu-user-static default-jre-headless|openjdk-17-jre-headless|openjdk-21-jre-headless
                 mariadb-server-core mariadb-client-core sysbench
                 libpython3.11-testsuite|libpython3.13-testsuite
                 musl-tools libabsl-dev libgmock-dev"
    [bench]="g++ libst-dev libboost-fiber-dev nginx-light strace"
    [demos]="mariadb-server-core mariadb-client-core sysbench strace memcached libmemcached-tools redis-server redis-tools
             nginx-light wrk openjdk-17-jdk-headless|openjdk-21-jdk-headless golang-go"
)
# What stands in for the packages where dpkg cannot be asked.
declare -A commands=(
    [build]="meson ninja gcc lowdown"
    [check]="g++ clang spin wrk curl strace gdb"
    [command]="python3"
    [check-all]="clang-tidy aarch64-linux-gnu-gcc"
    [bench]="g++"
    [demos]="memcached redis-server wrk javac go"
)

say() { printf 'setup: %s\n' "$*"; }
die() {
    printf 'setup: %s\n' "$*" >&2
    exit 1
}

# Print those of the arguments for which no alternative is installed.
missing_packages() {
    local installed want
    installed=" $(dpkg-query -W -f='${db:Status-Status}:${Package} ' ${@//|/ } 2>/dev/null || true)"
    for want in $(printf '%s\n' "$@" | sort -u); do
        local alternative found=false
        for alternative in ${want//|/ }; do
            [[ $installed == *" installed:$alternative "* ]] && found=true
        done
        $found || echo "$want"
    done
}

# Go on without installing if every command of the sets is there; else say what is needed and end.
go_on_without() {
    local reason=$1 command absent=()
    shift
    for command in "$@"; do
        command -v "$command" >/dev/null || absent+=("$command")
    done
    if ((${#absent[@]})); then
        die "$reason. Install by hand what Debian calls: ${wanted[*]} (no command: ${absent[*]})"
    fi
    say "$reason; going on with what is here"
}

as_root() {
    if ((EUID == 0)); then
        "$@"
    elif sudo -n true 2>/dev/null; then
        sudo -n "$@"
    else
        sudo "$@" # at a terminal, sudo may ask for its password; we ask nothing
    fi
}

may_be_root() {
    ((EUID == 0)) || { command -v sudo >/dev/null && { sudo -n true 2>/dev/null || [[ -t 0 ]]; }; }
}

install_packages() {
    local want alternative names=()
    as_root apt-get -qq -o DPkg::Lock::Timeout=300 update ||
        say "apt-get update failed; trying with the lists that are here"
    for want in "$@"; do
        for alternative in ${want//|/ }; do
            if [[ $want != *"|"* ]] || apt-cache show "$alternative" >/dev/null 2>&1; then
                names+=("$alternative")
                break
            fi
        done
    done
    say "installing with apt-get: ${names[*]}"
    # A server that comes as a benchmark's peer, or to be shown, must not start to serve this machine.
    local policy=/usr/sbin/policy-rc.d keep_policy=true
    if [[ " ${names[*]} " =~ " "(nginx-light|redis-server|memcached)" " && ! -e $policy ]]; then
        keep_policy=false
        printf '#!/bin/sh\nexit 101\n' | as_root tee "$policy" >/dev/null
        as_root chmod +x "$policy"
    fi
    local status=0
    as_root env DEBIAN_FRONTEND=noninteractive apt-get -qq -y -o DPkg::Lock::Timeout=300 \
        -o Dpkg::Use-Pty=0 install --no-install-recommends "${names[@]}" >build/setup.log 2>&1 ||
        status=$?
    $keep_policy || as_root rm -f "$policy"
    if ((status)); then
        tail -n 20 build/setup.log >&2
        die "apt-get could not install these packages; the whole log is build/setup.log"
    fi
}

# What pyproject.toml names: the packages of the command, for the set check what its developers need, for check-all the
# extras, too. What was installed before stays when the network is not there.
install_python_packages() {
    local set=$1 venv=build/venv python=/usr/bin/python3 names is_new=false
    exec 9>build/venv.lock
    flock 9
    cmp -s pyproject.toml "$venv/$set.toml" && return
    [[ -x $python ]] || python=python3
    "$venv/bin/python" -c 'import pip' 2>/dev/null || is_new=true
    if names=$("$python" tools/packages.py --names "$set" 2>build/venv.log); then
        say "installing with pip into $venv: $names"
        if $is_new; then
            rm -rf "$venv"
            "$python" -m venv "$venv" >>build/venv.log 2>&1 || names=
        fi
        if [[ $names ]] && "$venv/bin/pip" install --quiet --disable-pip-version-check --retries 1 \
            --timeout 30 $names >>build/venv.log 2>&1; then
            cp pyproject.toml "$venv/command.toml"
            [[ $set == command ]] || cp pyproject.toml "$venv/check.toml"
            cp pyproject.toml "$venv/$set.toml"
            return
        fi
    fi
    $is_new && rm -rf "$venv"
    say "could not; the command and what is checked with it may not run (build/venv.log has the reason)"
}

# cmocka for AArch64, unpacked in build/ for the cross-built tests: this system keeps its architecture.
unpack_cross_cmocka() {
    local to=build/aarch64-packages state=$PWD/build/aarch64-apt deb
    [[ -e $to/usr/lib/aarch64-linux-gnu/libcmocka.so ]] && return
    local apt=(apt-get -qq -o APT::Architecture=arm64 -o APT::Architectures=arm64
        -o Dir::State::lists="$state/lists" -o Dir::Cache="$state" -o APT::Sandbox::User=)
    say "unpacking into $to: libcmocka0 libcmocka-dev for arm64"
    rm -rf "$to" "$state"
    mkdir -p "$to" "$state/lists/partial" "$state/archives/partial"
    if "${apt[@]}" update >build/aarch64-apt.log 2>&1 &&
        (cd "$state" && "${apt[@]}" download libcmocka0 libcmocka-dev) >>build/aarch64-apt.log 2>&1; then
        for deb in "$state"/*.deb; do
            dpkg-deb --extract "$deb" "$to"
        done
    else
        say "could not; the AArch64 tests will not be built (build/aarch64-apt.log has the reason)"
    fi
}

# The tests of abseil, of the version whose library is installed, unpacked in build/: Debian's source package, which apt
# compares with what is signed. The lists of sources that this needs are no business of this system.
unpack_abseil() {
    local to=build/abseil state=$PWD/build/abseil-apt version
    local keys=/usr/share/keyrings/debian-archive-keyring.gpg
    version=$(dpkg-query -W -f='${source:Version}' libabsl-dev 2>/dev/null) || return 0
    [[ -f $to/.version && $(<"$to/.version") == "$version" ]] && return
    local apt=(apt-get -qq -o Dir::Etc::sourcelist="$state/sources.list" -o Dir::Etc::sourceparts=-
        -o Dir::State::lists="$state/lists" -o Dir::Cache="$state" -o APT::Sandbox::User=)
    say "unpacking into $to: the source of abseil $version"
    rm -rf "$to" "$state"
    mkdir -p "$to" "$state/lists/partial" "$state/archives/partial"
    if apt-get indextargets --format "deb-src [signed-by=$keys] \$(REPO_URI) \$(RELEASE) main" \
        'Identifier: Packages' 'Origin: Debian' 'Component: main' 2>build/abseil-apt.log |
        sort -u >"$state/sources.list" &&
        "${apt[@]}" update >>build/abseil-apt.log 2>&1 &&
        (cd "$state" && "${apt[@]}" source --download-only "abseil=$version") \
            >>build/abseil-apt.log 2>&1 &&
        tar -xf "$state"/abseil_*.orig.tar.* -C "$to" --strip-components=1 >>build/abseil-apt.log 2>&1; then
        echo "$version" >"$to/.version"
    else
        rm -rf "$to"
        say "could not; abseil's tests will not be run (build/abseil-apt.log has the reason)"
    fi
}

main() {
    local set needed=()
    wanted=()
    for set in "$@"; do
        [[ -v packages[$set] ]] || die "no set $set; there are: ${!packages[*]}"
        wanted+=(${packages[$set]})
        needed+=(${commands[$set]})
    done
    mkdir -p build
    if ! command -v apt-get >/dev/null || ! command -v dpkg-query >/dev/null; then
        go_on_without "no apt-get here" "${needed[@]}"
    else
        local missing
        mapfile -t missing < <(missing_packages "${wanted[@]}")
        if ((${#missing[@]})); then
            if may_be_root; then
                install_packages "${missing[@]}"
            else
                wanted=("${missing[@]}")
                go_on_without "neither root nor sudo without a password" "${needed[@]}"
            fi
        fi
    fi
    for set in check-all check command; do
        if [[ " $* " == *" $set "* ]]; then
            install_python_packages "$set"
        fi
    done
    if [[ " $* " == *" check-all "* ]] && command -v dpkg-deb >/dev/null; then
        unpack_cross_cmocka
        unpack_abseil
    fi
}

main "$@"
