# SPDX-License-Identifier: MIT
"""The commands of `rouse`: one module per command parses options and calls the libraries."""
