#!/usr/bin/env bash
# SPDX-License-Identifier: MIT
# setup.sh SET... - install the missing packages of each set: build, check, check-all, bench, command (the command
# `rouse`), dist (releases), deb (Debian packages), packages (tools for the tests of both) and demos (the programs that demos/
# shows). It does nothing if no package is missing.
#
# It works on Debian 12 and later with only git, make, gcc and python3. It says what it installs and asks no
# questions. If nothing is missing, it costs one dpkg query. Without apt-get, or without root and sudo, it continues
# if the required commands exist.
set -euo pipefail
cd "$(dirname "${BASH_SOURCE[0]}")/.."

# a|b: either package satisfies the need. The first one that the distribution offers is installed.
declare -A packages=(
    [build]="meson ninja-build pkg-config dpkg-dev gcc libc6-dev libllhttp-dev|node-llhttp valgrind
             lowdown"
    [check]="g++ clang libclang-rt-14-dev|libclang-rt-dev llvm clang-format libcmocka-dev spin wrk
             curl strace gdb slowhttptest python3-venv ca-certificates chromium libbpf-dev
             libjemalloc2 libgoogle-perftools4|libgoogle-perftools4t64 libssl-dev openssl
             libcurl4-openssl-dev libpq-dev libsqlite3-dev zlib1g-dev postgresql cmake zsh fish"
    [command]="python3-venv ca-certificates"
    [dist]="git xz-utils python3-venv ca-certificates"
    [deb]="git xz-utils dpkg-dev debhelper dh-python meson ninja-build pkg-config libllhttp-dev|node-llhttp valgrind
           lowdown clang libbpf-dev"
    [packages]="lintian debootstrap"
    [check-all]="clang-tidy tcc gcc-aarch64-linux-gnu g++-aarch64-linux-gnu libc6-dev-arm64-cross
                 qemu-user-static default-jre-headless|openjdk-17-jre-headless|openjdk-21-jre-headless
                 mariadb-server-core mariadb-client-core sysbench
                 libpython3.11-testsuite|libpython3.13-testsuite
                 nghttp2-client apache2-utils musl-tools libabsl-dev libgmock-dev
                 libc++-14-dev|libc++-dev libc++abi-14-dev|libc++abi-dev"
    [bench]="g++ libst-dev libboost-fiber-dev nginx-light strace"
    [demos]="mariadb-server-core mariadb-client-core sysbench strace memcached libmemcached-tools redis-server redis-tools
             nginx-light wrk openjdk-17-jdk-headless|openjdk-21-jdk-headless golang-go"
)
# The commands to look for where dpkg cannot be queried.
declare -A commands=(
    [build]="meson ninja gcc lowdown"
    [check]="g++ clang spin wrk curl strace gdb"
    [command]="python3"
    [dist]="git xz"
    [deb]="git xz dh dpkg-buildpackage"
    [packages]="lintian debootstrap"
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

# Continue without installing if every command of the sets exists. Otherwise name the missing packages and exit.
go_on_without() {
    local reason=$1 command absent=()
    shift
    for command in "$@"; do
        command -v "$command" >/dev/null || absent+=("$command")
    done
    if ((${#absent[@]})); then
        die "$reason. Install these Debian packages or their equivalents: ${wanted[*]} (missing commands: ${absent[*]})"
    fi
    say "$reason; continuing with the tools that are installed"
}

as_root() {
    if ((EUID == 0)); then
        "$@"
    elif sudo -n true 2>/dev/null; then
        sudo -n "$@"
    else
        sudo "$@" # at a terminal, sudo may ask for its password
    fi
}

may_be_root() {
    ((EUID == 0)) || { command -v sudo >/dev/null && { sudo -n true 2>/dev/null || [[ -t 0 ]]; }; }
}

install_packages() {
    local want alternative names=()
    as_root apt-get -qq -o DPkg::Lock::Timeout=300 update ||
        say "apt-get update failed; using the existing package lists"
    for want in "$@"; do
        for alternative in ${want//|/ }; do
            if [[ $want != *"|"* ]] || apt-cache show "$alternative" >/dev/null 2>&1; then
                names+=("$alternative")
                break
            fi
        done
    done
    say "installing with apt-get: ${names[*]}"
    # The packages of servers (benchmark peers and demos) must not start their services on this machine.
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
        die "apt-get could not install these packages; the full log is build/setup.log"
    fi
}

# Install the packages that pyproject.toml names for a set into build/venv. "check" adds the developers' packages,
# "check-all" the extras, "dist" only what builds releases. Without a network, packages that were installed earlier stay.
install_python_packages() {
    local set=$1 venv=build/venv python=/usr/bin/python3 names is_new=false
    exec 9>build/venv.lock
    flock 9
    # pip's first line names the folder in which the environment was made: a moved checkout needs a new one.
    if [[ -e $venv && $(head -n 1 "$venv/bin/pip" 2>/dev/null) != "#!$(pwd -P)/$venv/"* ]]; then
        rm -rf "$venv"
    fi
    cmp -s <(cat pyproject.toml tools/requirements.lock) "$venv/$set.stamp" && return
    [[ -x $python ]] || python=python3
    "$venv/bin/python" -c 'import pip' 2>/dev/null || is_new=true
    if names=$("$python" tools/packages.py --names "$set" 2>build/venv.log); then
        say "installing with pip into $venv: $names"
        if $is_new; then
            rm -rf "$venv"
            "$python" -m venv "$venv" >>build/venv.log 2>&1 || names=
        fi
        if [[ $names ]] && "$venv/bin/python" -m pip install --quiet --disable-pip-version-check --retries 1 \
            --timeout 30 --constraint tools/requirements.lock $names >>build/venv.log 2>&1; then
            # Each set but that of releases has those before it.
            case $set in
            check-all) names="command check check-all" ;;
            check) names="command check" ;;
            *) names=$set ;;
            esac
            for set in $names; do
                cat pyproject.toml tools/requirements.lock >"$venv/$set.stamp"
            done
            return
        fi
    fi
    $is_new && rm -rf "$venv"
    local reason
    reason="could not install the Python packages into $venv (log: build/venv.log)"
    if [[ $set == command ]]; then
        die "$reason. The command rouse does not run without them. Install ${packages[command]}, check that pip" \
            "reaches its index, and try again"
    fi
    say "$reason; checks that need them will not be run"
}

# Unpack cmocka for AArch64 in build/ for the cross-built tests. No foreign architecture is added to this system.
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
        say "could not unpack cmocka; the AArch64 tests will not be built (log: build/aarch64-apt.log)"
    fi
}

# Unpack abseil's tests in build/, in the version of the installed library. They come from Debian's source package,
# whose signature apt verifies. The lists of source packages stay in build/ too; the system's own lists are unchanged.
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
        say "could not unpack abseil; its tests will not be run (log: build/abseil-apt.log)"
    fi
}

main() {
    local set needed=()
    wanted=()
    for set in "$@"; do
        [[ -v packages[$set] ]] || die "unknown set '$set'; the sets are: ${!packages[*]}"
        wanted+=(${packages[$set]})
        needed+=(${commands[$set]})
    done
    mkdir -p build
    if ! command -v apt-get >/dev/null || ! command -v dpkg-query >/dev/null; then
        go_on_without "this system has no apt-get" "${needed[@]}"
    else
        local missing
        mapfile -t missing < <(missing_packages "${wanted[@]}")
        if ((${#missing[@]})); then
            if may_be_root; then
                install_packages "${missing[@]}"
            else
                wanted=("${missing[@]}")
                go_on_without "cannot install packages: neither root nor sudo without a password" "${needed[@]}"
            fi
        fi
    fi
    for set in check-all check command dist; do
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
