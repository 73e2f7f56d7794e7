#!/usr/bin/env bash
# SPDX-License-Identifier: MIT
# deb.sh FOLDER - build the Debian packages of the last commit in FOLDER: librouse0, librouse-dev, rouse-doc, rouse-tools.
#
# The same commit gives the same bytes, with the same tools. The folder in which they are built has a fixed name below a
# temporary one, which debhelper keeps out of the files.
set -euo pipefail
umask 022
cd "$(dirname "${BASH_SOURCE[0]}")/.."

die() {
    printf 'make deb: %s\n' "$*" >&2
    exit 1
}

folder=$(realpath -m -- "${1:?usage: deb.sh FOLDER}")
SOURCE_DATE_EPOCH=$(git log -1 --format=%ct 2>/dev/null) || die "this is no checkout of git; packages are made from a commit"
export SOURCE_DATE_EPOCH
version=$(sed -n "s/^  version: '\(.*\)',/\1/p" meson.build)
said=$(sed -n '1s/^rouse (\([^)]*\)-[^-]*).*/\1/p' debian/changelog)
[[ $said == "$version" ]] || die "debian/changelog has version $said, meson.build has $version"
[[ -z $(git status --porcelain --untracked-files=no) ]] || echo "make deb: changes that are not committed are left out"

work=$(mktemp -d)
trap 'rm -rf "$work"' EXIT
mkdir -p "$folder" "$work/rouse-$version"
git archive --format=tar HEAD | tar -xf - -C "$work/rouse-$version"
# The sources without the packages' own files, as Debian has it.
git -c tar.umask=0022 archive --format=tar --prefix="rouse-$version/" HEAD -- . ':(exclude)debian' |
    xz --threads=1 -6 >"$work/rouse_$version.orig.tar.xz"
# Meson's own variables, and what the caller set for other builds, would change the packages.
(cd "$work/rouse-$version" && env -u CC -u CFLAGS -u CPPFLAGS -u LDFLAGS -u DESTDIR -u PREFIX -u PYTHONDONTWRITEBYTECODE \
    PATH=/usr/sbin:/usr/bin:/sbin:/bin dpkg-buildpackage --no-sign) >"$folder/deb.log" 2>&1 ||
    die "the packages could not be built; the log is $folder/deb.log"
rm -f "$folder"/*.deb "$folder"/rouse_*
mv "$work"/*.deb "$work"/rouse_* "$folder"
ls "$folder"/*.deb
