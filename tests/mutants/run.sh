#!/usr/bin/env bash
# SPDX-License-Identifier: MIT
# run.sh - what `make mutants` runs; see mutants.py.
set -euo pipefail
cd "$(dirname "${BASH_SOURCE[0]}")/../.."
exec python3 tests/mutants/mutants.py "$@"
