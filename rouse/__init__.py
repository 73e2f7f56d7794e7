# SPDX-License-Identifier: MIT
"""The command `rouse`: what the threads of programs that use librouse wait for, and why.

Each command is a module with its arguments; decoders (layout, store, tables, sites) do not render,
renderers do not decode.
"""

import signal

# What is imported first takes a while, and has nothing to clear up: an interrupt just ends it. One
# that is ignored stays so.
if signal.getsignal(signal.SIGINT) is signal.default_int_handler:
    signal.signal(signal.SIGINT, signal.SIG_DFL)
