# SPDX-License-Identifier: MIT
"""The command `rouse`: what the threads of programs that use librouse wait for, and why.

Each command is a module with its arguments; decoders (layout, store, tables, sites) do not render,
renderers do not decode.
"""
