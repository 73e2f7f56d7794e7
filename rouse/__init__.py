# SPDX-License-Identifier: MIT
"""The command `rouse`: what the threads of programs that use librouse wait for, and why.

Each command is a module with its arguments; decoders (layout, store, tables, sites) do not render,
renderers do not decode.
"""

import _signal  # type: ignore[import-not-found]  # signal itself takes milliseconds to import

# What is imported first takes a while, and has nothing to clear up: an interrupt just ends it. One
# that is ignored stays so.
if _signal.getsignal(_signal.SIGINT) is _signal.default_int_handler:
    _signal.signal(_signal.SIGINT, _signal.SIG_DFL)
