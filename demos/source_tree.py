# SPDX-License-Identifier: MIT
"""Import this before `rouse`: it is found in this source tree, wherever a demonstration starts."""

import signal
import sys
from pathlib import Path

sys.path.insert(0, str(Path(__file__).resolve().parents[1]))

import rouse  # noqa: F401 the path comes first

# The command ends at an interrupt until its own code begins. A demonstration stops its server.
if signal.getsignal(signal.SIGINT) == signal.SIG_DFL:
    signal.signal(signal.SIGINT, signal.default_int_handler)
