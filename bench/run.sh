#!/usr/bin/env bash
# SPDX-License-Identifier: MIT
# run.sh [options] - what `make bench` runs: see run.py --help.
set -euo pipefail
exec python3 "$(dirname "${BASH_SOURCE[0]}")/run.py" "$@"
