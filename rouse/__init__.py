# SPDX-License-Identifier: MIT
"""The command `rouse`: what the threads of programs that use librouse wait for, and why.

Packages, from the bottom (tools/layers.py checks that imports follow this order):

store    layout of the shared files, reading them, recordings
symbols  addresses as functions, files and lines
sched    what the kernel's scheduler and /proc report
tables   recorded data as tables, and the engines that query them
query    the queries and the sections of a report
render   reports as text, HTML, JSON and the formats of other tools
top      `rouse top`
run      `rouse run` and `rouse record`
cli      one module per command: options, and calls into the packages above it in this list

Decoders (store, tables, symbols) do not render, renderers do not decode.
"""

import _signal  # type: ignore[import-not-found]  # signal itself takes milliseconds to import

# The first imports take a while and leave nothing to clean up, so an interrupt simply ends the
# process. One that is ignored stays so.
if _signal.getsignal(_signal.SIGINT) is _signal.default_int_handler:
    _signal.signal(_signal.SIGINT, _signal.SIG_DFL)
