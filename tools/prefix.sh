#!/usr/bin/env bash
# SPDX-License-Identifier: MIT
# prefix.sh TARGET PREFIX [DESTDIR] - before make TARGET: refuse to install into this source tree.
# prefix.sh installed PREFIX [DESTDIR] - after it: print where the files are, and what to add to PATH.
#
# Meson installs the header include/rouse/x.h over PREFIX/include/rouse/x.h. In the source tree both are one
# file, and the installation deletes it. With DESTDIR, a packager's staging folder in the tree is allowed, but not the
# tree itself.
set -euo pipefail
source=$(cd "$(dirname "${BASH_SOURCE[0]}")/.." && pwd -P)

if [[ $1 == installed ]]; then
    echo "installed in ${3:-}$2"
    if [[ -z ${3:-} && ":$PATH:" != *":$2/bin:"* ]]; then
        echo "to use it, put it in PATH: export PATH=$2/bin:\$PATH"
    fi
    exit 0
fi
target=$1 prefix=$2 destination=$(realpath -m -- "${3:-}/$2")
if [[ $prefix != /* ]]; then
    echo "make $target: PREFIX=$prefix is not an absolute path; try PREFIX=$HOME/.local" >&2
    exit 1
fi
if [[ -n ${3:-} && $destination == "$source" ]]; then
    echo "make $target: DESTDIR=$3 with PREFIX=$prefix is the source tree itself, whose files it would overwrite;" \
        "try DESTDIR=$source/build/stage" >&2
    exit 1
fi
if [[ $destination == "$source" || (-z ${3:-} && $destination == "$source"/*) ]]; then
    echo "make $target: PREFIX=$prefix is inside the source tree $source, whose files it would overwrite;" \
        "try PREFIX=$HOME/.local" >&2
    exit 1
fi
