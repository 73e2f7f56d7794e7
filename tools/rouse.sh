#!/usr/bin/env bash
# SPDX-License-Identifier: MIT
# rouse.sh - the command `rouse` of this source tree. build/bin/rouse links here. The first call installs the
# command's Python packages into build/venv, so that a build needs no network.
set -euo pipefail
root=$(cd "$(dirname "$(readlink -f "${BASH_SOURCE[0]}")")/.." && pwd)
if ! cmp -s <(cat "$root/pyproject.toml" "$root/tools/requirements.lock") "$root/build/venv/command.stamp"; then
    "$root/tools/setup.sh" command >&2 || true # packages of an earlier version may be there
fi
python=$root/build/venv/bin/python
if [[ ! -x $python ]]; then
    echo "rouse: could not install the command's Python packages; see $root/build/venv.log" >&2
    exit 3
fi
exec "$python" -I -c 'import sys; sys.path.insert(0, sys.argv.pop(1)); from rouse.cli.main import main; main()' \
    "$root" "$@"
