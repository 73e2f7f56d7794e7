#!/usr/bin/env bash
# SPDX-License-Identifier: MIT
# rouse.sh - the command `rouse` of this source tree; build/bin/rouse leads here. Its packages are installed into
# build/venv when it is first called, so that a build needs no network.
set -euo pipefail
root=$(cd "$(dirname "$(readlink -f "${BASH_SOURCE[0]}")")/.." && pwd)
if ! cmp -s "$root/pyproject.toml" "$root/build/venv/command.toml"; then
    "$root/tools/setup.sh" command >&2
fi
python=$root/build/venv/bin/python
if [[ ! -x $python ]]; then
    echo "rouse: its Python packages could not be installed; $root/build/venv.log has the reason" >&2
    exit 3
fi
exec "$python" -I -c 'import sys; sys.path.insert(0, sys.argv.pop(1)); from rouse.main import main; main()' \
    "$root" "$@"
